# SPDX-License-Identifier: GPL-2.0-only
"""Idle Linux CPUs that wake in the time the hardware needs: measure, prove, tune and report."""

__version__ = "0.1.0"

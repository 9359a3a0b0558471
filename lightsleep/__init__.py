# SPDX-License-Identifier: GPL-2.0-only
"""Idle Linux CPUs that wake faster: measure what waking costs, poll while that pays, prove it."""

__version__ = "0.1.0"

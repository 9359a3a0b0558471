# SPDX-License-Identifier: GPL-2.0-only
"""Comparing: what an experiment is, how its arms are run, in whose time, how far it is."""

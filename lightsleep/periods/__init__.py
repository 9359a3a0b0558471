# SPDX-License-Identifier: GPL-2.0-only
"""Idle periods of a recording, one row each, whatever file the recording came in."""

# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons: what one holds, how it is judged, and how that is said."""

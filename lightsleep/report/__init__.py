# SPDX-License-Identifier: GPL-2.0-only
"""The report: one self-contained HTML page from one or several result files."""

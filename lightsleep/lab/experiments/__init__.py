# SPDX-License-Identifier: GPL-2.0-only
"""The experiments, one file each."""

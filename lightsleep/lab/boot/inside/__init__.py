# SPDX-License-Identifier: GPL-2.0-only
"""What runs inside a lab guest."""

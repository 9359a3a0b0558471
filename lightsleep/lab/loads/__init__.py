# SPDX-License-Identifier: GPL-2.0-only
"""What experiments run in a guest, shared by several of them."""

# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's poll_limit.c, run in user space, and what it is compared with."""

# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's idle governors, unchanged, on a CPU that is simulated in user space."""

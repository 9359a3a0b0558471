# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's policies, run in user space from the very same C files."""

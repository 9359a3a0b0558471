# SPDX-License-Identifier: GPL-2.0-only
"""Recording by BPF programs: what they do, how the kernel is given them, and what they leave."""

# SPDX-License-Identifier: GPL-2.0-only
"""The lab: boots distribution kernels in QEMU, unmodified, and runs experiments in them."""

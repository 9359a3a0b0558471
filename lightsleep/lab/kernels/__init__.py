# SPDX-License-Identifier: GPL-2.0-only
"""The kernels that guests boot: described, fetched, built, with their modules."""

# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep scan``: what idles on a machine, and how; needs only click and rich."""

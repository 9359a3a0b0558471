# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep measure``: what waking costs; needs only click and rich."""

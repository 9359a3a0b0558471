# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep watch``: how idle goes at this moment; needs only click and rich."""

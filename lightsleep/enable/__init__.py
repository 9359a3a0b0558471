# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep enable``, ``disable`` and ``status``; needs only click and rich."""

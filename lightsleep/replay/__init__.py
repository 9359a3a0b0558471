# SPDX-License-Identifier: GPL-2.0-only
"""The verb ``lightsleep replay``: what other polling policies would have made of a recording."""

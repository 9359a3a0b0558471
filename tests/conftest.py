# SPDX-License-Identifier: GPL-2.0-only
"""What all tests share."""

from hypothesis import settings

# A loaded machine is slow; that fails no test.
settings.register_profile("lightsleep", deadline=None)
settings.load_profile("lightsleep")

# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep try``: a command under several idle settings, interleaved, judged, undone."""

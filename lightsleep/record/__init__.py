# SPDX-License-Identifier: GPL-2.0-only
"""The verb ``lightsleep record``: idle periods and wakes, from the kernel's own tracepoints."""

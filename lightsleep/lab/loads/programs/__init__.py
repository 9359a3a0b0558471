# SPDX-License-Identifier: GPL-2.0-only
"""Real servers and their load generators, from the distribution, together in one guest."""

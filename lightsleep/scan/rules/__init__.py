# SPDX-License-Identifier: GPL-2.0-only
"""The lint rules, a file for each topic: small checks, then the table of rules."""

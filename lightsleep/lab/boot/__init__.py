# SPDX-License-Identifier: GPL-2.0-only
"""Booting a guest: what it is made of, QEMU, and the line to the agent in it."""

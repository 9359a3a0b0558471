# SPDX-License-Identifier: GPL-2.0-only
"""Settings of the machine, changed for a while or kept, and always with a way back."""

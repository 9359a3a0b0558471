/* SPDX-License-Identifier: GPL-2.0-only */
/* Ours, also in a kernel that has one of its own: see Kbuild. */
#include "../../../include/linux/idle_poll/program_cost.h"

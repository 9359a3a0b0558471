// SPDX-License-Identifier: GPL-2.0-only
/*
 * The CPU of machine.c, on which interrupts that wake no task have work to do. As in
 * cpuidle_enter(), that runs after the sleep, and before the timer of promotion is cancelled.
 */
#include <kernel.h>

#include "promote.h"

static void work_and_disarm(void);

#define cpuidle_promote_disarm	work_and_disarm
#include "machine.c"
#undef cpuidle_promote_disarm

static u64 work_ns;

void machine_work(u64 ns)
{
	work_ns = ns;
}

static void work_and_disarm(void)
{
	if (nobody && wake_ns <= now_ns)
		now_ns += work_ns;
	if (armed && armed->expires <= now_ns)
		armed->function(armed);
	cpuidle_promote_disarm();
}

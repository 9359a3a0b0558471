// SPDX-License-Identifier: GPL-2.0-only
/*
 * The CPU of machine.c, on which interrupts that wake no task have work to do. As in
 * cpuidle_enter(), that runs after the sleep, and before the timer of promotion is cancelled.
 * Ticks come meanwhile. Interrupts near the clock's next event have none: promote_ended()
 * takes them for it.
 */
#include <kernel.h>

#include "promote.h"

static void work_and_disarm(void);
static int work_and_reflect(struct cpuidle_device *dev, int index);

#define cpuidle_promote_disarm	work_and_disarm
#define cpuidle_promote_reflect	work_and_reflect
#include "machine.c"
#undef cpuidle_promote_disarm
#undef cpuidle_promote_reflect

static u64 work_ns;
static bool worked;	/* since the last sleep began */

void machine_work(u64 ns)
{
	work_ns = ns;
}

static bool is_near_event(void)
{
	u64 slept_ns = device.last_residency_ns;
	u64 begin_ns = now_ns - slept_ns;

	return device.next_hrtimer <= begin_ns || slept_ns >= (device.next_hrtimer - begin_ns) / 2;
}

static void work(void)
{
	if (worked || !nobody || wake_ns > now_ns || is_near_event())
		return;
	worked = true;
	now_ns += work_ns;
	pass_ticks();
}

static void work_and_disarm(void)
{
	work();
	if (armed && armed->expires <= now_ns)
		armed->function(armed);
	cpuidle_promote_disarm();
}

/* A sleep without a timer is not disarmed. */
static int work_and_reflect(struct cpuidle_device *dev, int index)
{
	work();
	worked = false;
	return cpuidle_promote_reflect(dev, index);
}

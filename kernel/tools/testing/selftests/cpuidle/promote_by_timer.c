// SPDX-License-Identifier: GPL-2.0-only
/*
 * Promotion as it was proposed in 2019, to compare promote.c with: a timer ends a
 * sleep in a shallow state after (residency + 2 x exit latency) of the next deeper
 * one, and nothing else is done. The governor takes that for a wake, chooses again,
 * and goes deeper once its history is full of those.
 *
 * Works with any driver, on any kernel, by way of the tracepoint of idle states,
 * which is passed with interrupts off on the way in. On the way out the timer is of
 * no use any more, whatever woke the CPU.
 */
#include <linux/cpuidle.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <trace/events/power.h>

static DEFINE_PER_CPU(struct hrtimer, timers);

static enum hrtimer_restart expire(struct hrtimer *timer)
{
	return HRTIMER_NORESTART;
}

/* Of states that nobody has disabled. */
static u64 timeout_ns(unsigned int index)
{
	struct cpuidle_driver *drv = cpuidle_get_driver();
	const struct cpuidle_state *next;

	if (!drv || (int)index >= drv->state_count - 1)
		return 0;
	if (drv->states[index].flags & CPUIDLE_FLAG_POLLING)
		return 0;
	next = &drv->states[index + 1];
	return next->target_residency_ns + 2 * next->exit_latency_ns;
}

static void on_idle(void *data, unsigned int index, unsigned int cpu)
{
	struct hrtimer *timer = this_cpu_ptr(&timers);
	u64 ns;

	if (index == PWR_EVENT_EXIT) {
		hrtimer_try_to_cancel(timer);
		return;
	}
	ns = timeout_ns(index);
	if (ns)
		hrtimer_start(timer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_HARD);
}

static int __init promote_by_timer_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_setup(per_cpu_ptr(&timers, cpu), expire, CLOCK_MONOTONIC,
			      HRTIMER_MODE_REL_PINNED_HARD);
	return register_trace_cpu_idle(on_idle, NULL);
}

static void __exit promote_by_timer_exit(void)
{
	int cpu;

	unregister_trace_cpu_idle(on_idle, NULL);
	tracepoint_synchronize_unregister();
	for_each_possible_cpu(cpu)
		hrtimer_cancel(per_cpu_ptr(&timers, cpu));
}

module_init(promote_by_timer_init);
module_exit(promote_by_timer_exit);

MODULE_DESCRIPTION("A timer ends sleeps in shallow idle states; governors learn from it");
MODULE_LICENSE("GPL");

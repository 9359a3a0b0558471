/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What idle_poll.c, which polls, and idle_poll_sysfs.c, its interface, know of each other.
 */
#ifndef _KERNEL_SCHED_IDLE_POLL_H
#define _KERNEL_SCHED_IDLE_POLL_H

#include <linux/idle_poll/host_contention.h>
#include <linux/idle_poll/idle_cost.h>
#include <linux/idle_poll/poll_gaps.h>
#include <linux/idle_poll/poll_limit.h>
#include <linux/idle_poll/poll_wait.h>
#include <linux/percpu.h>
#include <linux/timekeeping.h>
#include <linux/types.h>

/* No poll is longer than this, whatever a wakeup costs. */
#define POLL_MAX_NS		(10 * NSEC_PER_MSEC)

/**
 * enum outcome - how far the last pass through the idle loop has come
 * @IDLE_ACCOUNTED: there was none, or it is accounted for
 * @IDLE_CAUGHT: its wakeup came during the poll
 * @IDLE_OPEN: the poll is over, and the idle loop went on
 * @IDLE_ENDED: the idle loop was left
 */
enum outcome {
	IDLE_ACCOUNTED,
	IDLE_CAUGHT,
	IDLE_OPEN,
	IDLE_ENDED,
};

/**
 * struct idle_poll - one CPU
 * @policy: what this CPU learned about its idle periods
 * @cost: what its wakeups cost, and how many there were
 * @contention: what it has seen of its host
 * @gaps: the last poll
 * @short_waits: which waits of its polls do not wait
 * @last_ns: how long that was, 0 if the last pass did not poll
 * @outcome: how far the last pass has come
 * @forced: how the idle period is spent, if a measurement chose that
 * @learns: the idle period is spent as @policy chose
 * @deliberate: it is spent without a poll, for the experiment of @cost
 * @watching: rcu_watching() when the last pass went on
 * @halted: the CPU entered an idle state
 * @polls_anyway: the idle loop polls, whatever is decided here
 * @epoch: what is known here is from this turn of the switch; 0 when the CPU comes online, or
 *	must not poll
 * @switches: context switches of the idle task when the period began
 * @start_ns: when it began
 * @spent_ns: how long it was polled so far
 * @end_ns: when its last pass ended
 * @cycle_start_ns: when the open cycle of @cost began
 * @deliberate_halts: idle periods that were @deliberate
 * @polled_ns: time polled
 * @counted_ns: of that, time in this idle period
 * @wasted_ns: of @polled_ns, time in idle periods whose wakeup came during no poll
 */
struct idle_poll {
	struct poll_limit policy;
	struct idle_cost cost;
	struct host_contention contention;
	struct poll_gaps gaps;
	struct short_waits short_waits;
	u64 last_ns;
	enum outcome outcome;
	enum idle_wait forced;
	bool learns;
	bool deliberate;
	int watching;
	bool halted;
	bool polls_anyway;
	unsigned int epoch;
	unsigned long switches;
	u64 start_ns;
	u64 spent_ns;
	u64 end_ns;
	u64 cycle_start_ns;
	u64 deliberate_halts;
	u64 polled_ns;
	u64 counted_ns;
	u64 wasted_ns;
};

DECLARE_PER_CPU(struct idle_poll, idle_polls);

/* Goes up when the switch is turned on; written before idle_poll_enabled. */
extern unsigned int idle_poll_epoch;

/* One that never stands still, whatever the tick does. */
static inline u64 idle_poll_clock_ns(void)
{
	return ktime_get_mono_fast_ns();
}

u64 idle_poll_own_limit_ns(const struct idle_poll *ip, u64 now_ns);
void idle_poll_release_all_sources(void);

#endif /* _KERNEL_SCHED_IDLE_POLL_H */

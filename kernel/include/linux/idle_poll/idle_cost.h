/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a wakeup from halt costs, and what a missed one counts. See idle_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_IDLE_COST_H
#define _LINUX_IDLE_POLL_IDLE_COST_H

#include <linux/idle_poll/halt_cost.h>
#include <linux/idle_poll/wake_cost.h>
#include <linux/types.h>

struct workqueue_struct;

/**
 * struct idle_cost - what is known about the wakeups of one CPU
 *
 * Members are written by the worker alone, unless they say otherwise. Others only read
 * single words, so there is nothing to lock.
 *
 * @wake_cost: the experiment on its cycles; written by its own CPU, in idle
 * @polls: idle periods that were polled, without those that a measurement or a latency request
 *	had polled; by its own CPU
 * @hits: of those, the ones that ended with a wakeup; by its own CPU
 * @halts: times halted, without those of measurements; by its own CPU
 * @forced: wait like this; written by the measurement
 * @forced_waits: how often it did, up to a wakeup; by its own CPU
 * @isolated: isolated or in nohz_full=: nothing is measured here; maybe by its own CPU, too
 * @estimate: what a wakeup from halt costs the programs here
 * @estimated: which is known
 * @sought: since when the CPU has polled in most cycles without an answer or a bound, in jiffies
 * @answer_lasts: for how long an answer that ended polls counts, or its bound, in jiffies
 * @answer_jiffies: since when: it was new, or enough had been drawn to confirm it
 * @answer_count: after how many deliberate halts that was
 * @at_most_ns: where it is not known, it is no more than this; 0 without such a bound
 * @at_most_until: until these jiffies
 * @missed_until: how many cycles of each kind there were when most polls last missed, or there
 *	were none
 * @probe: when a missed wakeup counts more, so that the programs get to tell
 * @miss_cost_ns: what a missed wakeup counts
 * @weight: how many us of idle CPU time 1 us of waiting is worth in that
 * @estimate_jiffies: when @estimate was made
 * @estimate_count: after how many deliberate halts
 * @seen_polls: @polls when the worker ran last
 * @seen_hits: @hits by then
 * @seen_cycles: and cycles
 * @minute_jiffies: when a minute of evidence began
 * @minute_count: deliberate halts by then
 * @harm_until: polling did harm, wait until these jiffies
 * @harm_wait: length of the last such wait in jiffies
 */
struct idle_cost {
	struct wake_cost wake_cost;
	u64 polls;
	u64 hits;
	u64 halts;
	enum idle_wait forced;
	u64 forced_waits;
	bool isolated;
	struct wake_cost_estimate estimate;
	bool estimated;
	unsigned long sought;
	unsigned long answer_lasts;
	unsigned long answer_jiffies;
	u32 answer_count;
	u64 at_most_ns;
	unsigned long at_most_until;
	u32 missed_until[WAKE_COST_KINDS];
	struct wake_cost_probe probe;
	u64 miss_cost_ns;
	unsigned int weight;
	unsigned long estimate_jiffies;
	u32 estimate_count;
	u64 seen_polls;
	u64 seen_hits;
	u64 seen_cycles;
	unsigned long minute_jiffies;
	u32 minute_count;
	unsigned long harm_until;
	unsigned long harm_wait;
};

/**
 * struct idle_cost_ops - who polls and halts
 * @name: its folder in debugfs
 * @workers: an unbound workqueue, so that no isolated CPU does the work of measuring
 * @of: the state of one CPU
 * @wait_weight: how many us of idle CPU time 1 us of waiting is worth
 * @learns: does the price decide for how long this CPU polls now?
 * @polling_stopped: no CPU is to poll, not even to be measured again
 * @polling_paused: nor for some seconds, as the host is short of cores
 */
struct idle_cost_ops {
	const char *name;
	struct workqueue_struct *workers;
	struct idle_cost *(*of)(unsigned int cpu);
	unsigned int (*wait_weight)(void);
	bool (*learns)(unsigned int cpu);
	bool (*polling_stopped)(void);
	bool (*polling_paused)(void);
#ifdef LIGHTSLEEP_MODULE
	/** @wait_forbidden: is this CPU forbidden to poll, or to halt? The hotplug lock is held */
	bool (*wait_forbidden)(unsigned int cpu);
	/**
	 * @set_exit_latency: hears what nine of ten wakeups from halt do not exceed, in ns; 0 where
	 * polls make wakeups slower, so that no latency limit is a reason to poll
	 */
	void (*set_exit_latency)(u64 latency_ns);
#endif
};

u64 idle_cost_ns(const struct idle_cost *ic);
u64 idle_cost_wakeup_ns(const struct idle_cost *ic);
u64 idle_cost_machine_ns(void);
void idle_cost_init(struct idle_cost *ic, unsigned int cpu);
void idle_cost_start(const struct idle_cost_ops *ops);
void idle_cost_stop(void);
int idle_cost_calibrate(bool quiet);

#endif /* _LINUX_IDLE_POLL_IDLE_COST_H */

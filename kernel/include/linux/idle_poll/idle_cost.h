/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a wakeup from halt costs, and what a missed one counts. See idle_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_IDLE_COST_H
#define _LINUX_IDLE_POLL_IDLE_COST_H

#include <linux/idle_poll/halt_cost.h>
#include <linux/idle_poll/program_cost.h>
#include <linux/types.h>

struct workqueue_struct;

/**
 * struct idle_cost - what is known about the wakeups of one CPU
 *
 * Members are written by the worker alone, unless they say otherwise. Others only read
 * single words, so there is nothing to lock.
 *
 * @programs: what its programs say; evidence is written by its own CPU, in idle
 * @polls: idle periods that were polled because it pays, so without those that a measurement
 *	had polled; by its own CPU
 * @hits: of those, the ones that ended with a wakeup; by its own CPU
 * @halts: times halted, without those of measurements; by its own CPU
 * @forced: wait like this; written by the measurement
 * @forced_waits: how often it did, up to a wakeup; by its own CPU
 * @isolated: isolated or in nohz_full=: nothing is measured here; maybe by its own CPU, too
 * @miss_cost_ns: what a missed wakeup counts
 * @weight: how many us of idle CPU time 1 us of waiting is worth in that
 */
struct idle_cost {
	struct program_cost programs;
	u64 polls;
	u64 hits;
	u64 halts;
	enum idle_wait forced;
	u64 forced_waits;
	bool isolated;
	u64 miss_cost_ns;
	unsigned int weight;
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
	/**
	 * @wait_forbidden: is this CPU forbidden to poll, or to halt, or idled by somebody else?
	 * The hotplug lock is held
	 */
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
#ifdef LIGHTSLEEP_MODULE
int idle_cost_calibrate(bool quiet);
#endif

#endif /* _LINUX_IDLE_POLL_IDLE_COST_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of cpuidle-lightsleep share: the state of a CPU, and who owns what.
 *
 *	cpuidle-lightsleep.c	the idle path, CPU hotplug, the life of the module
 *	lightsleep_sysfs.c	parameters and statistics
 */
#ifndef _DRIVERS_CPUIDLE_LIGHTSLEEP_H
#define _DRIVERS_CPUIDLE_LIGHTSLEEP_H

#include <linux/cpuidle.h>
#include <linux/idle_poll/host_contention.h>
#include <linux/idle_poll/idle_cost.h>
#include <linux/idle_poll/poll_gaps.h>
#include <linux/idle_poll/poll_limit.h>
#include <linux/idle_poll/poll_wait.h>
#include <linux/percpu.h>
#include <linux/timekeeping.h>
#include <linux/types.h>

#include "host_short.h"

#define POLL_INDEX		0
#define HALT_INDEX		1

/* No poll is longer than this, whatever a wakeup costs. */
#define POLL_LIMIT_US_MAX	10000

struct device;

enum lightsleep_mode {
	MODE_ADAPTIVE,
	MODE_FIXED,
	MODE_OFF,
};

/**
 * enum idle_outcome - how the last call of an enter function ended
 * @IDLE_NONE: there was none, or it is accounted for
 * @IDLE_WOKEN: a wakeup, a function call or a device ended the poll
 * @IDLE_ABORTED: one of them came when the CPU was about to halt
 * @IDLE_EXPIRED: the poll reached its limit
 * @IDLE_HALTED: the CPU halted, and an interrupt ended that
 *
 * Where no task ran since, and no device that joins its polls had work, the idle period goes on.
 */
enum idle_outcome {
	IDLE_NONE,
	IDLE_WOKEN,
	IDLE_ABORTED,
	IDLE_EXPIRED,
	IDLE_HALTED,
};

/**
 * struct lightsleep - one CPU
 *
 * Written by its own CPU alone, in idle, unless a member says otherwise. Others only
 * read single words, so there is nothing to lock.
 *
 * @dev: the cpuidle device
 * @policy: what this CPU learned about its idle periods
 * @cost: what its wakeups cost, and how many there were
 * @contention: what it has seen of its host
 * @outcome: how the last call ended
 * @must_not_poll: the CPU was told to be idle, in the last call
 * @required: a halt was forbidden in the last call
 * @forced: a measurement chose how to wait, in the last call
 * @deliberate: this idle period halts at once, for the experiment
 * @deliberately_halted: in the open cycle, it did
 * @paused: this idle period began while the CPU found its host short of cores
 * @period_polled: the open idle period is one of those that were polled
 * @period_ns: how long the open idle period is so far
 * @period_counted_ns: of that, what is in @polled_ns
 * @seen_ns: residency that is accounted for already
 * @cycle_start_ns: when the open cycle began, 0 if none is open
 * @cycle_switches: context switches of the idle task by then
 * @gaps: the last poll
 * @short_waits: which waits of its polls do not wait
 * @switches: context switches of the idle task at the last call
 * @devices_work: how often, by then or by the end of its poll, a device that joins it had work
 * @shown: its statistics are in sysfs
 * @required_polls: as @polls of @cost, of periods that polled as a halt was forbidden
 * @required_hits: as @hits of @cost, of these
 * @deliberate_halts: halts for the experiment
 * @polled_ns: time polled, without measurements
 * @wasted_ns: of that, time that ended with a halt all the same
 */
struct lightsleep {
	struct cpuidle_device dev;
	struct poll_limit policy;
	struct idle_cost cost;
	struct host_contention contention;
	enum idle_outcome outcome;
	bool must_not_poll;
	bool required;
	bool forced;
	bool deliberate;
	bool deliberately_halted;
	bool paused;
	bool period_polled;
	u64 period_ns;
	u64 period_counted_ns;
	u64 seen_ns;
	u64 cycle_start_ns;
	unsigned long cycle_switches;
	struct poll_gaps gaps;
	struct short_waits short_waits;
	unsigned long switches;
	unsigned long devices_work;
	bool shown;
	u64 required_polls;
	u64 required_hits;
	u64 deliberate_halts;
	u64 polled_ns;
	u64 wasted_ns;
};

/*
 * The clock of all times here. It never stands still: where the TSC is not stable,
 * local_clock() may do so from one period of the tick after the last interrupt on, and a
 * CPU without the tick would go on polling.
 */
static inline u64 lightsleep_clock_ns(void)
{
	return ktime_get_mono_fast_ns();
}

/* Idle periods that were polled, without those of measurements. Any context. */
static inline u64 lightsleep_polls(const struct lightsleep *ls)
{
	return READ_ONCE(ls->cost.polls) + READ_ONCE(ls->required_polls);
}

/* And of those, the ones that ended with a wakeup. */
static inline u64 lightsleep_hits(const struct lightsleep *ls)
{
	return READ_ONCE(ls->cost.hits) + READ_ONCE(ls->required_hits);
}

/* cpuidle-lightsleep.c */
extern struct lightsleep __percpu *lightsleep;
extern struct host_short lightsleep_host;
u64 lightsleep_limit_ns(const struct lightsleep *ls, u64 now_ns);

/* lightsleep_sysfs.c */
enum lightsleep_mode lightsleep_mode(void);
u64 lightsleep_ceiling_ns(void);
u64 lightsleep_fixed_ns(const struct lightsleep *ls);
unsigned int lightsleep_wait_weight(void);
extern const struct attribute_group lightsleep_statistics;

#endif /* _DRIVERS_CPUIDLE_LIGHTSLEEP_H */

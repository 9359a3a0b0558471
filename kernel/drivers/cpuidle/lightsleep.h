/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of cpuidle-lightsleep share: the state of a CPU, and who owns what.
 *
 *	cpuidle-lightsleep.c	the idle path, CPU hotplug, the life of the module
 *	lightsleep_cost.c	what a wakeup costs, as measured and as used
 *	lightsleep_sysfs.c	parameters and statistics
 */
#ifndef _DRIVERS_CPUIDLE_LIGHTSLEEP_H
#define _DRIVERS_CPUIDLE_LIGHTSLEEP_H

#include <linux/cpuidle.h>
#include <linux/percpu.h>
#include <linux/timekeeping.h>
#include <linux/types.h>

#include "halt_cost.h"
#include "host_contention.h"
#include "poll_limit.h"
#include "wake_cost.h"

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
 * @IDLE_WOKEN: a wakeup came before the CPU halted
 * @IDLE_EXPIRED: the poll reached its limit; the idle period goes on
 * @IDLE_HALTED: the CPU halted, and an interrupt ended that
 */
enum idle_outcome {
	IDLE_NONE,
	IDLE_WOKEN,
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
 * @wake_cost: the experiment on its cycles
 * @contention: what it has seen of its host
 * @outcome: how the last call ended
 * @required: a halt was forbidden in the last call
 * @deliberate: this idle period halts at once, for the experiment
 * @period_ns: time polled so far in the open idle period
 * @seen_ns: residency that is accounted for already
 * @cycle_start_ns: when the open cycle began, 0 if none is open
 * @cycle_switches: context switches of the idle task by then
 * @poll_start_ns: when the last poll began
 * @last_look_ns: when it looked at the clock last
 * @gap_ns: time that was taken from it by then
 * @softirqs_ran: softirqs that may take long ran meanwhile
 * @steal_clock_ns: what the hypervisor's own account of stolen time said last
 * @switches: context switches of the idle task when the last poll expired
 * @shown: its statistics are in sysfs
 * @left_alone: isolated or in nohz_full=: nothing is measured here; written by the worker
 * @forced: wait like this; written by the measurement
 * @estimate: what a wakeup from halt costs the programs here; written by the worker
 * @estimated: which is known; written by the worker
 * @price_ns: what a missed wakeup counts; written by the worker
 * @estimate_jiffies: when @estimate was made; worker only
 * @estimate_count: after how many deliberate halts; worker only
 * @seen_polls: @polls when the worker ran last; worker only
 * @seen_hits: @hits by then; worker only
 * @minute_jiffies: when a minute of evidence began; worker only
 * @minute_count: deliberate halts by then; worker only
 * @harm_until: polling did harm, wait until these jiffies; worker only
 * @harm_wait: length of the last such wait in jiffies; worker only
 * @polls: polls begun
 * @hits: polls that ended with a wakeup
 * @halts: times halted
 * @deliberate_halts: of these, for the experiment
 * @polled_ns: time polled
 * @wasted_ns: of that, time that ended with a halt all the same
 */
struct lightsleep {
	struct cpuidle_device dev;
	struct poll_limit policy;
	struct wake_cost wake_cost;
	struct host_contention contention;
	enum idle_outcome outcome;
	bool required;
	bool deliberate;
	u64 period_ns;
	u64 seen_ns;
	u64 cycle_start_ns;
	unsigned long cycle_switches;
	u64 poll_start_ns;
	u64 last_look_ns;
	u64 gap_ns;
	bool softirqs_ran;
	u64 steal_clock_ns;
	unsigned long switches;
	bool shown;
	bool left_alone;
	enum idle_wait forced;
	struct wake_cost_estimate estimate;
	bool estimated;
	u64 price_ns;
	unsigned long estimate_jiffies;
	u32 estimate_count;
	u64 seen_polls;
	u64 seen_hits;
	unsigned long minute_jiffies;
	u32 minute_count;
	unsigned long harm_until;
	unsigned long harm_wait;
	u64 polls;
	u64 hits;
	u64 halts;
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

/* cpuidle-lightsleep.c */
extern struct lightsleep __percpu *lightsleep;
u64 lightsleep_limit_ns(const struct lightsleep *ls, u64 now_ns);
void lightsleep_set_exit_latency(u64 latency_ns);
bool lightsleep_halt_forbidden(void);

/* lightsleep_cost.c */
u64 lightsleep_halt_cost_ns(const struct lightsleep *ls);
void lightsleep_init_cost(struct lightsleep *ls);
void lightsleep_start_costs(void);
void lightsleep_stop_costs(void);
int lightsleep_calibrate(bool quiet);
u64 lightsleep_machine_cost_ns(void);

/* lightsleep_sysfs.c */
enum lightsleep_mode lightsleep_mode(void);
u64 lightsleep_ceiling_ns(void);
u64 lightsleep_fixed_ns(const struct lightsleep *ls);
unsigned int lightsleep_wait_weight(void);
extern const struct attribute_group lightsleep_statistics;

#endif /* _DRIVERS_CPUIDLE_LIGHTSLEEP_H */

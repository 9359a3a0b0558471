/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What do the measurements of this machine say together? See machine_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_MACHINE_COST_H
#define _LINUX_IDLE_POLL_MACHINE_COST_H

#include <linux/idle_poll/halt_cost.h>
#include <linux/types.h>

#define MACHINE_COST_RESULTS	5	/* which of the latest count */
#define MACHINE_COST_NOTHING_NS	2000	/* a halt that costs no more is no reason to poll */

/**
 * struct machine_cost - what is known about the wakeups of this machine
 *
 * Who adds to it excludes others; single words may be read meanwhile.
 *
 * @cost_ns: what a wakeup from halt costs, or is assumed to; 0 before the first measurement
 * @results: measurements with a result; while there is none, @cost_ns is assumed
 * @bound_ns: what the cost is at most, by the latest measurement; 0 if that has a result, or no
 *	bound
 * @results_ns: the latest results, as a ring
 * @refuted: how many of the latest measurements in a row have a bound below @cost_ns, or one at
 *	all while @harmful
 * @harmful: before there was a result, polls made wakeups slower, which is not refuted
 */
struct machine_cost {
	u64 cost_ns;
	unsigned int results;
	u64 bound_ns;
	u64 results_ns[MACHINE_COST_RESULTS];
	unsigned int refuted;
	bool harmful;
#ifdef LIGHTSLEEP_MODULE
	/** @worst_ns: what nine of ten wakeups from halt do not exceed, or are assumed not to */
	u64 worst_ns;
	/** @worst_results_ns: the same of the latest results, as a ring */
	u64 worst_results_ns[MACHINE_COST_RESULTS];
#endif
};

int machine_cost_says(const struct halt_cost measured[HALT_COST_SLEEPS], u64 *cost_ns,
		      bool *is_bound);
int machine_cost_add(struct machine_cost *mc, const struct halt_cost measured[HALT_COST_SLEEPS]);
void machine_cost_assume(struct machine_cost *mc);

#endif /* _LINUX_IDLE_POLL_MACHINE_COST_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What does a wakeup from halt cost on this machine? See halt_cost.c.
 */
#ifndef _DRIVERS_CPUIDLE_HALT_COST_H
#define _DRIVERS_CPUIDLE_HALT_COST_H

#include <linux/types.h>

#include "wake_cost.h"

/**
 * enum idle_wait - how an idle CPU waits for its wakeup
 * @WAIT_FREE: as it likes
 * @WAIT_HALT: it halts at once
 * @WAIT_POLL: it polls, however long that takes
 */
enum idle_wait {
	WAIT_FREE,
	WAIT_HALT,
	WAIT_POLL,
};

/**
 * struct halt_cost_ops - what the measurement needs from the idle driver
 * @force: make @cpu wait in this way from its next idle entry on
 * @waits: how many waits of this kind @cpu has ended so far
 */
struct halt_cost_ops {
	void (*force)(unsigned int cpu, enum idle_wait how);
	u64 (*waits)(unsigned int cpu, enum idle_wait how);
};

/* The measurement is repeated with sleeps of these lengths. */
#define HALT_COST_SLEEPS	3
/* For sleeps of 100 us and more, polling and halting compete. */
#define HALT_COST_TYPICAL	1

/**
 * struct halt_cost - what a wakeup costs after sleeps of one length
 * @work_ns: each side works for so long before it answers, while the other sleeps
 * @slept_ns: how long the CPUs slept where they polled: work and wakeup of the other side
 * @estimate: a wakeup from halt less one from polling
 * @worst_ns: nine of ten wakeups from halt take no more than this above one from polling
 */
struct halt_cost {
	u64 work_ns;
	u64 slept_ns;
	struct wake_cost_estimate estimate;
	u64 worst_ns;
};

int halt_cost_measure(const struct halt_cost_ops *ops, struct halt_cost costs[HALT_COST_SLEEPS]);

/**
 * halt_cost_typical - the one figure that stands for all
 * @costs: by length of sleep
 *
 * Return: the cost in ns; 0 is a valid one.
 */
static inline u64 halt_cost_typical(const struct halt_cost costs[HALT_COST_SLEEPS])
{
	s64 cost_ns = costs[HALT_COST_TYPICAL].estimate.cost_ns;

	return cost_ns > 0 ? cost_ns : 0;
}

#endif /* _DRIVERS_CPUIDLE_HALT_COST_H */

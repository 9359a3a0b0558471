/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What does a wakeup from halt cost on this machine? See halt_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_HALT_COST_H
#define _LINUX_IDLE_POLL_HALT_COST_H

#include <linux/idle_poll/wake_cost.h>
#include <linux/types.h>

/**
 * enum idle_wait - how an idle CPU waits for its wakeup
 * @WAIT_FREE: as it likes
 * @WAIT_HALT: it halts at once
 * @WAIT_POLL: it polls, for as long as it may at most
 */
enum idle_wait {
	WAIT_FREE,
	WAIT_HALT,
	WAIT_POLL,
};

/**
 * struct halt_cost_ops - what the measurement needs from whoever polls and halts
 * @force: make @cpu wait in this way from its next idle entry on
 * @waits: how many waits of the kind that was forced @cpu has ended so far
 * @usable: may @cpu, which is online, be measured? The hotplug lock is held
 *
 * The first two may be called while @cpu is offline, or comes or goes.
 */
struct halt_cost_ops {
	void (*force)(unsigned int cpu, enum idle_wait how);
	u64 (*waits)(unsigned int cpu);
	bool (*usable)(unsigned int cpu);
};

/* The measurement is repeated with sleeps of these lengths. */
#define HALT_COST_SLEEPS	3

/**
 * struct halt_cost - what a wakeup costs after sleeps of one length
 * @slept_ns: how long the CPUs slept where they polled: work and wakeup of the other side
 * @estimate: a wakeup from halt less one from polling
 * @worst_ns: what nine of ten wakeups from halt take more than the median one from polling, by
 *	half of a round trip
 */
struct halt_cost {
	u64 slept_ns;
	struct wake_cost_estimate estimate;
	u64 worst_ns;
};

bool halt_cost_may_use(unsigned int cpu);
int halt_cost_measure(const struct halt_cost_ops *ops, struct halt_cost costs[HALT_COST_SLEEPS]);

#endif /* _LINUX_IDLE_POLL_HALT_COST_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What does a wake from halt cost on this machine? See halt_cost.c.
 */
#ifndef _DRIVERS_CPUIDLE_HALT_COST_H
#define _DRIVERS_CPUIDLE_HALT_COST_H

#include <linux/types.h>

/**
 * enum idle_wait - how an idle CPU waits for its wake
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
 * @last: the way in which @cpu waited last, or waits now
 * @waits: is @cpu waiting at this moment?
 */
struct halt_cost_ops {
	void (*force)(unsigned int cpu, enum idle_wait how);
	enum idle_wait (*last)(unsigned int cpu);
	bool (*waits)(unsigned int cpu);
};

int halt_cost_measure(const struct halt_cost_ops *ops, u64 *cost_ns);

#endif /* _DRIVERS_CPUIDLE_HALT_COST_H */

/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _DRIVERS_CPUIDLE_LATENCY_WATCH_H
#define _DRIVERS_CPUIDLE_LATENCY_WATCH_H

#include <linux/types.h>

/**
 * struct idle_period - the last time that a CPU was idle
 * @state: index of the idle state, -1 if none was entered yet
 * @entered_ns: when it was entered, CLOCK_MONOTONIC
 * @left_ns: when it was left, 0 if the CPU is still in it
 */
struct idle_period {
	int state;
	u64 entered_ns;
	u64 left_ns;
};

int idle_watch_init(void);
void idle_watch_exit(void);

void idle_watch_begin(unsigned int cpu);
void idle_watch_end(void);
struct idle_period idle_watch_period(void);

bool idle_watch_knows_wakes(void);
void idle_watch_wake_begin(unsigned int src);
bool idle_watch_wake_end(void);

#endif /* _DRIVERS_CPUIDLE_LATENCY_WATCH_H */

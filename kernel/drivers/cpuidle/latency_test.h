/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _DRIVERS_CPUIDLE_LATENCY_TEST_H
#define _DRIVERS_CPUIDLE_LATENCY_TEST_H

#include <linux/types.h>

/* For wake sources: a wakeup is about to be sent; it has arrived. */
void latency_launch(u64 launch_ns);
void latency_arrived(u64 wake_ns, const char *path);

/* The wake source that is a driver. */
int latency_device_init(void);
void latency_device_exit(void);
int device_begin(unsigned int dest);
int device_launch(u64 due_ns, u64 now_ns);
void device_end(void);

#endif /* _DRIVERS_CPUIDLE_LATENCY_TEST_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Is the host short of cores for this guest as a whole? See host_short.c.
 */
#ifndef _DRIVERS_CPUIDLE_HOST_SHORT_H
#define _DRIVERS_CPUIDLE_HOST_SHORT_H

#include <linux/compiler.h>
#include <linux/types.h>

/**
 * struct host_short - what the CPUs of a guest found out about their host together
 * @until_ns: before this time the host counts as short of cores
 */
struct host_short {
	u64 until_ns;
};

void host_short_judge(struct host_short *hs, u64 now_ns, unsigned int contended,
		      unsigned int cpus);

/**
 * host_is_short - is the host short of cores for this guest?
 * @hs: what its CPUs found out
 * @now_ns: the time, of the same clock as everywhere here
 *
 * Return: true if no CPU of the guest is to poll because a latency request demands it.
 */
static inline bool host_is_short(const struct host_short *hs, u64 now_ns)
{
	return now_ns < READ_ONCE(hs->until_ns);
}

#endif /* _DRIVERS_CPUIDLE_HOST_SHORT_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long may a wakeup of a CPU take, as all latency QoS requests together say?
 *
 * Governors ask cpuidle_governor_latency_req(), which modules cannot call, and the
 * functions that read a limit are not exported either. But every request holds a
 * pointer to the constraints that it is part of, and these hold the limit that
 * follows from all. So we add a request that asks for nothing.
 *
 * One kind of limit is out of reach: that of /dev/cpu_wakeup_latency, since 6.19. Governors heed
 * it, so it holds in suspend to idle, where the driver does as they say.
 */
#ifndef _DRIVERS_CPUIDLE_LATENCY_QOS_H
#define _DRIVERS_CPUIDLE_LATENCY_QOS_H

#include <linux/cpu.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/minmax.h>
#include <linux/pm_qos.h>

static inline void latency_qos_watch(struct pm_qos_request *onlooker)
{
	cpu_latency_qos_add_request(onlooker, PM_QOS_DEFAULT_VALUE);
}

/* Nobody may call latency_qos_limit_ns() any more. */
static inline void latency_qos_unwatch(struct pm_qos_request *onlooker)
{
	cpu_latency_qos_remove_request(onlooker);
}

/*
 * The limit for @cpu, its own (pm_qos_resume_latency_us) included, that of a wakeup from suspend
 * left out.
 *
 * Context: any, while @cpu is online, which keeps its device. Words are read that
 * others may write meanwhile; a writer of the limit of all CPUs wakes them afterwards.
 */
static inline s64 latency_qos_limit_ns(const struct pm_qos_request *onlooker, unsigned int cpu)
{
	s32 limit_us = READ_ONCE(onlooker->qos->target_value);
#ifdef CONFIG_PM
	const struct dev_pm_qos *own = READ_ONCE(get_cpu_device(cpu)->power.qos);

	if (!IS_ERR_OR_NULL(own))
		limit_us = min(limit_us, READ_ONCE(own->resume_latency.target_value));
#endif
	return (s64)limit_us * NSEC_PER_USEC;
}

#endif /* _DRIVERS_CPUIDLE_LATENCY_QOS_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * cpuidle-lightsleep as if there were no poll sources, to compare with: what do
 * they cost where none is registered?
 */
#define _LINUX_POLL_SOURCE_H
#define _LIGHTSLEEP_COMPAT_POLL_SOURCE_H
#define _DRIVERS_CPUIDLE_POLL_SOURCE_H

#include <linux/types.h>

/* arm64 asks for it where it waits. */
static inline bool poll_sources_here(void)
{
	return false;
}

static inline void poll_sources_start(void)
{
}

static inline bool poll_sources_peek(void)
{
	return false;
}

static inline bool poll_sources_stop(void)
{
	return false;
}

static inline bool poll_sources_release(bool halts)
{
	return false;
}

static inline unsigned long poll_sources_work(void)
{
	return 0;
}

static inline void poll_source_init(void)
{
}

static inline void poll_source_exit(void)
{
}

#include "../../../../drivers/cpuidle/cpuidle-lightsleep.c"
#include "../../../../drivers/cpuidle/halt_cost.c"
#include "../../../../drivers/cpuidle/host_contention.c"
#include "../../../../drivers/cpuidle/host_short.c"
#include "../../../../drivers/cpuidle/idle_cost.c"
#include "../../../../drivers/cpuidle/lightsleep_sysfs.c"
#include "../../../../drivers/cpuidle/machine_cost.c"
#include "../../../../drivers/cpuidle/poll_limit.c"
#include "../../../../drivers/cpuidle/program_cost.c"
#include "../../../../drivers/cpuidle/wake_cost.c"

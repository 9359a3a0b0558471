/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A kernel of our series with CONFIG_POLL_SOURCE has poll sources of its own, and its idle
 * loop looks at them. Drivers register theirs there. For an idle driver that is a module,
 * there are none to look at. In any other kernel, the module cpuidle_lightsleep has
 * poll_source.c, and everything that the option brings.
 */
#ifndef _LIGHTSLEEP_COMPAT_POLL_SOURCE_H
#define _LIGHTSLEEP_COMPAT_POLL_SOURCE_H

#ifdef CONFIG_POLL_SOURCE
#undef CONFIG_POLL_SOURCE
#include_next <linux/poll_source.h>
#define CONFIG_POLL_SOURCE 1
/* The kernel may be of another version, with another parameter. */
static inline bool poll_sources_none_to_release(bool halts) { return false; }
#define poll_sources_release poll_sources_none_to_release
/* The idle loop's own code has prepared its sources. An older header has a stub of that name. */
static inline void poll_source_none_to_init(void) { }
#define poll_source_init poll_source_none_to_init
static inline void poll_source_exit(void) { }
static inline unsigned long poll_sources_work(void) { return 0; }
static inline void poll_source_worked(const struct poll_source *source) { }
#else
#define CONFIG_POLL_SOURCE 1
/* Ours, also where a kernel of the series without the option (PREEMPT_RT) has a header. */
#include "../../include/linux/poll_source.h"
#undef CONFIG_POLL_SOURCE
void poll_source_exit(void);
void poll_source_worked(const struct poll_source *source);
DECLARE_PER_CPU(unsigned long, poll_sources_served);

/* How often have sources of this CPU had work? Preemption is off. */
static inline unsigned long poll_sources_work(void)
{
	return __this_cpu_read(poll_sources_served);
}
#endif

#endif /* _LIGHTSLEEP_COMPAT_POLL_SOURCE_H */

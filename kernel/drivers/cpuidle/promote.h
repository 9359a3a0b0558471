/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Promotion out of shallow idle states: what the core of cpuidle calls. See promote.c.
 */
#ifndef _DRIVERS_CPUIDLE_PROMOTE_H
#define _DRIVERS_CPUIDLE_PROMOTE_H

#include <linux/cpuidle.h>

#ifdef CONFIG_CPU_IDLE_PROMOTE
/* Whether CPUs leave a state if it lasts: its driver asks for that, and nothing forbids it. */
static inline bool cpuidle_promote_leaves(const struct cpuidle_state *state)
{
	return state->flags & CPUIDLE_FLAG_PROMOTE &&
	       !(state->flags & (CPUIDLE_FLAG_POLLING | CPUIDLE_FLAG_TIMER_STOP |
				 CPUIDLE_FLAG_COUPLED));
}

int cpuidle_promote_select(struct cpuidle_device *dev, bool *stop_tick);
int cpuidle_promote_raise(struct cpuidle_device *dev, int index);
bool cpuidle_promote_arm(struct cpuidle_device *dev, int index);
void cpuidle_promote_disarm(void);
int cpuidle_promote_reflect(struct cpuidle_device *dev, int index);
void cpuidle_promote_update(struct cpuidle_device *dev);
#else
static inline int cpuidle_promote_select(struct cpuidle_device *dev, bool *stop_tick)
{
	return -1;
}

static inline int cpuidle_promote_raise(struct cpuidle_device *dev, int index)
{
	return index;
}

static inline bool cpuidle_promote_arm(struct cpuidle_device *dev, int index)
{
	return false;
}

static inline void cpuidle_promote_disarm(void) { }

static inline int cpuidle_promote_reflect(struct cpuidle_device *dev, int index)
{
	return index;
}

static inline void cpuidle_promote_update(struct cpuidle_device *dev) { }
#endif

#endif /* _DRIVERS_CPUIDLE_PROMOTE_H */

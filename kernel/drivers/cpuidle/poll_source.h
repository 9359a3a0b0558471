/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What poll_source.c and poll_source_budget.c call of each other.
 */
#ifndef _DRIVERS_CPUIDLE_POLL_SOURCE_H
#define _DRIVERS_CPUIDLE_POLL_SOURCE_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/smp.h>
#include <linux/types.h>

struct poll_source;

/* All sources, guarded by the mutex. A call runs on the CPU of the source. */
extern struct mutex poll_source_mutex;
extern struct list_head poll_source_registry;
void poll_source_call(struct poll_source *source, smp_call_func_t func);

/* The parameter peek_budget_ns. */
extern unsigned int poll_source_budget_ns;

u64 poll_source_charge(struct poll_source *source, u64 start_ns);
#ifdef LIGHTSLEEP_MODULE
void poll_source_budget_exit(void);
#endif

#endif /* _DRIVERS_CPUIDLE_POLL_SOURCE_H */

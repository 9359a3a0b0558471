/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Polling before an idle CPU sets out to halt. See kernel/sched/idle_poll.c.
 */
#ifndef _LINUX_IDLE_POLL_H
#define _LINUX_IDLE_POLL_H

#include <linux/compiler.h>
#include <linux/types.h>

#include <asm/barrier.h>

#ifdef CONFIG_IDLE_POLL
extern bool idle_poll_enabled;

void __idle_poll(int cpu, bool polls_anyway);
void __idle_poll_end(void);

/**
 * idle_poll - poll at the beginning of a pass through the idle loop
 * @cpu: this CPU
 * @polls_anyway: the idle loop is told never to halt
 *
 * Context: the idle loop, after tick_nohz_idle_enter(), with the polling flag set.
 * Interrupts on, preemption off, RCU watching.
 * Return: true if the pass is to end with idle_poll_end().
 */
static __always_inline bool idle_poll(int cpu, bool polls_anyway)
{
	/* With the switch, the CPU also sees that it was off meanwhile; see turn_switch(). */
	if (!smp_load_acquire(&idle_poll_enabled))
		return false;
	__idle_poll(cpu, polls_anyway);
	return true;
}

/**
 * idle_poll_end - note the end of a pass through the idle loop
 * @polled: what idle_poll() returned in this pass, whatever the switch says now
 *
 * Context: as idle_poll(), after tick_nohz_idle_exit().
 */
static __always_inline void idle_poll_end(bool polled)
{
	if (polled)
		__idle_poll_end();
}

/**
 * idle_poll_is_on - is the switch on?
 *
 * A poll that has begun goes on after it is off.
 */
static __always_inline bool idle_poll_is_on(void)
{
	return READ_ONCE(idle_poll_enabled);
}
#else
static inline bool idle_poll(int cpu, bool polls_anyway) { return false; }
static inline void idle_poll_end(bool polled) { }
#endif

#endif /* _LINUX_IDLE_POLL_H */

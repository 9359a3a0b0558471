/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a CPU that polls spends the time between two looks.
 *
 * On arm64 it sleeps until somebody writes to the flags of its task, which is
 * what a wake does (cpu_poll_relax()), and then each look is also one at the
 * clock. Poll sources are elsewhere in memory: a CPU that polls some, and any CPU of
 * the other architectures, can only look again soon.
 */
#ifndef _DRIVERS_CPUIDLE_POLL_WAIT_H
#define _DRIVERS_CPUIDLE_POLL_WAIT_H

#include <linux/poll_source.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <asm/barrier.h>

#ifdef CONFIG_ARM64
/* Looks between two looks at the clock. */
#define LOOKS_PER_CLOCK		1

/* Waits a moment, for @for_ns at most; interrupts are on. */
static __always_inline void poll_wait(u64 for_ns)
{
	unsigned long *flags = &current_thread_info()->flags;
	unsigned long seen = READ_ONCE(*flags);

	if (poll_sources_here() || seen & _TIF_NEED_RESCHED)
		cpu_relax();
	else
		cpu_poll_relax(flags, seen, for_ns);
}
#else
/* Looks between two looks at the clock: keeps the clock cheap. */
#define LOOKS_PER_CLOCK		16

static __always_inline void poll_wait(u64 for_ns)
{
	cpu_relax();
}
#endif

#endif /* _DRIVERS_CPUIDLE_POLL_WAIT_H */

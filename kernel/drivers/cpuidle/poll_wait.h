/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a CPU polls for a wakeup, and spends the time between two looks.
 *
 * Some architectures have a wait that a store to the flags of the task ends, as a wakeup is
 * one (cpu_poll_relax(): WFE or WFET on arm64). Each look is then also one at the clock. Others
 * look again soon. So does a CPU that has poll sources, which look at other memory.
 */
#ifndef _DRIVERS_CPUIDLE_POLL_WAIT_H
#define _DRIVERS_CPUIDLE_POLL_WAIT_H

#include <linux/minmax.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <asm/barrier.h>

#include "poll_gaps.h"

/* Without an architecture's wait for a store that is bounded in time. */
#ifndef cpu_poll_relax
#define cpu_poll_relax(ptr, val, timeout_ns)				\
do {									\
	(void)(ptr);							\
	(void)(val);							\
	(void)(timeout_ns);						\
	cpu_relax();							\
} while (0)
#define SMP_TIMEOUT_POLL_COUNT	16
#endif

/* Looks between two looks at the clock: keeps the clock cheap, where a look is. */
#define LOOKS_PER_CLOCK		min(16, SMP_TIMEOUT_POLL_COUNT)

/*
 * Waits a moment, until a wakeup or for @for_ns at most; @sources: the poll looks at more than
 * the flags. Idle task, interrupts on.
 */
static __always_inline void wait_for_wakeup(u64 for_ns, bool sources)
{
	unsigned long *flags = &current_thread_info()->flags;
	unsigned long seen = READ_ONCE(*flags);

	if (sources || seen & _TIF_NEED_RESCHED)
		cpu_relax();
	else
		cpu_poll_relax(flags, seen, for_ns);
}

/**
 * poll_for_wakeup - poll until a wakeup, or until a time
 * @gaps: of this poll, which has begun
 * @end_ns: when the poll ends
 * @clock_ns: the clock of these times
 * @sources_here: has this CPU poll sources?
 * @peek_sources: has one of them work?
 *
 * Context: idle task, preemption off, interrupts on.
 *
 * Return: true if there was a wakeup, or a source has work.
 */
static __always_inline bool poll_for_wakeup(struct poll_gaps *gaps, u64 end_ns,
					    u64 (*clock_ns)(void), bool (*sources_here)(void),
					    bool (*peek_sources)(void))
{
	unsigned int looks = 0;

	while (!need_resched()) {
		bool sources = sources_here();

		wait_for_wakeup(min(end_ns - gaps->look_ns, HOST_CONTENTION_GAP_NS / 2), sources);
		if (peek_sources())
			return true;
		/* A look at a device may take long, and reads a clock anyway. */
		if (++looks < LOOKS_PER_CLOCK && !sources)
			continue;
		looks = 0;
		poll_gaps_look(gaps, clock_ns());
		if (gaps->look_ns >= end_ns)
			return false;
	}
	return true;
}

#endif /* _DRIVERS_CPUIDLE_POLL_WAIT_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a CPU polls for a wakeup, and spends the time between two looks.
 *
 * Some architectures have a wait that a store to the flags of the task ends, as a wakeup is
 * one (cpu_poll_relax(): WFE or WFET on arm64). Each look is then also one at the clock. Others
 * look again soon. So does a CPU that has poll sources, which look at other memory.
 *
 * Such a wait may end at once, each time: WFE needs the event stream and as much time as one of
 * its periods, and an emulator may run it as a nop (QEMU's TCG does). A CPU would then read the
 * clock all the time, and where the clock is emulated as well, that takes a lock from CPUs that
 * have work. So after two short waits in a row, the poll goes on without them, and reads the
 * clock seldom. Waits that wait are hardly ever short twice in a row: the event stream ends one
 * at any time, and the next one a period later.
 */
#ifndef _LINUX_IDLE_POLL_POLL_WAIT_H
#define _LINUX_IDLE_POLL_POLL_WAIT_H

#include <linux/idle_poll/poll_gaps.h>
#include <linux/minmax.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <asm/barrier.h>

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
#define HAS_WAIT		(LOOKS_PER_CLOCK == 1)

/* A wait is short if the clock says so, and so many in a row tell that no wait waits. */
#define SHORT_WAIT_NS		10000ULL
#define SHORT_WAITS		2

/* Without waits: as many looks as poll_idle() takes, and twice as many while that is short. */
#define SPINS_PER_CLOCK		200
#define SPINS_PER_CLOCK_MAX	1600

/**
 * struct poll_pace - how often a poll reads the clock
 * @looks_per_clock: looks between two readings
 * @short_waits: so many waits in a row were short; SHORT_WAITS: the poll spins from then on
 */
struct poll_pace {
	unsigned int looks_per_clock;
	unsigned int short_waits;
};

static __always_inline bool poll_spins(const struct poll_pace *pace)
{
	return pace->short_waits == SHORT_WAITS;
}

/* The time since the last reading @was_short. */
static __always_inline void poll_pace_adapt(struct poll_pace *pace, bool was_short)
{
	if (!HAS_WAIT)
		return;
	if (poll_spins(pace)) {
		if (was_short && pace->looks_per_clock < SPINS_PER_CLOCK_MAX)
			pace->looks_per_clock *= 2;
		return;
	}
	pace->short_waits = was_short ? pace->short_waits + 1 : 0;
	if (poll_spins(pace))
		pace->looks_per_clock = SPINS_PER_CLOCK;
}

/* Waits a moment, until a wakeup or for @for_ns at most. Idle task, interrupts on. */
static __always_inline void wait_for_wakeup(u64 for_ns)
{
	unsigned long *flags = &current_thread_info()->flags;
	unsigned long seen = READ_ONCE(*flags);

	if (seen & _TIF_NEED_RESCHED)
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
	struct poll_pace pace = { .looks_per_clock = LOOKS_PER_CLOCK };
	unsigned int looks = 0;

	while (!need_resched()) {
		bool sources = sources_here();
		u64 now_ns;

		if (sources || poll_spins(&pace))
			cpu_relax();
		else
			wait_for_wakeup(min(end_ns - gaps->look_ns, HOST_CONTENTION_GAP_NS / 2));
		if (peek_sources())
			return true;
		/* A look at a device may take long, and reads a clock anyway. */
		if (++looks < pace.looks_per_clock && !sources)
			continue;
		looks = 0;
		now_ns = clock_ns();
		poll_pace_adapt(&pace, now_ns - gaps->look_ns < SHORT_WAIT_NS);
		poll_gaps_look(gaps, now_ns);
		if (gaps->look_ns >= end_ns)
			return false;
	}
	return true;
}

#endif /* _LINUX_IDLE_POLL_POLL_WAIT_H */

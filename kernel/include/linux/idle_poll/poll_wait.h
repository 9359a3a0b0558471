/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a CPU polls for a wakeup, and spends the time between two looks.
 *
 * Some architectures have a wait that ends with a store to the flags of the task, such as a
 * wakeup (cpu_poll_relax(): WFE or WFET on arm64). There, the CPU reads the clock after each
 * wait. On others, it looks again soon, and so does a CPU with poll sources, whose devices
 * store elsewhere. Such looks between two readings of the clock are called a spin.
 *
 * A reading of the clock may take tens of nanoseconds, as a look does, or microseconds. On x86
 * without a usable TSC, the clock is a register of the chipset (HPET, ACPI PM timer), which is
 * read under a lock, or by an exit to the hypervisor. So each poll measures one reading, and its
 * spins last eight times as long, or 16 looks where that is longer. They do not outlast the poll.
 *
 * Such a wait may end at once, each time. WFE needs the event stream, and as much time as one
 * of its periods. An emulator may run WFE and WFET as nops (QEMU's TCG does). The CPU would
 * then read the clock all the time. Where the clock is emulated, each reading takes a lock
 * from CPUs that have work.
 *
 * A wait is short if it ends within 10 us, before its time, and without a wakeup. After four
 * short waits in a row, in one poll or several, the CPU takes it that no wait waits which may
 * last for as long as the first of them, or for less. In place of these it spins for 10 us at a
 * time, until 64 more polls are over. Then it tries them again.
 *
 * Where waits work, the event stream and interrupts may cut one short, but hardly four in a row.
 * If they do, 64 polls cost energy, and no time.
 *
 * On POWER, a thread of a core has a priority, and all of a poll runs at a low one (spin_begin()):
 * its siblings, which have work, come first. An interrupt leaves it at the usual one, so it is
 * lowered again after each reading of the clock.
 */
#ifndef _LINUX_IDLE_POLL_POLL_WAIT_H
#define _LINUX_IDLE_POLL_POLL_WAIT_H

#include <linux/idle_poll/poll_gaps.h>
#include <linux/minmax.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <asm/barrier.h>

#ifdef cpu_poll_relax
#define POLL_WAITS			(SMP_TIMEOUT_POLL_COUNT == 1)
#else
#define POLL_WAITS			false
#endif

#define POLL_SHORT_WAIT_NS		10000ULL
#define POLL_SHORT_WAITS		4
#define POLL_SHORT_WAITS_POLLS		64

/* Looks of a spin; in place of waits, at least as many as poll_idle() takes. */
#define POLL_SPIN_LOOKS			(POLL_WAITS ? 200ULL : 16ULL)
#define POLL_SPIN_LOOKS_MAX		1600ULL
/* Without waits, a spin is to last for so many readings of the clock. */
#define POLL_SPIN_READINGS		8

/**
 * struct short_waits - which waits do not wait, on one CPU
 * @for_ns: those that may last for so long, or for less
 * @polls: the CPU does without them in so many more polls
 * @count: so many waits in a row were short
 * @first_ns: the first of them might have lasted for so long
 */
struct short_waits {
	u64 for_ns;
	unsigned int polls;
	unsigned int count;
	u64 first_ns;
};

/**
 * struct poll_pace - how one poll goes on
 * @looks_per_clock: looks between two readings of the clock: 1 after a wait, more in a spin
 * @spins: without waits
 * @spin_ns: for how long a spin is to last; 0: not known yet
 */
struct poll_pace {
	unsigned int looks_per_clock;
	bool spins;
	u64 spin_ns;
};

static __always_inline void short_waits_begin(struct short_waits *known)
{
	if (known->polls)
		known->polls--;
	else
		known->for_ns = 0;
}

/* The next wait may last for @for_ns: will it wait at all? If not, this poll spins from now on. */
static __always_inline void poll_pace_choose(struct poll_pace *pace,
					     const struct short_waits *known, u64 for_ns)
{
	if (!pace->spins && for_ns <= known->for_ns) {
		pace->spins = true;
		pace->looks_per_clock = POLL_SPIN_LOOKS;
		pace->spin_ns = POLL_SHORT_WAIT_NS;
	}
}

/*
 * The clock was read, and right after again: another look at it. It may stand still, or step back
 * by a little.
 */
static __always_inline void poll_pace_measure(struct poll_pace *pace, struct poll_gaps *gaps,
					      u64 now_ns)
{
	u64 reading_ns = now_ns > gaps->look_ns ? now_ns - gaps->look_ns : 1;

	pace->spin_ns = POLL_SPIN_READINGS * reading_ns;
	poll_gaps_look(gaps, now_ns);
}

/* A spin took @took_ns, and as long as @left_ns may be left of the poll. */
static __always_inline void poll_pace_spin(struct poll_pace *pace, u64 took_ns, u64 left_ns)
{
	u64 looks = pace->looks_per_clock * min(pace->spin_ns, left_ns) / max(took_ns, 1ULL);

	pace->looks_per_clock = clamp(looks, POLL_SPIN_LOOKS, POLL_SPIN_LOOKS_MAX);
}

/* The CPU has waited, which might have taken @for_ns, and took @took_ns. */
static __always_inline void short_waits_count(struct short_waits *known, u64 for_ns, u64 took_ns)
{
	if (took_ns >= min(for_ns, POLL_SHORT_WAIT_NS)) {
		known->count = 0;
		return;
	}
	if (!known->count++)
		known->first_ns = for_ns;
	if (known->count == POLL_SHORT_WAITS) {
		known->for_ns = max(known->for_ns, known->first_ns);
		known->polls = POLL_SHORT_WAITS_POLLS;
		known->count = 0;
	}
}

/* Waits for a wakeup, which is a store, or for @for_ns at most. Idle task, interrupts on. */
static __always_inline void poll_wait_for_store(u64 for_ns)
{
#ifdef cpu_poll_relax
	unsigned long *flags = &current_thread_info()->flags;
	unsigned long seen = READ_ONCE(*flags);

	if (!(seen & _TIF_NEED_RESCHED)) {
		cpu_poll_relax(flags, seen, for_ns);
		return;
	}
#endif
	spin_cpu_relax();
}

/* How long may a wait last now? So that the clock is read often enough for poll_gaps.h, too. */
static __always_inline u64 poll_next_wait_ns(const struct poll_gaps *gaps, u64 end_ns)
{
	return min(end_ns - gaps->look_ns, HOST_CONTENTION_GAP_NS / 2);
}

/**
 * poll_for_wakeup - poll until a wakeup, or until a time
 * @gaps: of this poll, which has begun
 * @known: which waits do not wait, from the last polls of this CPU; zeroed before the first
 * @end_ns: when the poll ends
 * @clock_ns: the clock of these times
 * @sources_here: has this CPU poll sources?
 * @peek_sources: has one of them work?
 *
 * Context: idle task, preemption off, interrupts on.
 *
 * Return: true if there was a wakeup, or a source has work.
 */
static __always_inline bool poll_for_wakeup(struct poll_gaps *gaps, struct short_waits *known,
					    u64 end_ns, u64 (*clock_ns)(void),
					    bool (*sources_here)(void), bool (*peek_sources)(void))
{
	struct poll_pace pace = {
		.looks_per_clock = POLL_WAITS ? 1 : POLL_SPIN_LOOKS,
		.spins = !POLL_WAITS,
	};
	u64 for_ns = poll_next_wait_ns(gaps, end_ns);
	unsigned int looks = 0;
	bool found = true;

	if (POLL_WAITS) {
		short_waits_begin(known);
		poll_pace_choose(&pace, known, for_ns);
	}
	spin_begin();
	while (!need_resched()) {
		bool sources = sources_here();
		u64 now_ns, took_ns;

		if (sources || pace.spins)
			spin_cpu_relax();
		else
			poll_wait_for_store(for_ns);
		if (peek_sources())
			break;
		/* A look at a device may take long, and reads a clock anyway. */
		if (++looks < pace.looks_per_clock && !sources)
			continue;
		/* A wakeup is no short wait, and whoever is woken waits for no clock. */
		if (need_resched())
			break;
		looks = 0;
		now_ns = clock_ns();
		took_ns = now_ns - gaps->look_ns;
		if (!pace.spins && !sources)
			short_waits_count(known, for_ns, took_ns);
		poll_gaps_look(gaps, now_ns);
		if (pace.spins && !sources && !pace.spin_ns && gaps->look_ns < end_ns)
			poll_pace_measure(&pace, gaps, clock_ns());
		if (gaps->look_ns >= end_ns) {
			found = false;
			break;
		}
		for_ns = poll_next_wait_ns(gaps, end_ns);
		if (pace.spins && !sources)
			poll_pace_spin(&pace, took_ns, for_ns);
		if (POLL_WAITS)
			poll_pace_choose(&pace, known, for_ns);
		spin_begin();
	}
	spin_end();
	return found;
}

#endif /* _LINUX_IDLE_POLL_POLL_WAIT_H */

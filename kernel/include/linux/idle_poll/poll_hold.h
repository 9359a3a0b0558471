/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For how long a source of polls may hold back its notifications, and when not at all.
 *
 * Work for a device often leads to more of it, which the device may complete before the
 * CPU is idle again. A hold spares the CPU that notification: the next poll finds the work.
 * But a CPU that turns busy does not poll, and the work waits until the hold ends by itself.
 *
 * How long. What is usual is learned: the time from the begin of a hold to the next poll or halt,
 * as a moving average of about eight holds. What takes over twice as long as usual counts as
 * twice: a mistake makes later holds longer by an eighth at most. A hold ends HOLD_GAPS times
 * that after it began, and before a bound of the caller's: long enough for a slow round, and so
 * that the timer is rare. Where nothing is known yet, the bound is all there is. A hold that lasts
 * until the bound tells nothing of what is usual: the first that ends before does.
 *
 * When not. A hold that no poll or halt has ended was a mistake, and so was one that they ended
 * after LATE_GAPS times as long as usual: work may have waited. The next SKIP_MIN holds are
 * skipped then, and twice as many after each further mistake, up to SKIP_MAX. Each hold that they
 * end in time makes that number an eighth less. Without skips, a CPU that serves a device and
 * computes in turns would make the same mistake forever. A hold that something else ends, as CPU
 * offline, is not reported: nothing follows from when it came.
 *
 * Context: whoever owns the source, one at a time; nothing to lock.
 */
#ifndef _LINUX_IDLE_POLL_POLL_HOLD_H
#define _LINUX_IDLE_POLL_POLL_HOLD_H

#include <linux/minmax.h>
#include <linux/types.h>

#define POLL_HOLD_GAPS		10
#define POLL_HOLD_LATE_GAPS	4
#define POLL_HOLD_SKIP_MIN	8
#define POLL_HOLD_SKIP_MAX	1024

/**
 * struct poll_hold - what is known of the holds of one source
 * @gap_ns: usual time from the begin of a hold to the next poll or halt; 0: not known
 * @skips: how many holds to skip
 * @skips_next: how many to skip after the next mistake
 */
struct poll_hold {
	u64 gap_ns;
	unsigned int skips;
	unsigned int skips_next;
};

/** poll_hold_init - nothing is known, and nothing is skipped */
static inline void poll_hold_init(struct poll_hold *hold)
{
	hold->gap_ns = 0;
	hold->skips = 0;
	hold->skips_next = POLL_HOLD_SKIP_MIN;
}

/** poll_hold_moved - another CPU has the source: what was seen of the old one says little */
static inline void poll_hold_moved(struct poll_hold *hold)
{
	hold->gap_ns = 0;
}

/** poll_hold_skip - is this hold to be skipped? It counts as skipped then */
static inline bool poll_hold_skip(struct poll_hold *hold)
{
	if (!hold->skips)
		return false;
	hold->skips--;
	return true;
}

/** poll_hold_ns - how long a hold that begins now may last, at most @most_ns */
static inline u64 poll_hold_ns(const struct poll_hold *hold, u64 most_ns)
{
	return hold->gap_ns ? min(most_ns, POLL_HOLD_GAPS * hold->gap_ns) : most_ns;
}

/**
 * poll_hold_ended - a hold is over
 * @hold: what is known
 * @held_ns: for how long it lasted
 * @by_poll: a poll ended it, or a halt, and no timer
 */
static inline void poll_hold_ended(struct poll_hold *hold, u64 held_ns, bool by_poll)
{
	u64 gap_ns = hold->gap_ns;

	if (!by_poll || (gap_ns && held_ns > POLL_HOLD_LATE_GAPS * gap_ns)) {
		hold->skips = hold->skips_next;
		hold->skips_next = min(2 * hold->skips, POLL_HOLD_SKIP_MAX);
	} else {
		hold->skips_next = max(hold->skips_next - hold->skips_next / 8, POLL_HOLD_SKIP_MIN);
	}
	if (gap_ns)
		hold->gap_ns = gap_ns - gap_ns / 8 + min(held_ns, 2 * gap_ns) / 8;
	else if (by_poll)
		hold->gap_ns = held_ns;
}

#endif /* _LINUX_IDLE_POLL_POLL_HOLD_H */

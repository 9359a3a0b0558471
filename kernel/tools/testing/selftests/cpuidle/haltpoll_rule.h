/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The rule of the haltpoll governor: how long to poll before the next halt.
 *
 * Pure: its user calls it after each halt. See adjust_poll_limit() of
 * drivers/cpuidle/governors/haltpoll.c and Documentation/virt/guest-halt-polling.rst in
 * Linux 6.12, where the defaults come from, too.
 */
#ifndef _SELFTESTS_CPUIDLE_HALTPOLL_RULE_H
#define _SELFTESTS_CPUIDLE_HALTPOLL_RULE_H

#include <linux/minmax.h>
#include <linux/types.h>

#define HALTPOLL_NS		200000ULL	/* guest_halt_poll_ns */
#define HALTPOLL_GROW		2		/* guest_halt_poll_grow */
#define HALTPOLL_GROW_START_NS	50000ULL	/* guest_halt_poll_grow_start */
#define HALTPOLL_SHRINK		2		/* guest_halt_poll_shrink */

/**
 * haltpoll_next_limit_ns - how long to poll after a halt
 * @limit_ns: how long the poll before that halt could be
 * @halted_ns: how long the halt was
 */
static inline u64 haltpoll_next_limit_ns(u64 limit_ns, u64 halted_ns)
{
	if (halted_ns > limit_ns && halted_ns <= HALTPOLL_NS)
		return clamp(limit_ns * HALTPOLL_GROW, HALTPOLL_GROW_START_NS, HALTPOLL_NS);
	if (halted_ns > HALTPOLL_NS) {
		u64 shrunk_ns = limit_ns / HALTPOLL_SHRINK;

		return shrunk_ns < HALTPOLL_GROW_START_NS ? 0 : shrunk_ns;
	}
	return limit_ns;
}

#endif /* _SELFTESTS_CPUIDLE_HALTPOLL_RULE_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Is the host short of cores for this guest as a whole?
 *
 * host_contention.c answers for one CPU, from what that CPU has seen in its own polls.
 * A CPU that finds its host short of cores leaves its core to others. Where a latency request
 * makes all CPUs poll, these others are often CPUs of the same guest. They get the core that was
 * left, see nothing wrong, and poll on in the way of their peers, which have work to do.
 *
 * The rule: where enough CPUs find at a time that the host is short of cores
 * (host_contention_is_general()), the host counts as short for all of them, for 16 s: as long as
 * the longest pause of one CPU. Nothing makes the 16 s longer. Then the CPUs poll again, and find
 * out anew.
 *
 * Everything here is integer arithmetic without side effects, so the same file
 * runs in the kernel and in unit tests.
 *
 * Context: any CPU, from its idle task, or with interrupts off. CPUs may judge at the same time:
 * each writes a single word, and whichever is last is right enough. Nothing to lock.
 */
#include <linux/compiler.h>
#include <linux/idle_poll/host_contention.h>
#include <linux/types.h>

#include "host_short.h"

#define SHORT_NS	16000000000ULL	/* 16 s */

/**
 * host_short_judge - judge the host, when one more CPU has found it short of cores
 * @hs: what the guest's CPUs found out so far; all zero in the beginning
 * @now_ns: the time
 * @contended: how many CPUs find it short of cores now
 * @cpus: how many CPUs are online
 */
void host_short_judge(struct host_short *hs, u64 now_ns, unsigned int contended,
		      unsigned int cpus)
{
	if (host_contention_is_general(contended, cpus) && !host_is_short(hs, now_ns))
		WRITE_ONCE(hs->until_ns, now_ns + SHORT_NS);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Does somebody else want the core that this CPU polls on? See host_contention.c.
 */
#ifndef _LINUX_IDLE_POLL_HOST_CONTENTION_H
#define _LINUX_IDLE_POLL_HOST_CONTENTION_H

#include <linux/compiler.h>
#include <linux/minmax.h>
#include <linux/types.h>

/*
 * Two looks of a poll at the clock are closer together than this, unless the host has
 * taken the CPU away, or softirqs ran meanwhile: the caller has to know of these.
 */
#define HOST_CONTENTION_GAP_NS	500000ULL

/**
 * struct host_contention - what one CPU has seen of its host
 * @window_start_ns: when the evidence below began
 * @ran_ns: time in which the CPU polled
 * @gap_ns: time in which it would have, but its host ran something else
 * @account_ns: time that the hypervisor says it took from the CPU, polling or not
 * @account_max_ns: the longest of those times
 * @steal_clock_ns: what the hypervisor's account of stolen time said last
 * @until_ns: the CPU does not poll before this time
 * @pause_ns: length of the last pause
 * @pauses: how many there were
 * @paused_ns: how long they are in all, the last one from its begin on
 * @judged_ns: time polled since the last one, gaps included, that was no reason for another
 */
struct host_contention {
	u64 window_start_ns;
	u64 ran_ns;
	u64 gap_ns;
	u64 account_ns;
	u64 account_max_ns;
	u64 steal_clock_ns;
	u64 until_ns;
	u64 pause_ns;
	u64 pauses;
	u64 paused_ns;
	u64 judged_ns;
};

void host_contention_add(struct host_contention *hc, u64 now_ns, u64 ran_ns, u64 gap_ns,
			 u64 account_ns);

/**
 * host_contended - is the host short of cores?
 * @hc: what the CPU has seen
 * @now_ns: the time, of the same clock as everywhere here
 *
 * Return: true if this CPU is to leave its core to others when it is idle.
 */
static inline bool host_contended(const struct host_contention *hc, u64 now_ns)
{
	return now_ns < READ_ONCE(hc->until_ns);
}

/**
 * host_contention_left_ns - for how much longer is the host to be taken for short of cores?
 * @hc: what the CPU has seen
 * @now_ns: the time, of the same clock as everywhere here
 *
 * Context: any. One word is read, once, so it is never below zero.
 *
 * Return: the time to the end of the pause, in ns; 0 outside of one.
 */
static inline u64 host_contention_left_ns(const struct host_contention *hc, u64 now_ns)
{
	u64 until_ns = READ_ONCE(hc->until_ns);

	return now_ns < until_ns ? until_ns - now_ns : 0;
}

/**
 * host_contention_is_general - is the host short of cores for the guest as a whole?
 * @contended: how many CPUs find it short of cores
 * @cpus: how many are online
 *
 * A single CPU among many decides nothing for the others: its core may be the only one that
 * somebody else wants, an interrupt or a pinned guest.
 *
 * Return: true if a quarter of the CPUs find so, two at least; or the one CPU that there is.
 */
static inline bool host_contention_is_general(unsigned int contended, unsigned int cpus)
{
	return contended >= min(cpus, 2U) && contended * 4 >= cpus;
}

#endif /* _LINUX_IDLE_POLL_HOST_CONTENTION_H */

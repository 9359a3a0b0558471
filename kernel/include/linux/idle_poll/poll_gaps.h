/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Time within a poll that was not polled.
 *
 * A poll looks at the clock every few microseconds, or after each wait for a store, which
 * lasts for half of HOST_CONTENTION_GAP_NS at most (poll_wait.h). Where two looks lie further
 * apart than HOST_CONTENTION_GAP_NS, either the host ran something else, or interrupts and
 * their softirqs did. Two things tell which.
 *
 * - The time that the kernel accounts to them. With IRQ_TIME_ACCOUNTING it is exact.
 *   Without, the tick samples it, which rarely finds a gap.
 * - The counts of the softirqs that devices raise, and that may take milliseconds. The
 *   others say nothing: a tick raises them, and the end of a stolen time slice brings a
 *   tick. So without IRQ_TIME_ACCOUNTING, timers and RCU callbacks that run for longer
 *   than HOST_CONTENTION_GAP_NS are taken for the host.
 *
 * Context: idle task, preemption off; nothing to lock.
 */
#ifndef _LINUX_IDLE_POLL_POLL_GAPS_H
#define _LINUX_IDLE_POLL_POLL_GAPS_H

#include <linux/idle_poll/host_contention.h>
#include <linux/interrupt.h>
#include <linux/kernel_stat.h>
#include <linux/minmax.h>
#include <linux/types.h>

/**
 * struct poll_gaps - the last poll of one CPU
 * @start_ns: when it began
 * @look_ns: when it looked at the clock last
 * @gap_ns: time in gaps by then
 * @irq_ns: time of interrupts and softirqs: their account when it began; once it is
 *	over, what they took meanwhile
 * @softirqs: softirqs of devices that may take long, as counted when it began
 * @softirqs_ran: some of these ran meanwhile
 */
struct poll_gaps {
	u64 start_ns;
	u64 look_ns;
	u64 gap_ns;
	u64 irq_ns;
	unsigned int softirqs;
	bool softirqs_ran;
};

static inline unsigned int poll_gaps_softirqs(void)
{
	const unsigned int *count = kstat_this_cpu->softirqs;

	return count[HI_SOFTIRQ] + count[NET_TX_SOFTIRQ] + count[NET_RX_SOFTIRQ] +
	       count[BLOCK_SOFTIRQ] + count[IRQ_POLL_SOFTIRQ] + count[TASKLET_SOFTIRQ];
}

static inline u64 poll_gaps_irq_clock_ns(void)
{
	const u64 *account_ns = kcpustat_this_cpu->cpustat;

	return account_ns[CPUTIME_IRQ] + account_ns[CPUTIME_SOFTIRQ];
}

static inline void poll_gaps_begin(struct poll_gaps *gaps, u64 now_ns)
{
	gaps->start_ns = now_ns;
	gaps->look_ns = now_ns;
	gaps->gap_ns = 0;
	gaps->irq_ns = poll_gaps_irq_clock_ns();
	gaps->softirqs = poll_gaps_softirqs();
}

static inline void poll_gaps_look(struct poll_gaps *gaps, u64 now_ns)
{
	/* A clock that may be read in any context may step back by a little. */
	if (now_ns <= gaps->look_ns)
		return;
	if (now_ns - gaps->look_ns > HOST_CONTENTION_GAP_NS)
		gaps->gap_ns += now_ns - gaps->look_ns;
	gaps->look_ns = now_ns;
}

static inline void poll_gaps_end(struct poll_gaps *gaps)
{
	gaps->irq_ns = poll_gaps_irq_clock_ns() - gaps->irq_ns;
	gaps->softirqs_ran = gaps->softirqs != poll_gaps_softirqs();
}

/* All gaps of a poll that lasted @polled_ns, the time after the last look included. */
static inline u64 poll_gaps_ns(const struct poll_gaps *gaps, u64 polled_ns)
{
	u64 looked_ns = gaps->look_ns - gaps->start_ns;
	u64 unseen_ns = polled_ns > looked_ns ? polled_ns - looked_ns : 0;

	if (unseen_ns <= HOST_CONTENTION_GAP_NS)
		unseen_ns = 0;
	return min(gaps->gap_ns + unseen_ns, polled_ns);
}

/* Of a poll that lasted @polled_ns, the time that the host spent on something else. */
static inline u64 poll_gaps_stolen_ns(const struct poll_gaps *gaps, u64 polled_ns)
{
	u64 gap_ns = poll_gaps_ns(gaps, polled_ns);

	return gaps->softirqs_ran ? 0 : gap_ns - min(gap_ns, gaps->irq_ns);
}

/* The hypervisor's account of the time that it took from this CPU. */
static inline u64 poll_gaps_steal_clock_ns(void)
{
	return kcpustat_this_cpu->cpustat[CPUTIME_STEAL];
}

/*
 * What the last poll, of @polled_ns, and the hypervisor say of the host; no poll: 0. Where softirqs
 * of devices ran, nobody knows whose a gap was: it is no evidence against the host, nor for it.
 */
static inline void poll_gaps_account(const struct poll_gaps *gaps, struct host_contention *hc,
				     u64 now_ns, u64 polled_ns)
{
	u64 clock_ns = poll_gaps_steal_clock_ns();
	u64 gap_ns = polled_ns ? poll_gaps_stolen_ns(gaps, polled_ns) : 0;
	u64 ran_ns = polled_ns - poll_gaps_ns(gaps, polled_ns);
	u64 account_ns = clock_ns - hc->steal_clock_ns;

	hc->steal_clock_ns = clock_ns;
	if (polled_ns || account_ns)
		host_contention_add(hc, now_ns, ran_ns, gap_ns, account_ns);
}

#endif /* _LINUX_IDLE_POLL_POLL_GAPS_H */

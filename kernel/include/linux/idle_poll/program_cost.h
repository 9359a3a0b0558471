/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What do the programs of one CPU say that a wakeup from halt costs? See program_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_PROGRAM_COST_H
#define _LINUX_IDLE_POLL_PROGRAM_COST_H

#include <linux/idle_poll/wake_cost.h>
#include <linux/types.h>
#include <asm/barrier.h>

/**
 * struct program_cost - what the programs of one CPU say, and since when
 *
 * Members are written by program_cost_update() alone, unless they say otherwise. Others only read
 * single words, so there is nothing to lock.
 *
 * @wake_cost: the experiment on the cycles of the CPU; written by itself, in idle
 * @estimate: what a wakeup from halt costs the programs here
 * @estimated: which is known
 * @estimate_jiffies: when @estimate was made
 * @estimate_count: after how many deliberate halts
 * @sought: since when the CPU, whose price decides, has polled in most cycles without an answer or
 *	a bound, in jiffies
 * @answer_lasts: for how long an answer that ended polls counts, or its bound, in jiffies
 * @answer_jiffies: since when: it was new, or enough had been drawn to confirm it
 * @answer_count: after how many deliberate halts that was
 * @at_most_ns: where it is not known, it is no more than this; 0 without such a bound
 * @at_most_until: until these jiffies
 * @missed_until: how many cycles of each kind there were when most polls last missed, or there
 *	were none
 * @probe: when a missed wakeup counts more, so that the programs get to tell
 * @update_jiffies: when the last update was
 * @seen_polls: polls at the update before
 * @seen_hits: hits by then
 * @seen_cycles: and cycles
 * @minute_jiffies: when a minute of evidence began
 * @minute_count: deliberate halts by then
 * @harm_until: polling did harm, wait until these jiffies
 * @harm_wait: length of the last such wait in jiffies
 */
struct program_cost {
	struct wake_cost wake_cost;
	struct wake_cost_estimate estimate;
	bool estimated;
	unsigned long estimate_jiffies;
	u32 estimate_count;
	unsigned long sought;
	unsigned long answer_lasts;
	unsigned long answer_jiffies;
	u32 answer_count;
	u64 at_most_ns;
	unsigned long at_most_until;
	u32 missed_until[WAKE_COST_KINDS];
	struct wake_cost_probe probe;
	unsigned long update_jiffies;
	u64 seen_polls;
	u64 seen_hits;
	u64 seen_cycles;
	unsigned long minute_jiffies;
	u32 minute_count;
	unsigned long harm_until;
	unsigned long harm_wait;
};

/**
 * struct program_cost_input - what else is known of a CPU at an update
 * @now: jiffies
 * @now_ns: the time, in ns
 * @machine_ns: what a wakeup from halt costs on this machine, or is assumed to cost
 * @polls: idle periods that were polled so far, without those that a measurement or a latency
 *	request had polled
 * @hits: of those, the ones that ended with a wakeup
 * @learns: does the price decide for how long this CPU polls now?
 */
struct program_cost_input {
	unsigned long now;
	u64 now_ns;
	u64 machine_ns;
	u64 polls;
	u64 hits;
	bool learns;
};

/**
 * program_cost_heard - have the programs of one CPU said anything that counts?
 * @pc: the CPU
 *
 * Return: true if their answer counts, or what they lose at most.
 */
static inline bool program_cost_heard(const struct program_cost *pc)
{
	return pc->estimated || pc->at_most_ns;
}

/**
 * program_cost_answered - does an answer of the programs of one CPU count?
 * @pc: the CPU
 *
 * Context: any.
 *
 * Return: true if what @estimate says after this call is an answer: a mix of two, maybe, or one
 * that has just ended.
 */
static inline bool program_cost_answered(const struct program_cost *pc)
{
	/* Pairs with the release in decide(), which has stored the answer before. */
	return smp_load_acquire(&pc->estimated);
}

u64 program_cost_ns(const struct program_cost *pc, u64 machine_ns);
bool program_cost_update(struct program_cost *pc, const struct program_cost_input *in);
void program_cost_init(struct program_cost *pc, unsigned int cpu, unsigned long now);

#endif /* _LINUX_IDLE_POLL_PROGRAM_COST_H */

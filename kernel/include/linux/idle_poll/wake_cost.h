/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What does halting cost the programs that run on this CPU? See wake_cost.c.
 */
#ifndef _LINUX_IDLE_POLL_WAKE_COST_H
#define _LINUX_IDLE_POLL_WAKE_COST_H

#include <linux/compiler.h>
#include <linux/types.h>

#define WAKE_COST_SAMPLES	64	/* cycles of each kind */
#define WAKE_COST_PROBE_PRICE	4	/* times the price of a missed wakeup */

/**
 * enum wake_cost_kind - what a cycle is evidence for
 * @WAKE_COST_NONE: nothing
 * @WAKE_COST_POLLED: it began with a poll, and was drawn to be compared with
 * @WAKE_COST_HALTED: it began with a deliberate halt
 * @WAKE_COST_KINDS: the number of kinds
 */
enum wake_cost_kind {
	WAKE_COST_NONE,
	WAKE_COST_POLLED,
	WAKE_COST_HALTED,
	WAKE_COST_KINDS,
};

/**
 * struct wake_cost - the experiment of one CPU
 * @cycles: all that ended, drawn or not, since the beginning
 * @cycle_ns: the latest cycles by kind, as rings; the row of WAKE_COST_NONE is unused
 * @count: cycles of each kind since the beginning
 * @fresh_from: counts before which evidence is too old; may be written by somebody else
 * @halt_cost_ns: what a halt is known to cost, 0 if it is not; written by somebody else
 * @pause_until_ns: no cycle that begins before is drawn
 * @open: the kind of the cycle that is going on
 * @aborted: its deliberate halt was none, as the wakeup came first
 * @was_aborted: the same of the latest cycles with a deliberate halt, as a ring
 * @aborts: how many of these were
 * @next: the kind of the cycle that is drawn next
 * @second: the one after it is the second of a pair
 * @until_next: cycles that begin before it, and after @pause_until_ns
 * @random: state of the generator that draws cycles
 */
struct wake_cost {
	u64 cycles;
	u32 cycle_ns[WAKE_COST_KINDS][WAKE_COST_SAMPLES];
	u32 count[WAKE_COST_KINDS];
	u32 fresh_from[WAKE_COST_KINDS];
	u32 halt_cost_ns;
	u64 pause_until_ns;
	enum wake_cost_kind open;
	bool aborted;
	bool was_aborted[WAKE_COST_SAMPLES];
	u32 aborts;
	enum wake_cost_kind next;
	bool second;
	u32 until_next;
	u32 random;
};

/**
 * struct wake_cost_estimate - how much longer the slow samples are than the fast ones
 * @cost_ns: the estimate
 * @lower_ns: the true value is above this,
 * @upper_ns: and below this, with a confidence of 99.9 %
 */
struct wake_cost_estimate {
	s64 cost_ns;
	s64 lower_ns;
	s64 upper_ns;
};

/**
 * struct wake_cost_probe - when one CPU polls for longer, to get an answer
 * @on: it does now
 * @count: how often it has begun to
 * @begun_ns: when the last one began
 * @begun_cycles: cycles by then
 * @length_ns: how long the last one was to be
 * @wait_ns: how long to wait after it, 0 after an answer that held
 * @next_ns: no other one begins before this
 * @needed_ns: when there was last no answer; time since then in which nobody asked is added
 * @seen_ns: when it was looked at last
 * @seen_cycles: cycles by then
 * @seen_hits: and hits
 */
struct wake_cost_probe {
	bool on;
	u64 count;
	u64 begun_ns;
	u64 begun_cycles;
	u64 length_ns;
	u64 wait_ns;
	u64 next_ns;
	u64 needed_ns;
	u64 seen_ns;
	u64 seen_cycles;
	u64 seen_hits;
};

void wake_cost_init(struct wake_cost *wc, u32 seed);
bool wake_cost_begin(struct wake_cost *wc, u64 now_ns, bool polls);
void wake_cost_halt_aborted(struct wake_cost *wc);
void wake_cost_end(struct wake_cost *wc, u64 cycle_ns);
void wake_cost_compare(struct wake_cost_estimate *estimate, u32 slow_ns[WAKE_COST_SAMPLES],
		       u32 fast_ns[WAKE_COST_SAMPLES]);
bool wake_cost_are_hits(u64 polls, u64 hits);
bool wake_cost_tells(u64 polls, u64 hits, u32 aborts);
bool wake_cost_is_conclusive(const struct wake_cost_estimate *estimate, bool tells);
bool wake_cost_probe(struct wake_cost_probe *probe, const struct wake_cost *wc, u64 now_ns,
		     u64 hits, bool answered, bool asked);

/* Cycles of a kind that are no older than they may be. The CPU counts on meanwhile. */
static inline u32 wake_cost_fresh(const struct wake_cost *wc, enum wake_cost_kind kind)
{
	return READ_ONCE(wc->count[kind]) - READ_ONCE(wc->fresh_from[kind]);
}

/**
 * wake_cost_known - is there enough evidence for an estimate?
 * @wc: the experiment of one CPU
 *
 * Return: true once both rings are full of fresh cycles.
 */
static inline bool wake_cost_known(const struct wake_cost *wc)
{
	return wake_cost_fresh(wc, WAKE_COST_POLLED) >= WAKE_COST_SAMPLES &&
	       wake_cost_fresh(wc, WAKE_COST_HALTED) >= WAKE_COST_SAMPLES;
}

#endif /* _LINUX_IDLE_POLL_WAKE_COST_H */

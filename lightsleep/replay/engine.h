/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the loops of engine.c read and write; cffi reads this file, too.
 */
#ifndef _LIGHTSLEEP_REPLAY_ENGINE_H
#define _LIGHTSLEEP_REPLAY_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include <linux/idle_poll/poll_limit.h>

#define TALLY_BLOCKS	20
#define TALLY_BUCKETS	2048
#define STAY_STATES	256

/**
 * struct stay_limits - from which lengths on stays of one CPU are too shallow or too deep
 * @poll_shallow_ns: a poll that is as long is too shallow
 * @deep_ns: a halt that is shorter is too deep, by state
 * @shallow_ns: a halt that is as long is too shallow, by state
 */
struct stay_limits {
	int64_t poll_shallow_ns;
	int64_t deep_ns[STAY_STATES];
	int64_t shallow_ns[STAY_STATES];
};

/**
 * struct intervals - some intervals of one CPU, in order: a column each
 * @idle_ns: until something arrived
 * @cost_ns: what the wakeup costs if the CPU has halted; 0 where no task waits
 * @bucket: of a histogram, that @cost_ns falls into
 * @woken: whether a task waits
 * @block: the part of the recording that it is in
 * @state: that a CPU which does not poll on halts in
 * @exit_ns: how long it takes to leave that state
 * @resumes: whether it begins at once after one that ended without a task
 * @limits: what tells stays that are too shallow or too deep
 * @turn_ns: how long the way from a poll to a halt takes
 */
struct intervals {
	size_t count;
	const u64 *idle_ns;
	const u64 *cost_ns;
	const uint16_t *bucket;
	const uint8_t *woken;
	const uint8_t *block;
	const uint8_t *state;
	const int64_t *exit_ns;
	const uint8_t *resumes;
	const struct stay_limits *limits;
	u64 turn_ns;
};

/**
 * struct poll - the idle period of one CPU, which may last for several intervals
 * @limit_ns: for how long it polls in all
 * @polled_ns: so far
 * @halted_ns: how long the last halt was, until it was left; 0 where the CPU polls still
 * @slept_ns: how long all its halts were, for lightsleep
 * @halted: the CPU has halted in it
 * @unlearned: it has not been learned from
 */
struct poll {
	u64 limit_ns;
	u64 polled_ns;
	u64 halted_ns;
	u64 slept_ns;
	u64 halted;
	u64 unlearned;
};

/**
 * struct tally - what a policy did in all intervals; every sum is exact
 * @intervals: how many
 * @hits: those in which the poll caught the wakeup
 * @in_vain: those that were polled, and ended in a halt
 * @polled_ns: time polled
 * @wakes: intervals that ended because a task was woken
 * @waited_ns: how long those tasks waited for their CPU
 * @halts: how often a CPU halted
 * @too_shallow_ns: time in stays that were too shallow; stays.py says which are
 * @too_deep_ns: time in stays that were too deep
 * @longest_ns: the longest of these waits
 * @paid_ns: time polled and waited, weighed, by block
 * @histogram: how many tasks waited how long
 */
struct tally {
	u64 intervals;
	u64 hits;
	u64 in_vain;
	u64 polled_ns;
	u64 wakes;
	u64 waited_ns;
	u64 halts;
	u64 too_shallow_ns;
	u64 too_deep_ns;
	u64 longest_ns;
	u64 paid_ns[TALLY_BLOCKS];
	u64 histogram[TALLY_BUCKETS];
};

/**
 * struct haltpoll - the haltpoll governor's parameters, and what one CPU has learned
 */
struct haltpoll {
	u64 most_ns;
	u64 grow;
	u64 grow_start_ns;
	u64 shrink;
	u64 allow_shrink;
	u64 limit_ns;
};

/**
 * struct lightsleep - what the module's policy of one CPU decides by
 * @halt_cost_ns: what a halt costs, by which it is longer than the CPU was idle
 */
struct lightsleep {
	struct poll_limit policy;
	struct poll_limit_params params;
	u64 halt_cost_ns;
};

void replay_fixed(u64 limit_ns, struct poll *p, const struct intervals *s, u64 weight,
		  struct tally *t);
void replay_haltpoll(struct haltpoll *h, struct poll *p, const struct intervals *s, u64 weight,
		     struct tally *t);
void replay_lightsleep(struct lightsleep *l, struct poll *p, const struct intervals *s, u64 weight,
		       struct tally *t);
void replay_optimum(const struct intervals *s, u64 weight, struct tally *t);
void replay_given(const u64 *polled_ns, const uint8_t *halted, const struct intervals *s, u64 weight,
		  struct tally *t);

#endif /* _LIGHTSLEEP_REPLAY_ENGINE_H */

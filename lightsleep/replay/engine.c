// SPDX-License-Identifier: GPL-2.0-only
/*
 * The loops of a replay, over columns: what each policy does in each interval of one
 * CPU, added up. engine.py has the same in Python; both count integers, and no
 * sum depends on the order of the intervals of different CPUs.
 */
#include "engine.h"

/* A halt after so long a poll, as the kernel's counters above and below have it. */
static inline __attribute__((always_inline)) void judge(struct tally *t, const struct intervals *s,
							size_t i, u64 polled_ns)
{
	int64_t halt_ns = (int64_t)(s->idle_ns[i] - polled_ns) + s->exit_ns[i];
	const struct stay_limits *limits = s->limits;

	halt_ns = halt_ns > 0 ? halt_ns : 0;
	if (halt_ns < limits->deep_ns[s->state[i]])
		t->too_deep_ns += halt_ns;
	if (halt_ns >= limits->shallow_ns[s->state[i]])
		t->too_shallow_ns += halt_ns;
}

/* An interval of which so much was polled, and which ended in a halt or not. */
static inline __attribute__((always_inline)) void count(struct tally *t, const struct intervals *s,
							size_t i, u64 weight, u64 polled_ns,
							bool halted)
{
	u64 waited_ns = halted ? s->cost_ns[i] : 0;
	u64 woken = s->woken[i];

	t->intervals++;
	t->hits += !halted;
	t->in_vain += halted && polled_ns;
	t->polled_ns += polled_ns;
	t->wakes += woken;
	t->waited_ns += waited_ns;
	t->halts += halted;
	t->too_shallow_ns += (int64_t)polled_ns >= s->limits->poll_shallow_ns ? polled_ns : 0;
	if (halted)
		judge(t, s, i, polled_ns);
	t->longest_ns = waited_ns > t->longest_ns ? waited_ns : t->longest_ns;
	t->paid_ns[s->block[i]] += polled_ns + weight * waited_ns;
	t->histogram[halted ? s->bucket[i] : 0] += woken;
}

static inline __attribute__((always_inline)) void limited(struct tally *t, const struct intervals *s,
							  size_t i, u64 weight, u64 limit_ns)
{
	u64 idle_ns = s->idle_ns[i];
	bool halted = idle_ns > limit_ns;

	count(t, s, i, weight, halted ? limit_ns : idle_ns, halted);
}

void replay_fixed(u64 limit_ns, const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		limited(t, s, i, weight, limit_ns);
}

void replay_haltpoll(struct haltpoll *h, const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		u64 limit_ns = h->limit_ns, halted_ns;

		limited(t, s, i, weight, limit_ns);
		if (s->idle_ns[i] <= limit_ns)
			continue;
		halted_ns = s->idle_ns[i] - limit_ns;
		if (limit_ns < halted_ns && halted_ns <= h->most_ns) {
			limit_ns *= h->grow;
			limit_ns = limit_ns > h->grow_start_ns ? limit_ns : h->grow_start_ns;
			h->limit_ns = limit_ns < h->most_ns ? limit_ns : h->most_ns;
		} else if (halted_ns > h->most_ns && h->allow_shrink) {
			limit_ns = h->shrink ? limit_ns / h->shrink : 0;
			h->limit_ns = limit_ns >= h->grow_start_ns ? limit_ns : 0;
		}
	}
}

void replay_lightsleep(struct poll_limit *pl, const struct poll_limit_params *params,
		       const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		limited(t, s, i, weight, pl->limit_ns);
		poll_limit_update(pl, params, s->idle_ns[i]);
	}
}

/* Knows how long an interval lasts: polls where that is cheaper. Where nobody comes, it halts. */
void replay_optimum(const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		bool halts = weight * s->cost_ns[i] < s->idle_ns[i] || !s->woken[i];

		count(t, s, i, weight, halts ? 0 : s->idle_ns[i], halts);
	}
}

/* What somebody else has decided. */
void replay_given(const u64 *polled_ns, const uint8_t *halted, const struct intervals *s, u64 weight,
		  struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		count(t, s, i, weight, polled_ns[i], halted[i]);
}

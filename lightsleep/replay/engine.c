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

/*
 * An interval of which so much was polled, after @before_ns in those that it resumes, and which
 * ended in a halt or not.
 */
static inline __attribute__((always_inline)) void count(struct tally *t, const struct intervals *s,
							size_t i, u64 weight, u64 before_ns,
							u64 polled_ns, bool halted)
{
	u64 waited_ns = halted ? s->cost_ns[i] : 0;
	u64 woken = s->woken[i];

	t->intervals++;
	t->hits += !halted;
	t->in_vain += halted && (before_ns || polled_ns);
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

/* Does the interval go on with a poll, which an interrupt without a task has not ended? */
static inline __attribute__((always_inline)) bool goes_on(const struct poll *p,
							  const struct intervals *s, size_t i)
{
	return s->resumes[i] && p->goes_on;
}

/* Polls for what is left of the limit: all of @limit_ns, unless the interval goes on with a poll. */
static inline __attribute__((always_inline)) void limited(struct poll *p, struct tally *t,
							  const struct intervals *s, size_t i,
							  u64 weight, u64 limit_ns)
{
	u64 idle_ns = s->idle_ns[i], left_ns;
	bool halted;

	if (!goes_on(p, s, i)) {
		p->limit_ns = limit_ns;
		p->polled_ns = 0;
		p->idle_ns = 0;
	}
	left_ns = p->limit_ns - p->polled_ns;
	/* Who does not poll has halted before anything can come. */
	halted = !left_ns || idle_ns > left_ns;
	count(t, s, i, weight, p->polled_ns, halted ? left_ns : idle_ns, halted);
	p->polled_ns += halted ? left_ns : idle_ns;
	p->idle_ns += idle_ns;
	p->exit_ns = halted && s->exit_ns[i] > 0 ? s->exit_ns[i] : 0;
	p->goes_on = !halted;
	p->unlearned = true;
}

/* Is the poll over, and has not been learned from? Then it is now. */
static inline __attribute__((always_inline)) bool learns(struct poll *p, const struct intervals *s,
							 size_t i)
{
	if (!p->unlearned || goes_on(p, s, i))
		return false;
	p->unlearned = false;
	return true;
}

void replay_fixed(u64 limit_ns, struct poll *p, const struct intervals *s, u64 weight,
		  struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		limited(p, t, s, i, weight, limit_ns);
}

/* To the kernel, a halt is as long as the CPU was away: until it was left. */
static void haltpoll_learn(struct haltpoll *h, u64 idle_ns, u64 exit_ns)
{
	u64 limit_ns = h->limit_ns, halted_ns;

	if (idle_ns <= limit_ns)
		return;
	halted_ns = idle_ns + exit_ns - limit_ns;
	if (limit_ns < halted_ns && halted_ns <= h->most_ns) {
		limit_ns *= h->grow;
		limit_ns = limit_ns > h->grow_start_ns ? limit_ns : h->grow_start_ns;
		h->limit_ns = limit_ns < h->most_ns ? limit_ns : h->most_ns;
	} else if (halted_ns > h->most_ns && h->allow_shrink) {
		limit_ns = h->shrink ? limit_ns / h->shrink : 0;
		h->limit_ns = limit_ns >= h->grow_start_ns ? limit_ns : 0;
	}
}

void replay_haltpoll(struct haltpoll *h, struct poll *p, const struct intervals *s, u64 weight,
		     struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		if (learns(p, s, i))
			haltpoll_learn(h, p->idle_ns, p->exit_ns);
		limited(p, t, s, i, weight, h->limit_ns);
	}
}

void replay_lightsleep(struct poll_limit *pl, const struct poll_limit_params *params,
		       struct poll *p, const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		if (learns(p, s, i))
			poll_limit_update(pl, params, p->idle_ns);
		limited(p, t, s, i, weight, pl->limit_ns);
	}
}

/* Knows how long an interval lasts: polls where that is cheaper. Where nobody comes, it halts. */
void replay_optimum(const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		bool halts = weight * s->cost_ns[i] < s->idle_ns[i] || !s->woken[i];

		count(t, s, i, weight, 0, halts ? 0 : s->idle_ns[i], halts);
	}
}

/* What somebody else has decided. */
void replay_given(const u64 *polled_ns, const uint8_t *halted, const struct intervals *s, u64 weight,
		  struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		count(t, s, i, weight, 0, polled_ns[i], halted[i]);
}

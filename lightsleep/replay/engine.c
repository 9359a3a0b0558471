// SPDX-License-Identifier: GPL-2.0-only
/*
 * The loops of a replay, over columns: what each policy does in each interval of one
 * CPU, added up. engine.py has the same in Python; both count integers, and no
 * sum depends on the order of the intervals of different CPUs.
 */
#include "engine.h"

static inline u64 min_of(u64 x, u64 y)
{
	return x < y ? x : y;
}

/* A halt after so long a poll, as the kernel's counters above and below have it. */
static inline __attribute__((always_inline)) void judge(struct tally *t, const struct intervals *s,
							size_t i, u64 polled_ns)
{
	u64 turn_ns = polled_ns ? s->turn_ns : 0;
	int64_t halt_ns = (int64_t)(s->idle_ns[i] - polled_ns - turn_ns) + s->exit_ns[i];
	const struct stay_limits *limits = s->limits;

	halt_ns = halt_ns > 0 ? halt_ns : 0;
	if (halt_ns < limits->deep_ns[s->state[i]])
		t->too_deep_ns += halt_ns;
	if (halt_ns >= limits->shallow_ns[s->state[i]])
		t->too_shallow_ns += halt_ns;
}

/*
 * An interval of which so much was polled, after @before_ns of the same poll in those that it
 * resumes, and which ended in a halt or not. What came after @stay_ns, when the poll was over, but
 * before the halt, counts as polled.
 */
static inline __attribute__((always_inline)) void count(struct tally *t, const struct intervals *s,
							size_t i, u64 weight, u64 before_ns,
							u64 polled_ns, u64 stay_ns, bool halted)
{
	u64 waited_ns = halted ? s->cost_ns[i] : 0;
	int64_t shallow_ns = s->limits->poll_shallow_ns;
	u64 woken = s->woken[i];

	t->intervals++;
	t->hits += !halted;
	t->in_vain += halted && (before_ns || polled_ns);
	t->polled_ns += polled_ns;
	t->wakes += woken;
	t->waited_ns += waited_ns;
	t->halts += halted;
	/* All of a poll counts, once it is too long. */
	if ((int64_t)(before_ns + stay_ns) >= shallow_ns)
		t->too_shallow_ns += stay_ns + ((int64_t)before_ns < shallow_ns ? before_ns : 0);
	if (halted)
		judge(t, s, i, polled_ns);
	t->longest_ns = waited_ns > t->longest_ns ? waited_ns : t->longest_ns;
	t->paid_ns[s->block[i]] += polled_ns + weight * waited_ns;
	t->histogram[halted ? s->bucket[i] : 0] += woken;
}

/*
 * Is the interval part of the idle period before it? An interrupt without a task never ends a poll.
 * It ends no @whole period, either, which lasts until a task comes.
 */
static inline __attribute__((always_inline)) bool goes_on(const struct poll *p,
							  const struct intervals *s, size_t i,
							  bool whole)
{
	return s->resumes[i] && (whole || !p->halted);
}

/* Polls for what its idle period has left of the limit: nothing once the CPU has halted in it. */
static inline __attribute__((always_inline)) void limited(struct poll *p, struct tally *t,
							  const struct intervals *s, size_t i,
							  u64 weight, u64 limit_ns, bool whole)
{
	u64 idle_ns = s->idle_ns[i], left_ns, turn_ns, stay_ns;
	int64_t away_ns;
	bool halted;

	if (!goes_on(p, s, i, whole)) {
		p->limit_ns = limit_ns;
		p->polled_ns = 0;
		p->halted = false;
	}
	left_ns = p->halted ? 0 : p->limit_ns - p->polled_ns;
	turn_ns = left_ns ? s->turn_ns : 0;
	stay_ns = min_of(idle_ns, left_ns);
	/* Who does not poll has halted before anything can come. */
	halted = !left_ns || idle_ns > left_ns + turn_ns;
	/* What comes on the way to a halt keeps the CPU from it: it was awake until then. */
	count(t, s, i, weight, p->halted ? 0 : p->polled_ns, halted ? left_ns : idle_ns, stay_ns,
	      halted);
	p->polled_ns += stay_ns;
	away_ns = (int64_t)(idle_ns - left_ns - turn_ns) + (s->exit_ns[i] > 0 ? s->exit_ns[i] : 0);
	p->halted_ns = halted && away_ns > 0 ? away_ns : 0;
	p->halted = halted;
	p->unlearned = true;
}

/* Is the period over, and has not been learned from? Then it is now. */
static inline __attribute__((always_inline)) bool learns(struct poll *p, const struct intervals *s,
							 size_t i, bool whole)
{
	if (!p->unlearned || goes_on(p, s, i, whole))
		return false;
	p->unlearned = false;
	return true;
}

void replay_fixed(u64 limit_ns, struct poll *p, const struct intervals *s, u64 weight,
		  struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		limited(p, t, s, i, weight, limit_ns, true);
}

static void haltpoll_learn(struct haltpoll *h, u64 halted_ns)
{
	u64 limit_ns = h->limit_ns;

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
		/* It learns from halts alone. */
		if (learns(p, s, i, false) && p->halted)
			haltpoll_learn(h, p->halted_ns);
		limited(p, t, s, i, weight, h->limit_ns, false);
	}
}

/* How long the CPU was idle in a period: its last halt is longer by what it costs. */
static inline u64 idle_ns_of(const struct poll *p, u64 halt_cost_ns)
{
	return p->polled_ns + p->slept_ns - min_of(p->halted_ns, halt_cost_ns);
}

void replay_lightsleep(struct lightsleep *l, struct poll *p, const struct intervals *s, u64 weight,
		       struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		if (learns(p, s, i, true)) {
			poll_limit_update(&l->policy, &l->params, idle_ns_of(p, l->halt_cost_ns));
			p->slept_ns = 0;
		}
		limited(p, t, s, i, weight, l->policy.limit_ns, true);
		p->slept_ns += p->halted_ns;
	}
}

/* Knows how long an interval lasts: polls where that is cheaper. Where nobody comes, it halts. */
void replay_optimum(const struct intervals *s, u64 weight, struct tally *t)
{
	for (size_t i = 0; i < s->count; i++) {
		bool halts = weight * s->cost_ns[i] < s->idle_ns[i] || !s->woken[i];
		u64 polled_ns = halts ? 0 : s->idle_ns[i];

		count(t, s, i, weight, 0, polled_ns, polled_ns, halts);
	}
}

/* What somebody else has decided. */
void replay_given(const u64 *polled_ns, const uint8_t *halted, const struct intervals *s, u64 weight,
		  struct tally *t)
{
	for (size_t i = 0; i < s->count; i++)
		count(t, s, i, weight, 0, polled_ns[i], polled_ns[i], halted[i]);
}

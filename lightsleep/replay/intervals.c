// SPDX-License-Identifier: GPL-2.0-only
/*
 * From rows to intervals, in one pass; intervals.py says what an interval is, and has the
 * same in Python.
 */
#include <stdbool.h>

#include "intervals.h"

/* What the peer's wakeup costs, if the two tasks wake each other in turn. */
static int64_t peer_ns_of(const struct costs *c, int64_t pair)
{
	size_t low = 0, high = c->loop_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (c->loops[middle] < pair)
			low = middle + 1;
		else
			high = middle;
	}
	return low < c->loop_count && c->loops[low] == pair ? c->peer_ns[low] : 0;
}

static int64_t max_of(int64_t x, int64_t y)
{
	return x > y ? x : y;
}

static int64_t min_of(int64_t x, int64_t y)
{
	return x < y ? x : y;
}

/* What a wakeup of the reference takes that is as slow as this one among those of its state. */
static int64_t usual_of(const struct costs *c, size_t state, int64_t wait_ns)
{
	int64_t low = c->ranks[state], high = c->ranks[state + 1];

	if (low == high)
		return c->usual_ns[state / STATES];
	/* The first element says 0, so no time is before it. */
	while (high - low > 1) {
		int64_t middle = (low + high) / 2;

		if (c->rank_from_ns[middle] <= wait_ns)
			low = middle;
		else
			high = middle;
	}
	return c->rank_usual_ns[low];
}

/* Has another CPU woken the task? Then the time from waking to running has what the exit took. */
static bool by_other(const struct rows *r, size_t i)
{
	return r->woken[i] && r->waker_cpu[i] != r->cpu[i];
}

/* What leaving the state of a row took at most: as long as since the timer that ended it was due. */
static int64_t most_ns(const struct costs *c, const struct rows *r, size_t i)
{
	int64_t late_ns = r->length_ns[i] - r->sleep_ns[i];

	if (c->given || r->cause[i] != c->timer || by_other(r, i) || r->sleep_ns[i] < 0 ||
	    late_ns < 0)
		return INT64_MAX;
	return late_ns;
}

#define FAR_NS	1000000000

struct ended {
	int64_t paid_ns;
	int64_t more_ns;
	int64_t peer_ns;
	int64_t timer_at_ns;
	bool polls;
	bool woken;
	bool nobody;
	bool tick;
};

static inline void emit(const struct costs *c, struct open_interval *s, const struct ended *e,
			struct recorded_intervals *d, size_t cpu)
{
	int64_t exit_ns = e->polls ? 0 : e->paid_ns;
	int64_t arrival_ns = max_of(s->end_ns - s->entered_ns - exit_ns, 0);
	/* What the arrival left of its own wakeup, and all of the peer's. */
	int64_t earlier_ns = (e->polls ? 0 : e->more_ns) + e->peer_ns;
	size_t i = d->next[cpu]++;

	d->entered_ns[i] = s->entered_ns;
	d->arrival_ns[i] = arrival_ns;
	d->earliest_ns[i] = arrival_ns - min_of(arrival_ns, earlier_ns);
	d->cost_ns[i] = e->woken ? e->paid_ns : 0;
	d->more_ns[i] = e->more_ns;
	d->typical_ns[i] = s->cost_ns;
	d->timer_ns[i] = e->timer_at_ns ? max_of(e->timer_at_ns - s->entered_ns, 0) : FAR_NS;
	d->polled_ns[i] = s->polled_ns;
	d->exit_ns[i] = e->polls ? s->cost_ns : s->end_ns - s->entered_ns - arrival_ns;
	d->state[i] = s->state;
	d->halted[i] = !e->polls;
	d->woken[i] = e->woken;
	d->block[i] = min_of(max_of(s->entered_ns - c->first_ns, 0) / c->width_ns, c->blocks - 1);
	d->resumes[i] = s->nobody && s->entered_ns - s->ended_ns <= c->joined_ns;
	d->nobody[i] = e->nobody;
	d->tick[i] = e->tick;
	s->ended_ns = s->end_ns;
	s->nobody = e->nobody;
}

/* What went on without a result polled, and woke nobody. */
static void close_poll(const struct costs *c, struct open_interval *s,
		       struct recorded_intervals *d, size_t cpu)
{
	struct ended in_vain = {
		.polls = true, .nobody = true, .timer_at_ns = s->timer_at_ns,
	};

	emit(c, s, &in_vain, d, cpu);
	s->open = false;
}

void intervals_make(const struct rows *r, const struct costs *c, struct open_interval *open,
		struct recorded_intervals *d)
{
	for (size_t i = 0; i < r->count; i++) {
		size_t cpu = r->cpu[i];
		struct open_interval *s = &open[cpu];
		int state = r->state[i];
		int64_t table = c->table[cpu];
		bool known = state >= 0 && state < STATES;
		bool polls = known && c->polls[cpu * STATES + state];
		int64_t begin_ns = r->entered_ns[i], end_ns = begin_ns + r->length_ns[i];
		struct ended e = { .polls = polls, .woken = r->woken[i] };

		if (state == -1) {	/* a wakeup of a CPU that was awake: what was before is over */
			if (s->open)
				close_poll(c, s, d, cpu);
			s->nobody = false;
			continue;
		}
		e.nobody = !r->somebody[i] && !e.woken;
		e.tick = r->cause[i] == c->tick;
		if (s->open && begin_ns - s->end_ns > c->joined_ns)
			close_poll(c, s, d, cpu);
		if (!s->open) {
			s->entered_ns = begin_ns;
			s->polled_ns = 0;
		}
		s->end_ns = end_ns;
		s->polled_ns += polls ? r->length_ns[i] : 0;
		s->cost_ns = known && !polls ? c->state_ns[table * STATES + state] : c->halt_ns[table];
		s->state = polls ? c->halt_state[table] : known ? state : NO_STATE;
		if (r->sleep_ns[i] >= 0)
			e.timer_at_ns = begin_ns + r->sleep_ns[i];
		else if (r->cause[i] == c->timer)
			e.timer_at_ns = end_ns - (polls ? 0 : s->cost_ns);
		s->timer_at_ns = e.timer_at_ns;
		s->open = polls && r->cause[i] == c->unknown && !r->somebody[i] && !e.woken;
		if (s->open)
			continue;
		if (polls)
			e.paid_ns = s->cost_ns;
		else if (c->given || !by_other(r, i))
			e.paid_ns = min_of(s->cost_ns, most_ns(c, r, i));
		else if (known)
			e.paid_ns = max_of(r->wait_ns[i] - usual_of(c, table * STATES + state,
								    r->wait_ns[i]), 0);
		else
			e.paid_ns = max_of(r->wait_ns[i] - c->usual_ns[table], 0);
		if (e.woken)
			e.more_ns = polls ? c->supposed_ns : min_of(c->supposed_ns,
								   most_ns(c, r, i) - e.paid_ns);
		if (e.woken && c->loop_count)
			e.peer_ns = peer_ns_of(c, (int64_t)r->waker[i] << 32 | r->wakee[i]);
		emit(c, s, &e, d, cpu);
	}
}

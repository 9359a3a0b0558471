// SPDX-License-Identifier: GPL-2.0-only
/*
 * When should a shallow idle state be left for a deeper one?
 *
 * A governor that expects the CPU to be busy again soon asks for a shallow
 * state. Where it is wrong, nothing corrects it: the CPU sleeps, and sleeping
 * CPUs do not decide. It stays there until something wakes it, which is the
 * tick at best, some milliseconds later, and where the tick is stopped anything
 * at all, maybe seconds later.
 *
 * A timer can correct it. It has to answer two questions.
 *
 * 1. When is the guess known to be wrong? A state pays off from its target
 *    residency R on, and leaving the shallow state for it costs a wake, of
 *    about the exit latency. With L, the exit latency of the next deeper
 *    state, the CPU waits for
 *
 *	T = R + 2L.
 *
 *    This is a ski rental, as in poll_limit.c: who sleeps shallow for as long as
 *    the deeper state takes to pay off, and then changes over, spends at most
 *    2 + 2L/R times the energy of the clairvoyant, however long the sleep. The
 *    2L are one latency for the way out, and one for the deeper state, which has
 *    to be left again. No history enters into it: history is what the governor
 *    had, and it was wrong.
 *
 * 2. What then? The next deeper state, at once. It is the least deep that the
 *    time that has passed has justified, and the governor is not asked: it
 *    would be asked with the same history as before, and say the same. From
 *    there, the same rule leads on, so that k deeper states are reached in k
 *    steps and, after the last, no timer is armed at all: a CPU that sleeps
 *    in its deepest allowed state is never disturbed.
 *
 * A tick, or a timer that runs no task, says nothing new: the CPU is idle still. It
 * goes back to the state that it had reached, for the same reason.
 *
 * What makes a promotion pointless is known before the timer is armed, so it is
 * not armed then: there is nothing deeper that is allowed, by its user, its
 * driver, or the latency limit; or something else ends the sleep before the
 * deeper state, entered at T, could pay off, i.e. within T + R. This is the next
 * event of the clock: a timer, or the tick if it was kept. So a tick that is
 * near is made use of, instead of doubled.
 *
 * States are in the order of their depth, as in every driver. T and the next
 * state of each are precomputed when a state is enabled or disabled, as one
 * pass; what is left for the way into idle is two comparisons. Sums saturate:
 * a time that does not fit means never.
 *
 * Context: promote_plan() is called by whoever changes a setting, one at a time;
 * the others by the CPU that goes idle, which may see half of a change: the next
 * state of the new settings with the timeout of the old ones. That is a timer
 * armed for a moment too long or short, once; promote_floor() has the last word.
 */
#include <linux/compiler.h>
#include <linux/types.h>

#include "promote_policy.h"

static u64 add(u64 a, u64 b)
{
	u64 sum = a + b;

	return sum < a ? ~0ULL : sum;
}

/**
 * promote_plan - derive timeouts and next states
 * @states: all states of one CPU, by depth
 * @count: how many
 */
void promote_plan(struct promote_state *states, unsigned int count)
{
	int next = PROMOTE_NONE;

	for (int i = (int)count - 1; i >= 0; i--) {
		struct promote_state *state = &states[i];
		u64 timeout_ns = 0;

		if (state->leavable && next != PROMOTE_NONE) {
			const struct promote_state *deeper = &states[next];

			timeout_ns = add(deeper->residency_ns,
					 add(deeper->latency_ns, deeper->latency_ns));
		}
		WRITE_ONCE(state->timeout_ns, timeout_ns);
		WRITE_ONCE(state->next, next);
		if (state->allowed)
			next = i;
	}
}

/**
 * promote_timeout - for how long may the CPU sleep in a state?
 * @states: all states of one CPU
 * @index: the one it is about to enter
 * @event_ns: time until the next event of its clock
 *
 * Return: after how many ns a timer is to end it; 0: no timer.
 */
u64 promote_timeout(const struct promote_state *states, unsigned int index, u64 event_ns)
{
	u64 timeout_ns = READ_ONCE(states[index].timeout_ns);
	int next = READ_ONCE(states[index].next);

	if (!timeout_ns || next == PROMOTE_NONE)
		return 0;
	if (event_ns <= add(timeout_ns, states[next].residency_ns))
		return 0;
	return timeout_ns;
}

/**
 * promote_ended - has what has come meanwhile, the timer or the clock's event, ended the sleep?
 * @timeout_ns: after how many ns it was to come
 * @slept_ns: how long the CPU was in the state
 *
 * Another interrupt may have ended the sleep before, and this one have come during its
 * work. The sleep begins a little after @timeout_ns does, so it may be shorter; half of
 * that leaves enough room.
 *
 * Return: whether it has.
 */
bool promote_ended(u64 timeout_ns, u64 slept_ns)
{
	return slept_ns >= timeout_ns / 2;
}

/**
 * promote_floor - which state comes after a state that was a wrong guess?
 * @states: all states of one CPU
 * @index: the state it was in
 * @limit_ns: the highest exit latency that is tolerated now
 *
 * Return: its index, or PROMOTE_NONE.
 */
int promote_floor(const struct promote_state *states, unsigned int index, u64 limit_ns)
{
	int next = READ_ONCE(states[index].next);

	if (next == PROMOTE_NONE || states[next].latency_ns > limit_ns)
		return PROMOTE_NONE;
	return next;
}

/**
 * promote_returns - does a CPU go back to the state that it was promoted to?
 * @states: all states of one CPU
 * @index: what the governor has chosen meanwhile, a shallower one
 * @reached: the state it was in when the clock ended its sleep
 * @limit_ns: the highest exit latency that is tolerated now
 * @event_ns: time until the next event of its clock
 *
 * What has not changed is that it is idle, and has been for longer than it takes
 * for @reached to pay off. What may have changed is all the rest.
 *
 * Return: whether it does.
 */
bool promote_returns(const struct promote_state *states, unsigned int index, unsigned int reached,
		     u64 limit_ns, u64 event_ns)
{
	const struct promote_state *state = &states[reached];

	return READ_ONCE(states[index].timeout_ns) && READ_ONCE(state->allowed) &&
	       state->latency_ns <= limit_ns && event_ns > state->residency_ns;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The CPU of machine.c, whose governor is asked in the periods of a recording, and is
 * told what the recorded one was told.
 */
#define tick_nohz_get_sleep_length	simulated_sleep_length
#include "machine.c"
#undef tick_nohz_get_sleep_length

#define UNKNOWN_NS	INT64_MIN

/**
 * struct recorded - an idle period of a real CPU, as its governor saw it
 * @begin_ns: when the CPU entered the state
 * @length_ns: until it left it
 * @sleep_ns: what the governor was told of the next timer; UNKNOWN_NS where it did not ask
 * @next_ns: what it was told of the next event of the clock; UNKNOWN_NS where nobody knows
 * @state: the state that the CPU entered
 * @tick: the tick ended it
 * @leaves: the CPU left its idle loop then
 * @expired: it polled until the limit of the state
 */
struct recorded {
	u64 begin_ns;
	u64 length_ns;
	s64 sleep_ns;
	s64 next_ns;
	s32 state;
	u16 tick;
	uint8_t leaves;
	uint8_t expired;
};

static s64 next_ns = UNKNOWN_NS;
static bool asked;

ktime_t tick_nohz_get_sleep_length(ktime_t *delta_next)
{
	ktime_t sleep_ns = simulated_sleep_length(delta_next);

	asked = true;
	if (next_ns != UNKNOWN_NS)
		*delta_next = next_ns;
	return sleep_ns;
}

/*
 * When the tick is due, and whether it runs, as far as the governor was told: the
 * clock's next event is never later than a tick that runs, and never before the next
 * timer unless it is that tick. Else the tick comes at multiples of its period, as it
 * does by CLOCK_MONOTONIC since Linux 6.4.
 */
static void know_tick(const struct recorded *r)
{
	tick_ns = now_ns + TICK_NSEC - now_ns % TICK_NSEC;
	next_ns = r->next_ns;
	if (next_ns == UNKNOWN_NS)
		return;
	if (next_ns > TICK_NSEC) {
		tick_stopped = true;
	} else if (next_ns < r->sleep_ns) {
		tick_stopped = false;
		tick_ns = now_ns + next_ns;
	}
}

/*
 * What the governor would have chosen in each period of a recording, had it been
 * asked then. It learns what the recorded CPU did, not what it has chosen itself.
 * @known[i]: it asked for the next timer, and the recording knows, or it did not
 * ask and the recorded one did not, either.
 *
 * Evidence that a period ended by the tick is the first evidence only. A tick that
 * was due by then has come, too.
 */
void machine_follow(const struct recorded *rows, size_t count, s32 *chosen, bool *known)
{
	for (size_t i = 0; i < count; i++) {
		const struct recorded *r = &rows[i];
		bool stop_tick = true, asks = r->sleep_ns != UNKNOWN_NS;

		now_ns = r->begin_ns;
		timer_ns = now_ns + (asks ? r->sleep_ns : TICK_NSEC);
		know_tick(r);
		asked = false;
		chosen[i] = governor->select(&driver, &device, &stop_tick);
		known[i] = asked == asks;
		if (stop_tick && timer_ns > now_ns + TICK_NSEC)
			tick_stopped = true;
		now_ns += r->length_ns;
		device.last_residency_ns = r->length_ns;
		device.poll_time_limit = r->expired;
		got_tick = r->tick || (!tick_stopped && tick_ns <= now_ns);
		governor->reflect(&device, r->state);
		if (r->leaves) {
			tick_stopped = false;
			got_tick = false;
		}
	}
	next_ns = UNKNOWN_NS;
}

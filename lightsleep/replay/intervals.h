/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What intervals.c reads and writes; cffi reads this file, too.
 */
#ifndef _LIGHTSLEEP_REPLAY_INTERVALS_H
#define _LIGHTSLEEP_REPLAY_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

#define STATES	256
#define NO_STATE	(STATES - 1)

/**
 * struct rows - idle periods, as a recording's table has them
 * @sleep_ns: until the next timer, as the governor was told; -1 where it is not known
 * @waker_cpu: on which CPU the task was woken: on its own one, an interrupt did that
 * @somebody: whether a task ran next
 * @woken: whether @wait_ns is known
 */
struct rows {
	size_t count;
	const int32_t *cpu;
	const int64_t *entered_ns;
	const int64_t *length_ns;
	const int16_t *state;
	const int8_t *cause;
	const int64_t *sleep_ns;
	const int32_t *waker;
	const int32_t *waker_cpu;
	const int32_t *wakee;
	const uint8_t *somebody;
	const int64_t *wait_ns;
	const uint8_t *woken;
};

/**
 * struct costs - what intervals.py knows before it makes intervals of rows
 * @cpus: every row's CPU is below
 * @polls: whether a CPU polls in a state; STATES for each CPU
 * @table: of each CPU, the number of its table of states
 * @state_ns: what leaving a state costs; STATES for each table
 * @ranks: of each state, where what @rank_from_ns and @rank_usual_ns say of it begins; what the next
 *	   one says begins where it ends. STATES for each table, and one more
 * @rank_from_ns: a wakeup that took so long or longer is as slow as
 * @rank_usual_ns: one of the reference that took so long
 * @usual_ns: what a wakeup of the reference typically takes, by table, for states without ranks
 * @supposed_ns: the same, of all tables, where that is only supposed; else 0
 * @halt_ns: what leaving a state in which the CPU polls costs, by table: what a halt does
 * @halt_state: the state of a halt where the recorded CPU only polled, by table
 * @unknown: the cause of periods that ended without evidence
 * @tick: the cause of those that the tick ended
 * @timer: the cause of those that a timer ended
 * @given: the user says what each wakeup from a halt costs
 * @loops: pairs of waker and wakee in closed loops, in order
 * @peer_ns: the most that a wakeup of the waker by the wakee costs, of each
 */
struct costs {
	size_t cpus;
	const uint8_t *polls;
	const int64_t *table;
	const int64_t *state_ns;
	const int64_t *ranks;
	const int64_t *rank_from_ns;
	const int64_t *rank_usual_ns;
	const int64_t *usual_ns;
	const int64_t *halt_ns;
	const uint8_t *halt_state;
	int64_t supposed_ns;
	int64_t joined_ns;
	int64_t first_ns;
	int64_t width_ns;
	int64_t blocks;
	int8_t unknown;
	int8_t timer;
	int8_t tick;
	uint8_t given;
	const int64_t *loops;
	const int64_t *peer_ns;
	size_t loop_count;
};

/**
 * struct open_interval - an interval of one CPU that the next row may go on with
 * @ended_ns: when the interval before it ended
 * @nobody: that one ended without a task
 * @open: the next row may go on with it
 */
struct open_interval {
	int64_t entered_ns;
	int64_t end_ns;
	int64_t polled_ns;
	int64_t cost_ns;
	int64_t timer_at_ns;
	int64_t state;
	int64_t ended_ns;
	int64_t nobody;
	int64_t open;
};

/**
 * struct recorded_intervals - the intervals of all CPUs, those of each one behind another
 * @next: of each CPU, where its next interval goes
 */
struct recorded_intervals {
	size_t *next;
	int64_t *entered_ns;
	int64_t *arrival_ns;
	int64_t *earliest_ns;
	int64_t *cost_ns;
	int64_t *more_ns;
	int64_t *typical_ns;
	int64_t *timer_ns;
	int64_t *polled_ns;
	int64_t *exit_ns;
	uint8_t *state;
	uint8_t *halted;
	uint8_t *woken;
	uint8_t *block;
	uint8_t *resumes;
	uint8_t *nobody;
	uint8_t *tick;
};

void intervals_make(const struct rows *r, const struct costs *c, struct open_interval *open,
		struct recorded_intervals *d);

#endif /* _LIGHTSLEEP_REPLAY_INTERVALS_H */

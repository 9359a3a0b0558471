/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What builder.c makes of events; trace_dat.py reads the same layout.
 */
#ifndef LIGHTSLEEP_BUILDER_H
#define LIGHTSLEEP_BUILDER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define COMM		16		/* TASK_COMM_LEN */
#define EXIT		0xffffffffu	/* the state of cpu_idle at the end of a period */
#define AWAKE		(-1)		/* the state of a CPU that is in none */
#define MAX_CPUS	100000
#define MAX_STATE	255
#define ALIVE		UINT64_MAX	/* in place of the number of rows of a block */

/* In the order of CAUSES of model.py. */
enum cause { IPI, STORE, TIMER, TICK, DEVICE, UNKNOWN };

enum miss { NO_MISS, ABOVE, BELOW };

/* What has been met, in the order of MET of model.py. */
enum { MET_CPU_IDLE = 1, MET_WAKING = 2, MET_SWITCH = 4, MET_NAMED = 8, MET_NAMELESS = 16 };

/* Which columns of a row have a value. */
enum { HAS_SLEEP = 1, HAS_EVENT = 2, HAS_WAKER = 4, HAS_WAKEE = 8 };

/**
 * struct row - one idle period, as columns.py has it
 * @has: the columns with a value
 */
struct row {
	int64_t entered_ns;
	int64_t length_ns;
	int64_t sleep_length_ns;
	int64_t next_event_ns;
	int64_t waking_to_running_ns;
	int32_t cpu;
	int32_t waker_pid;
	int32_t wakee_pid;
	int32_t waker_cpu;
	int16_t state;
	uint8_t cause;
	uint8_t miss;
	uint32_t has;
	char waker_comm[COMM];
	char wakee_comm[COMM];
};

/* What the governor knew as it chose a state. */
struct prediction {
	int64_t sleep_length_ns;
	int64_t next_event_ns;
	uint32_t has;
};

enum phase { BUSY, IDLE, LEFT, RUNS_IDLE_TASK, COUNTED };

/*
 * Cpu of build.py. @seen: something happened on it; @woke: the task that this event wakes,
 * @woke_last: the one that the event before it woke; -1 where it woke none.
 */
struct cpu {
	int64_t last_ns;
	int64_t entered_ns;
	int64_t left_ns;
	uint64_t lost;
	int32_t woke;
	int32_t woke_last;
	struct prediction of_state;
	struct prediction of_next;
	int16_t state;
	uint8_t phase;
	uint8_t cause;
	uint8_t miss;
	bool seen;
};

/* Waking of build.py, by the task that is woken. */
struct waking {
	int64_t at_ns;
	int32_t wakee;
	int32_t pid;
	int32_t cpu;	/* on which it was woken */
	char comm[COMM];
	uint32_t losses;	/* how often events had been lost by then */
	bool used;
};

/* What a task is called. */
struct name {
	int32_t task;	/* 0: of none */
	char comm[COMM];
};

/**
 * struct builder - Builder of build.py
 * @out: where rows go
 * @met: what of MET_... has been met
 * @error: why an event cannot follow those before it; empty as long as all can
 */
struct builder {
	FILE *out;
	struct cpu *cpus;
	int cpu_count;
	struct waking *wakings;
	uint32_t waking_count;
	struct name *names;
	struct row *rows;
	uint64_t row_count;
	int64_t first_ns;
	int64_t last_ns;
	uint64_t events;
	uint64_t incomplete;
	uint32_t losses;
	uint32_t met;
	char error[200];
};

bool builder_init(struct builder *b, FILE *out);
bool builder_at(struct builder *b, int number, int64_t now_ns);
bool builder_alive(struct builder *b);
void builder_cpu_idle(struct builder *b, int number, int64_t now_ns, uint32_t state);
void builder_sleep_length(struct builder *b, int number, int64_t length_ns, const int64_t *event_ns);
void builder_miss(struct builder *b, int number, enum miss kind);
void builder_sent(struct builder *b, int number, enum cause cause);
void builder_happened(struct builder *b, int number, enum cause cause);
void builder_timer(struct builder *b, int number, bool named);
void builder_named(struct builder *b, int32_t task, const char *comm);
const char *builder_name(const struct builder *b, int32_t task);
void builder_waking(struct builder *b, int number, int64_t now_ns, int32_t wakee, const char *comm,
		    int32_t pid);
void builder_migrated(struct builder *b, int number, int64_t now_ns, int32_t task);
void builder_switch_between_tasks(struct builder *b, int32_t task);
void builder_switch_from_idle(struct builder *b, int number, int64_t now_ns, const char *comm,
			      int32_t pid);
void builder_switch_to_idle(struct builder *b, int number, int64_t now_ns);
void builder_lost(struct builder *b, int number, uint64_t count);
bool builder_finish(struct builder *b);

#endif

// SPDX-License-Identifier: GPL-2.0-only
/*
 * From events to idle periods: Builder of build.py, compiled. build.py says what the phases
 * of a CPU are, and what is evidence of what; nothing here decides otherwise.
 *
 * Rows go to a stream in blocks: their number (uint64_t), then as many struct row. A block
 * of 0 rows is the last one. In place of a number, ALIVE says that there are no more rows yet,
 * and that the program has not hung.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder.h"

#define BLOCK		4096
#define SLOTS		(1 << 18)	/* of the wakings: a power of two */
#define MAX_WAKINGS	(SLOTS / 2)	/* as many as build.py remembers */
#define MAX_NAMES	(1 << 14)	/* as build.py */
#define WAKEUP_NS	1000000		/* as build.py, which says why */

bool builder_init(struct builder *b, FILE *out)
{
	memset(b, 0, sizeof(*b));
	b->out = out;
	b->wakings = calloc(SLOTS, sizeof(*b->wakings));
	b->rows = calloc(BLOCK, sizeof(*b->rows));
	b->names = calloc(MAX_NAMES, sizeof(*b->names));
	return b->wakings && b->rows && b->names;
}

static bool flush(struct builder *b)
{
	bool ok = fwrite(&b->row_count, sizeof(b->row_count), 1, b->out) == 1 &&
		  fwrite(b->rows, sizeof(*b->rows), b->row_count, b->out) == b->row_count;

	b->row_count = 0;
	return ok;
}

/* Tells who reads the stream that more follows. False if the stream takes no more. */
bool builder_alive(struct builder *b)
{
	uint64_t alive = ALIVE;

	return fwrite(&alive, sizeof(alive), 1, b->out) == 1 && !fflush(b->out);
}

/* The CPU of that number, if something has happened on it. */
static struct cpu *known(struct builder *b, int number)
{
	return number >= 0 && number < b->cpu_count && b->cpus[number].seen ?
	       &b->cpus[number] : NULL;
}

static bool grow(struct builder *b, int number)
{
	int count = number + 64;
	struct cpu *cpus = realloc(b->cpus, count * sizeof(*cpus));

	if (!cpus)
		return false;
	memset(cpus + b->cpu_count, 0, (count - b->cpu_count) * sizeof(*cpus));
	b->cpus = cpus;
	b->cpu_count = count;
	return true;
}

/* Something happens on a CPU now; false if that cannot be. */
bool builder_at(struct builder *b, int number, int64_t now_ns)
{
	struct cpu *cpu;

	if (number < 0 || number >= MAX_CPUS) {
		snprintf(b->error, sizeof(b->error), "no kernel has a CPU %d", number);
		return false;
	}
	if (number >= b->cpu_count && !grow(b, number)) {
		snprintf(b->error, sizeof(b->error), "no memory for CPU %d", number);
		return false;
	}
	if (!b->events++) {
		b->first_ns = now_ns;
		b->last_ns = now_ns;
	}
	if (now_ns > b->last_ns)
		b->last_ns = now_ns;
	cpu = &b->cpus[number];
	if (!cpu->seen) {
		cpu->seen = true;
		cpu->state = AWAKE;
		cpu->cause = UNKNOWN;
		cpu->woke = -1;
	}
	if (now_ns < cpu->last_ns) {
		snprintf(b->error, sizeof(b->error),
			 "time runs backwards on CPU %d, from %" PRId64 " ns to %" PRId64 " ns",
			 number, cpu->last_ns, now_ns);
		return false;
	}
	cpu->last_ns = now_ns;
	cpu->woke_last = cpu->woke;
	cpu->woke = -1;
	return true;
}

static void emit(struct builder *b, int number, const struct cpu *cpu, const char *wakee_comm,
		 int32_t wakee, const struct waking *waking, int64_t now_ns)
{
	struct row *row = &b->rows[b->row_count++];

	memset(row, 0, sizeof(*row));
	row->cpu = number;
	row->entered_ns = cpu->entered_ns;
	row->length_ns = cpu->left_ns - cpu->entered_ns;
	row->state = cpu->state;
	row->sleep_length_ns = cpu->of_state.sleep_length_ns;
	row->next_event_ns = cpu->of_state.next_event_ns;
	row->has = cpu->of_state.has;
	row->cause = cpu->cause;
	row->miss = cpu->miss;
	if (wakee_comm) {
		row->has |= HAS_WAKEE;
		row->wakee_pid = wakee;
		memcpy(row->wakee_comm, wakee_comm, COMM);
	}
	if (waking && waking->at_ns >= cpu->entered_ns) {
		row->has |= HAS_WAKER;
		row->waker_pid = waking->pid;
		row->waker_cpu = waking->cpu;
		memcpy(row->waker_comm, waking->comm, COMM);
		row->waking_to_running_ns = now_ns - waking->at_ns;
	}
	if (b->row_count == BLOCK && !flush(b))
		snprintf(b->error, sizeof(b->error), "the reader has gone");
}

/* A wakeup found its CPU in no state. */
static void emit_awake(struct builder *b, int number, struct cpu *cpu, const char *comm,
		       int32_t pid, const struct waking *waking, int64_t now_ns)
{
	cpu->state = AWAKE;
	cpu->cause = UNKNOWN;
	cpu->miss = NO_MISS;
	cpu->of_state = (struct prediction) { };
	cpu->entered_ns = waking->at_ns;
	cpu->left_ns = waking->at_ns;
	emit(b, number, cpu, comm, pid, waking, now_ns);
}

/* A CPU enters a state, or leaves one. */
void builder_cpu_idle(struct builder *b, int number, int64_t now_ns, uint32_t state)
{
	struct cpu *cpu = &b->cpus[number];

	b->met |= MET_CPU_IDLE;
	if (state == EXIT) {
		if (cpu->phase == IDLE) {
			cpu->phase = LEFT;
			cpu->left_ns = now_ns;
		} else if (cpu->phase == BUSY || cpu->phase == RUNS_IDLE_TASK) {
			/* It was asleep before the recording began. */
			b->incomplete++;
			cpu->phase = COUNTED;
		}
		return;
	}
	if (cpu->phase == LEFT)
		emit(b, number, cpu, NULL, 0, NULL, 0);
	else if (cpu->phase == IDLE)
		b->incomplete++;
	cpu->phase = IDLE;
	cpu->entered_ns = now_ns;
	cpu->state = state;
	cpu->cause = UNKNOWN;
	cpu->miss = NO_MISS;
	cpu->of_state = cpu->of_next;
	cpu->of_next = (struct prediction) { };
}

/* The governor of a CPU was told how far away its next timer is, and its next event. */
void builder_sleep_length(struct builder *b, int number, int64_t length_ns, const int64_t *event_ns)
{
	b->cpus[number].of_next = (struct prediction) {
		.sleep_length_ns = length_ns,
		.next_event_ns = event_ns ? *event_ns : 0,
		.has = HAS_SLEEP | (event_ns ? HAS_EVENT : 0),
	};
}

/* The governor's last choice was too deep or too shallow. */
void builder_miss(struct builder *b, int number, enum miss kind)
{
	struct cpu *cpu = known(b, number);

	if (cpu)
		cpu->miss = kind;
}

/* Another CPU did something that ends an idle period of this one. */
void builder_sent(struct builder *b, int number, enum cause cause)
{
	struct cpu *cpu = known(b, number);

	if (!cpu || cpu->phase != IDLE)
		return;
	if (cpu->cause == UNKNOWN || (cause == STORE && cpu->cause != IPI))
		cpu->cause = cause;
}

/* Something happens on a CPU that ends an idle period. */
void builder_happened(struct builder *b, int number, enum cause cause)
{
	struct cpu *cpu = &b->cpus[number];

	if ((cpu->phase == IDLE || cpu->phase == LEFT) && cpu->cause == UNKNOWN)
		cpu->cause = cause;
}

/* A timer expires, before what happens by it. Without a name, it may be the tick. */
void builder_timer(struct builder *b, int number, bool named)
{
	struct cpu *cpu = &b->cpus[number];

	if (named)
		b->met |= MET_NAMED;
	else if ((cpu->phase == IDLE || cpu->phase == LEFT) && cpu->cause == UNKNOWN)
		b->met |= MET_NAMELESS;
}

/* Where a task's waking is, or would go: open addressing, linear probing. */
static struct waking *slot_of(struct builder *b, int32_t wakee)
{
	uint32_t i = (uint32_t)wakee * 2654435769u >> 14;

	while (b->wakings[i].used && b->wakings[i].wakee != wakee)
		i = (i + 1) % SLOTS;
	return &b->wakings[i];
}

/* Takes a waking out, and moves those back that were put further on because of it. */
static void forget(struct builder *b, struct waking *waking)
{
	uint32_t hole = waking - b->wakings, i = hole;

	b->waking_count--;
	for (;;) {
		uint32_t home;

		i = (i + 1) % SLOTS;
		if (!b->wakings[i].used)
			break;
		home = (uint32_t)b->wakings[i].wakee * 2654435769u >> 14;
		if ((i - home) % SLOTS >= (i - hole) % SLOTS) {
			b->wakings[hole] = b->wakings[i];
			hole = i;
		}
	}
	b->wakings[hole].used = false;
}

/* Takes out the wakings before the last loss, which nobody asks for any more. */
static void forget_those_before_the_loss(struct builder *b)
{
	uint32_t i = 0;

	while (i < SLOTS) {
		struct waking *waking = &b->wakings[i];

		if (waking->used && waking->losses != b->losses)
			forget(b, waking);	/* another one may be here now */
		else
			i++;
	}
}

/* An event says what a task is called. The idle tasks have one name for each CPU. */
void builder_named(struct builder *b, int32_t task, const char *comm)
{
	struct name *name = &b->names[task % MAX_NAMES];

	if (task <= 0)
		return;
	name->task = task;
	memcpy(name->comm, comm, COMM);
}

/* What the last event that names a task calls it; NULL if none has. */
const char *builder_name(const struct builder *b, int32_t task)
{
	const struct name *name = &b->names[task % MAX_NAMES];

	return task > 0 && name->task == task ? name->comm : NULL;
}

/* A task is woken on a CPU; it may run on another. */
void builder_waking(struct builder *b, int number, int64_t now_ns, int32_t wakee, const char *comm,
		    int32_t pid)
{
	struct waking *waking;

	b->met |= MET_WAKING;
	b->cpus[number].woke = wakee;
	if (b->waking_count >= MAX_WAKINGS)
		forget_those_before_the_loss(b);
	if (b->waking_count >= MAX_WAKINGS) {
		memset(b->wakings, 0, SLOTS * sizeof(*b->wakings));
		b->waking_count = 0;
	}
	waking = slot_of(b, wakee);
	b->waking_count += !waking->used;
	waking->used = true;
	waking->wakee = wakee;
	waking->at_ns = now_ns;
	waking->losses = b->losses;
	waking->pid = pid;
	waking->cpu = number;
	memcpy(waking->comm, comm, COMM);
}

/* A CPU that was not idle runs a task. */
void builder_switch_between_tasks(struct builder *b, int32_t task)
{
	struct waking *waking = slot_of(b, task);

	b->met |= MET_SWITCH;
	if (waking->used)
		forget(b, waking);
}

/* A CPU moves a task to another one. */
void builder_migrated(struct builder *b, int number, int64_t now_ns, int32_t task)
{
	struct waking *waking = slot_of(b, task);
	bool in_wakeup = b->cpus[number].woke_last == task && now_ns - waking->at_ns <= WAKEUP_NS;

	if (waking->used && !in_wakeup)
		forget(b, waking);
}

/* A CPU runs a task again. */
void builder_switch_from_idle(struct builder *b, int number, int64_t now_ns, const char *comm,
			      int32_t pid)
{
	struct cpu *cpu = &b->cpus[number];
	struct waking *found = slot_of(b, pid);
	/* Since events were lost, the task may have run, and been woken again. */
	struct waking *waking = found->used && found->losses == b->losses ? found : NULL;

	b->met |= MET_SWITCH;
	if (cpu->phase == LEFT && waking && waking->cpu != number &&
	    waking->at_ns > cpu->left_ns) {	/* the CPU was awake already */
		emit(b, number, cpu, NULL, 0, NULL, 0);
		emit_awake(b, number, cpu, comm, pid, waking, now_ns);
	} else if (cpu->phase == LEFT) {
		emit(b, number, cpu, comm, pid, waking, now_ns);
	} else if (cpu->phase == IDLE) {	/* its end is lost */
		b->incomplete++;
	} else if (cpu->phase == RUNS_IDLE_TASK && waking && waking->at_ns >= cpu->entered_ns) {
		emit_awake(b, number, cpu, comm, pid, waking, now_ns);
	}
	cpu->phase = BUSY;
	if (found->used)
		forget(b, found);
}

/* A CPU has nothing to run. */
void builder_switch_to_idle(struct builder *b, int number, int64_t now_ns)
{
	struct cpu *cpu = &b->cpus[number];

	b->met |= MET_SWITCH;
	if (cpu->phase == LEFT)	/* idle time was injected: a thread was idle, which goes now */
		emit(b, number, cpu, NULL, 0, NULL, 0);
	else if (cpu->phase == IDLE)	/* the switch between is lost */
		b->incomplete++;
	cpu->phase = RUNS_IDLE_TASK;
	cpu->entered_ns = now_ns;
	/* A state was chosen before, but not entered: a task came. */
	cpu->of_next = (struct prediction) { };
}

/*
 * The kernel lost events of a CPU: what it does is not known. A count of 0 says when a loss that is
 * told elsewhere begins or ends.
 */
void builder_lost(struct builder *b, int number, uint64_t count)
{
	struct cpu *cpu;

	if (number < 0 || number >= MAX_CPUS || (number >= b->cpu_count && !grow(b, number)))
		return;
	cpu = &b->cpus[number];
	cpu->lost += count;
	b->losses++;
	if (cpu->seen) {
		bool asleep = cpu->phase == IDLE || cpu->phase == LEFT;

		b->incomplete += asleep;
		cpu->phase = asleep || cpu->phase == COUNTED ? COUNTED : BUSY;
		cpu->of_next = (struct prediction) { };
	}
}

/* No event follows: what has not ended is no period. False if the stream takes no more. */
bool builder_finish(struct builder *b)
{
	int number;

	for (number = 0; number < b->cpu_count; number++) {
		struct cpu *cpu = &b->cpus[number];

		if (cpu->phase == LEFT)
			emit(b, number, cpu, NULL, 0, NULL, 0);
		else if (cpu->phase == IDLE)
			b->incomplete++;
		cpu->phase = BUSY;
	}
	return (!b->row_count || flush(b)) && flush(b) && !b->error[0];
}

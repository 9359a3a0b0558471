// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads a trace.dat by trace-cmd's library, and writes its idle periods to standard output:
 * the blocks of builder.c, then one JSON document with what else became known.
 *
 * A program of its own, because a damaged file may make the library ask for any amount of
 * memory, hang or crash. It means the same events and fields as lines.py does in the text
 * of trace-cmd report, which is read where this cannot be compiled.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <trace-cmd.h>

#include "builder.h"

#define TYPES		65536	/* struct trace_entry has 16 bits for them */
#define COMMS		1024	/* names of the table that are remembered; a power of two */
#define FIELDS		4
#ifndef ALIVE_EVERY
#define ALIVE_EVERY	65536	/* events, of any kind: a fraction of a second */
#endif

struct event;

struct reader;

struct kind {
	const char *name;
	const char *fields[FIELDS];	/* what must be there */
	bool (*handle)(struct reader *r, const struct event *e, struct tep_record *rec);
};

/* An event of this file. */
struct event {
	const struct kind *kind;	/* NULL: none of ours */
	bool known;			/* that, or the rest, has been looked up */
	struct tep_format_field *fields[FIELDS];
	struct tep_format_field *next;
};

struct comm {
	int32_t pid;
	bool used;
	char name[COMM];
};

struct reader {
	struct builder b;
	struct tep_handle *tep;
	struct event *events;
	struct comm comms[COMMS];
	uint64_t records;
	char error[300];
};

static bool fail(struct reader *r, const char *what)
{
	if (!r->error[0])
		snprintf(r->error, sizeof(r->error), "%s", what);
	return false;
}

static bool number(struct reader *r, struct tep_format_field *field, struct tep_record *rec,
		   unsigned long long *value)
{
	if (field->offset + field->size > rec->size ||
	    tep_read_number_field(field, rec->data, value))
		return fail(r, "an event is shorter than its fields");
	return true;
}

static bool signed_number(struct reader *r, struct tep_format_field *field,
			  struct tep_record *rec, int64_t *value)
{
	unsigned long long found;

	if (!number(r, field, rec, &found))
		return false;
	*value = field->size == 4 ? (int32_t)found : (int64_t)found;
	return true;
}

static bool pid_in(struct reader *r, struct tep_format_field *field, struct tep_record *rec,
		   int32_t *pid)
{
	int64_t value;

	if (!signed_number(r, field, rec, &value))
		return false;
	if (value < 0 || value > INT32_MAX) {
		snprintf(r->error, sizeof(r->error), "no kernel has a process %" PRId64, value);
		return false;
	}
	*pid = value;
	return true;
}

/* The bytes of a field, or those that a __data_loc points at. */
static const char *bytes(struct reader *r, struct tep_format_field *field, struct tep_record *rec,
			 size_t *size)
{
	size_t offset = field->offset;
	unsigned long long where;

	*size = field->size;
	if (field->flags & TEP_FIELD_IS_DYNAMIC) {
		if (!number(r, field, rec, &where))
			return NULL;
		offset = where & 0xffff;
		*size = where >> 16 & 0xffff;
		if (field->flags & TEP_FIELD_IS_RELATIVE)
			offset += field->offset + field->size;
	}
	if (offset + *size > (size_t)rec->size) {
		fail(r, "an event is shorter than its fields");
		return NULL;
	}
	return (const char *)rec->data + offset;
}

/*
 * The task that an event happened in: what the last event called it, or the table of the file,
 * in which the kernel keeps 128 names by default, and one for each number.
 */
static const char *comm_of(struct reader *r, int32_t pid)
{
	struct comm *comm = &r->comms[pid % COMMS];
	const char *known = builder_name(&r->b, pid);

	if (known)
		return known;
	if (!comm->used || comm->pid != pid) {
		const char *name = tep_data_comm_from_pid(r->tep, pid);

		comm->used = true;
		comm->pid = pid;
		strncpy(comm->name, name ? name : "<...>", COMM);
	}
	return comm->name;
}

/* A task's name in a field, with zeros after it. */
static bool comm_in(struct reader *r, struct tep_format_field *field, struct tep_record *rec,
		    char comm[COMM])
{
	size_t size;
	const char *found = bytes(r, field, rec, &size);

	if (!found)
		return false;
	memset(comm, 0, COMM);
	memcpy(comm, found, strnlen(found, size < COMM ? size : COMM));
	return true;
}

static bool cpu_idle(struct reader *r, const struct event *e, struct tep_record *rec)
{
	unsigned long long state, cpu;

	if (!number(r, e->fields[0], rec, &state) || !number(r, e->fields[1], rec, &cpu))
		return false;
	if (state != EXIT && state > MAX_STATE)
		return fail(r, "no kernel has so many idle states");
	if (cpu != (unsigned long long)rec->cpu)
		return fail(r, "a CPU cannot enter a state for another one");
	builder_cpu_idle(&r->b, rec->cpu, rec->ts, state);
	return true;
}

static bool cpu_idle_miss(struct reader *r, const struct event *e, struct tep_record *rec)
{
	unsigned long long cpu, below;

	if (!number(r, e->fields[0], rec, &cpu) || !number(r, e->fields[1], rec, &below))
		return false;
	if (cpu < MAX_CPUS)
		builder_miss(&r->b, cpu, below ? BELOW : ABOVE);
	return true;
}

static bool sched_switch(struct reader *r, const struct event *e, struct tep_record *rec)
{
	char prev_comm[COMM], comm[COMM];
	int32_t before, after;

	if (!pid_in(r, e->fields[0], rec, &before) || !pid_in(r, e->fields[1], rec, &after) ||
	    !comm_in(r, e->fields[2], rec, prev_comm) || !comm_in(r, e->fields[3], rec, comm))
		return false;
	builder_named(&r->b, before, prev_comm);
	builder_named(&r->b, after, comm);
	if (before == 0) {
		builder_switch_from_idle(&r->b, rec->cpu, rec->ts, comm, after);
	} else if (after == 0) {
		builder_switch_to_idle(&r->b, rec->cpu, rec->ts);
	} else {
		builder_switch_between_tasks(&r->b, after);
	}
	return true;
}

static bool sched_migrate_task(struct reader *r, const struct event *e, struct tep_record *rec)
{
	int32_t task;

	if (!pid_in(r, e->fields[0], rec, &task))
		return false;
	builder_migrated(&r->b, rec->cpu, rec->ts, task);
	return true;
}

static bool sched_waking(struct reader *r, const struct event *e, struct tep_record *rec)
{
	int32_t wakee, pid = tep_data_pid(r->tep, rec);
	char comm[COMM];

	if (!pid_in(r, e->fields[0], rec, &wakee) || !comm_in(r, e->fields[1], rec, comm))
		return false;
	builder_named(&r->b, wakee, comm);
	if (pid < 0)
		return fail(r, "no kernel has a process with a negative number");
	builder_waking(&r->b, rec->cpu, rec->ts, wakee, comm_of(r, pid), pid);
	return true;
}

static bool sent(struct reader *r, const struct event *e, struct tep_record *rec, enum cause cause)
{
	unsigned long long cpu;

	if (!number(r, e->fields[0], rec, &cpu))
		return false;
	if (cpu < MAX_CPUS)
		builder_sent(&r->b, cpu, cause);
	return true;
}

static bool sched_wake_idle_without_ipi(struct reader *r, const struct event *e,
					struct tep_record *rec)
{
	return sent(r, e, rec, STORE);
}

static bool ipi_send_cpu(struct reader *r, const struct event *e, struct tep_record *rec)
{
	return sent(r, e, rec, IPI);
}

/* A mask is an array of unsigned long, in the byte order of the machine that was traced. */
static bool ipi_send_cpumask(struct reader *r, const struct event *e, struct tep_record *rec)
{
	int word_size = tep_get_long_size(r->tep);
	size_t size, i;
	const char *mask = bytes(r, e->fields[0], rec, &size);

	if (!mask || (word_size != 4 && word_size != 8))
		return fail(r, "the file does not say how long a word is");
	for (i = 0; i + word_size <= size; i += word_size) {
		unsigned long long word = tep_read_number(r->tep, mask + i, word_size);

		for (; word; word &= word - 1)
			builder_sent(&r->b, i * 8 + __builtin_ctzll(word), IPI);
	}
	return true;
}

static bool ipi_came(struct reader *r, const struct event *e, struct tep_record *rec)
{
	builder_happened(&r->b, rec->cpu, IPI);
	return true;
}

static bool hrtimer_expire_entry(struct reader *r, const struct event *e, struct tep_record *rec)
{
	unsigned long long function;
	const char *name;

	if (!number(r, e->fields[0], rec, &function))
		return false;
	name = tep_find_function(r->tep, function);
	builder_timer(&r->b, rec->cpu, name);
	builder_happened(&r->b, rec->cpu, name && !strncmp(name, "tick_", 5) ? TICK : TIMER);
	return true;
}

static bool is(const char *name, size_t size, const char *other)
{
	return strnlen(name, size) == strlen(other) && !strncmp(name, other, size);
}

/* Handlers of IPIs: on most architectures, and powerpc's for each interrupt controller. */
static bool is_ipi(const char *name, size_t size)
{
	size_t length = strnlen(name, size), digits = 0;

	if (is(name, size, "IPI") || (length >= 4 && !strncmp(name, "ipi ", 4)))
		return true;
	if (length < 5 || strncmp(name, "IPI-", 4))
		return false;
	while (4 + digits < length && name[4 + digits] >= '0' && name[4 + digits] <= '9')
		digits++;
	return 4 + digits == length;
}

/* TIMERS and ANYTHING of lines.py, which says why. */
static bool tells_nothing(const char *name, size_t size)
{
	static const char *const names[] = {
		"arch_timer", "timer", "riscv-timer", "clint-timer", "EXT",
	};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (is(name, size, names[i]))
			return true;
	}
	return false;
}

static bool irq_handler_entry(struct reader *r, const struct event *e, struct tep_record *rec)
{
	size_t size;
	const char *name = bytes(r, e->fields[0], rec, &size);

	if (!name)
		return false;
	if (is_ipi(name, size))
		builder_happened(&r->b, rec->cpu, IPI);
	else if (!tells_nothing(name, size))
		builder_happened(&r->b, rec->cpu, DEVICE);
	return true;
}

static bool sleep_length(struct reader *r, const struct event *e, struct tep_record *rec)
{
	int64_t length_ns, event_ns;

	if (!signed_number(r, e->fields[0], rec, &length_ns) ||
	    (e->next && !signed_number(r, e->next, rec, &event_ns)))
		return false;
	builder_sleep_length(&r->b, rec->cpu, length_ns, e->next ? &event_ns : NULL);
	return true;
}

static const struct kind kinds[] = {
	{ "cpu_idle", { "state", "cpu_id" }, cpu_idle },
	{ "cpu_idle_miss", { "cpu_id", "below" }, cpu_idle_miss },
	{ "sched_switch", { "prev_pid", "next_pid", "prev_comm", "next_comm" }, sched_switch },
	{ "sched_waking", { "pid", "comm" }, sched_waking },
	{ "sched_migrate_task", { "pid" }, sched_migrate_task },
	{ "sched_wake_idle_without_ipi", { "cpu" }, sched_wake_idle_without_ipi },
	{ "ipi_send_cpu", { "cpu" }, ipi_send_cpu },
	{ "ipi_send_cpumask", { "cpumask" }, ipi_send_cpumask },
	{ "reschedule_entry", { }, ipi_came },
	{ "call_function_single_entry", { }, ipi_came },
	{ "call_function_entry", { }, ipi_came },
	{ "hrtimer_expire_entry", { "function" }, hrtimer_expire_entry },
	{ "irq_handler_entry", { "name" }, irq_handler_entry },
	{ "sleep_length", { "ret" }, sleep_length },
};

static bool look_up(struct reader *r, struct event *e, int type)
{
	struct tep_event *event = tep_find_event(r->tep, type);
	size_t i, k;

	e->known = true;
	for (k = 0; event && k < sizeof(kinds) / sizeof(*kinds); k++) {
		if (strcmp(event->name, kinds[k].name))
			continue;
		for (i = 0; i < FIELDS && kinds[k].fields[i]; i++) {
			e->fields[i] = tep_find_field(event, kinds[k].fields[i]);
			if (!e->fields[i]) {
				snprintf(r->error, sizeof(r->error), "event %s has no field %s",
					 event->name, kinds[k].fields[i]);
				return false;
			}
		}
		e->next = tep_find_field(event, "next");
		e->kind = &kinds[k];
	}
	return true;
}

/* The library exports them, but its header does not say so; others may lack them. */
struct tep_record *tracecmd_peek_data(struct tracecmd_input *input, int cpu) __attribute__((weak));
int tracecmd_cpus(struct tracecmd_input *input) __attribute__((weak));

/*
 * Whether events of a CPU are lost behind this one. The next event of the CPU says so, but until
 * then, others may have run a task whose second waking is lost. A peek is what the iteration does
 * next itself. It numbers the CPUs of all buffers on end; an older library may not.
 */
static bool loss_follows(struct tracecmd_input *input, const struct tep_record *rec, int cpu)
{
	int first = (intptr_t)tracecmd_get_private(input);
	struct tep_record *next;

	if (!tracecmd_peek_data || cpu < first)
		return false;
	next = tracecmd_peek_data(input, cpu - first);
	return next && next->cpu == rec->cpu && next->missed_events;
}

static int take(struct reader *r, struct tep_record *rec)
{
	struct event *e;
	int type;

	/* A trace may have few periods among very many events. */
	if (++r->records % ALIVE_EVERY == 0 && !builder_alive(&r->b))
		return -1;
	if (rec->missed_events)
		builder_lost(&r->b, rec->cpu, rec->missed_events > 0 ? rec->missed_events : 1);
	type = tep_data_type(r->tep, rec);
	if (type < 0 || type >= TYPES)
		return -1;
	e = &r->events[type];
	if (!e->known && !look_up(r, e, type))
		return -1;
	if (!e->kind)
		return 0;
	if (rec->ts > INT64_MAX) {
		fail(r, "a time beyond all clocks");
		return -1;
	}
	if (!builder_at(&r->b, rec->cpu, rec->ts) || !e->kind->handle(r, e, rec) || r->b.error[0])
		return -1;
	return 0;
}

static int handle(struct tracecmd_input *input, struct tep_record *rec, int cpu, void *data)
{
	struct reader *r = data;
	int status = take(r, rec);

	if (!status && loss_follows(input, rec, cpu))
		builder_lost(&r->b, rec->cpu, 0);	/* they are counted at the next event */
	return status;
}

/* The library exports it, but its header does not say so; others may lack it. */
const char *tracecmd_get_trace_clock(struct tracecmd_input *input) __attribute__((weak));

/* The clock of a trace if it does not count nanoseconds: x86-tsc, ppc-tb and counter do not. */
static const char *strange_clock(struct tracecmd_input *input)
{
	static const char *const counts_ns[] = {
		"local", "global", "uptime", "perf", "mono", "mono_raw", "boot", "tai", "tsc2nsec",
	};
	const char *clock = tracecmd_get_trace_clock ? tracecmd_get_trace_clock(input) : NULL;
	size_t i;

	for (i = 0; clock && i < sizeof(counts_ns) / sizeof(*counts_ns); i++)
		if (!strcmp(clock, counts_ns[i]))
			return NULL;
	return clock;
}

/* What the rows do not say. */
static void print_the_rest(struct reader *r)
{
	const char *comma = "";
	int cpu;

	printf("{\"events\": %" PRIu64 ", \"incomplete\": %" PRIu64 ", \"first_ns\": %" PRId64
	       ", \"last_ns\": %" PRId64 ", \"lost\": {", r->b.events, r->b.incomplete,
	       r->b.first_ns, r->b.last_ns);
	for (cpu = 0; cpu < r->b.cpu_count; cpu++) {
		if (!r->b.cpus[cpu].lost)
			continue;
		printf("%s\"%d\": %" PRIu64, comma, cpu, r->b.cpus[cpu].lost);
		comma = ", ";
	}
	comma = "";
	printf("}, \"seen\": [");
	for (cpu = 0; cpu < r->b.cpu_count; cpu++) {
		if (!r->b.cpus[cpu].seen)
			continue;
		printf("%s%d", comma, cpu);
		comma = ", ";
	}
	printf("], \"met\": %" PRIu32 "}\n", r->b.met);
}

int main(int argc, char **argv)
{
	static struct reader r;
	struct tracecmd_input **inputs;
	int count, i, status, first = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: %s FILE\n", argv[0]);
		return 2;
	}
	tracecmd_set_loglevel(TEP_LOG_CRITICAL);
	inputs = calloc(1, sizeof(*inputs));
	r.events = calloc(TYPES, sizeof(*r.events));
	if (!inputs || !r.events || !builder_init(&r.b, stdout)) {
		fprintf(stderr, "no memory\n");
		return 1;
	}
	inputs[0] = tracecmd_open(argv[1], TRACECMD_FL_LOAD_NO_PLUGINS);
	if (!inputs[0]) {
		fprintf(stderr, "not a trace of trace-cmd, or a damaged one\n");
		return 1;
	}
	r.tep = tracecmd_get_tep(inputs[0]);
	count = tracecmd_buffer_instances(inputs[0]);
	if (count > 0) {
		struct tracecmd_input **more = realloc(inputs, (count + 1) * sizeof(*inputs));

		if (!more) {
			fprintf(stderr, "no memory\n");
			return 1;
		}
		inputs = more;
	}
	for (i = 0; i < count; i++) {
		inputs[i + 1] = tracecmd_buffer_instance_handle(inputs[0], i);
		if (!inputs[i + 1]) {
			fprintf(stderr, "buffer %d is damaged\n", i);
			return 1;
		}
	}
	for (i = 0; i < (count < 0 ? 1 : count + 1); i++) {
		const char *clock = strange_clock(inputs[i]);

		if (clock) {
			fprintf(stderr, "its clock %.40s does not count nanoseconds: record with -C mono\n",
				clock);
			return 1;
		}
		tracecmd_set_private(inputs[i], (void *)(intptr_t)first);
		first += tracecmd_cpus ? tracecmd_cpus(inputs[i]) : 0;
	}
	status = tracecmd_iterate_events_multi(inputs, count < 0 ? 1 : count + 1, handle, &r);
	if (r.error[0] || r.b.error[0]) {
		fprintf(stderr, "after event %" PRIu64 ": %s\n", r.b.events,
			r.error[0] ? r.error : r.b.error);
		return 1;
	}
	if (status) {
		fprintf(stderr, "damaged after event %" PRIu64 "\n", r.b.events);
		return 1;
	}
	if (!builder_finish(&r.b))
		return 1;
	print_the_rest(&r);
	return fflush(stdout) ? 1 : 0;
}

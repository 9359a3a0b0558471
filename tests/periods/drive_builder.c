// SPDX-License-Identifier: GPL-2.0-only
/* Gives builder.c the events that lines of standard input name, and writes its rows. */
#include <inttypes.h>
#include <string.h>

#include "builder.h"

int main(void)
{
	struct builder b;
	int64_t now_ns, value, more;
	char what[32], comm[COMM + 1];
	const char *comma = "";
	int cpu;

	if (!builder_init(&b, stdout))
		return 1;
	while (scanf("%31s %d %" SCNd64 " %" SCNd64 " %" SCNd64 " %16s", what, &cpu, &now_ns, &value,
		     &more, comm) == 6) {
		char name[COMM] = "";

		memcpy(name, comm, strnlen(comm, COMM));
		if (!strcmp(what, "lost")) {
			builder_lost(&b, cpu, value);
			continue;
		}
		if (!builder_at(&b, cpu, now_ns)) {
			fprintf(stderr, "%s\n", b.error);
			return 1;
		}
		if (!strcmp(what, "idle"))
			builder_cpu_idle(&b, cpu, now_ns, value);
		else if (!strcmp(what, "sleep"))
			builder_sleep_length(&b, cpu, value, more < 0 ? NULL : &more);
		else if (!strcmp(what, "miss"))
			builder_miss(&b, value, more ? BELOW : ABOVE);
		else if (!strcmp(what, "sent"))
			builder_sent(&b, value, more ? STORE : IPI);
		else if (!strcmp(what, "happened"))
			builder_happened(&b, cpu, value);
		else if (!strcmp(what, "timer"))
			builder_timer(&b, cpu, value);
		else if (!strcmp(what, "waking"))
			builder_waking(&b, cpu, now_ns, value,
				       builder_name(&b, more) ? builder_name(&b, more) : name, more);
		else if (!strcmp(what, "named"))
			builder_named(&b, value, name);
		else if (!strcmp(what, "migrated"))
			builder_migrated(&b, cpu, now_ns, value);
		else if (!strcmp(what, "between"))
			builder_switch_between_tasks(&b, value);
		else if (!strcmp(what, "from-idle"))
			builder_switch_from_idle(&b, cpu, now_ns, name, value);
		else if (!strcmp(what, "to-idle"))
			builder_switch_to_idle(&b, cpu, now_ns);
		else
			return 2;
	}
	if (!builder_finish(&b))
		return 1;
	printf("{\"events\": %" PRIu64 ", \"incomplete\": %" PRIu64 ", \"first_ns\": %" PRId64
	       ", \"last_ns\": %" PRId64 ", \"lost\": {}, \"seen\": [",
	       b.events, b.incomplete, b.first_ns, b.last_ns);
	for (cpu = 0; cpu < b.cpu_count; cpu++) {
		if (!b.cpus[cpu].seen)
			continue;
		printf("%s%d", comma, cpu);
		comma = ", ";
	}
	printf("], \"met\": %" PRIu32 "}\n", b.met);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads idle periods, each with its parameters, and writes the state after each.
 * A program of its own, so that sanitizers and valgrind can watch the policy.
 */
#include <stdio.h>

#include <linux/idle_poll/poll_limit.h>

struct period {
	struct poll_limit_params params;
	u64 idle_ns;
};

int main(void)
{
	struct poll_limit pl;
	struct period p;
	bool first = true;

	while (fread(&p, sizeof(p), 1, stdin) == 1) {
		if (first)
			poll_limit_init(&pl, &p.params);
		first = false;
		if (poll_limit_update(&pl, &p.params, p.idle_ns) != pl.limit_ns)
			return 1;
		if (fwrite(&pl, sizeof(pl), 1, stdout) != 1)
			return 1;
	}
	return 0;
}

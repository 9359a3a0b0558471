// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads questions to the promotion policy, each with its states, and writes the
 * answers. A program of its own, so that sanitizers can watch the policy.
 */
#include <stdio.h>

#include "promote_policy.h"

#define STATES	10

struct question {
	u64 event_ns;
	u64 limit_ns;
	u32 count;
	u32 index;
	struct promote_state states[STATES];
};

struct answer {
	u64 timeout_ns;
	int64_t floor;
};

int main(void)
{
	struct question q;

	while (fread(&q, sizeof(q), 1, stdin) == 1) {
		struct answer a;

		promote_plan(q.states, q.count);
		a.timeout_ns = promote_timeout(q.states, q.index, q.event_ns);
		a.floor = promote_floor(q.states, q.index, q.limit_ns);
		if (fwrite(&a, sizeof(a), 1, stdout) != 1)
			return 1;
	}
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs the policy over a whole trace of idle periods.
 */
#include "replay.h"

void poll_limit_replay(struct poll_limit *pl, const struct poll_limit_params *params,
		       const u64 *idle_ns, u64 *limit_ns, size_t periods)
{
	size_t i;

	for (i = 0; i < periods; i++) {
		limit_ns[i] = pl->limit_ns;
		poll_limit_update(pl, params, idle_ns[i]);
	}
}

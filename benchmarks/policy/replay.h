/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LIGHTSLEEP_POLICY_REPLAY_H
#define _LIGHTSLEEP_POLICY_REPLAY_H

#include <stddef.h>

#include <linux/idle_poll/poll_limit.h>

/* limit_ns[i] is the limit that period i was given, before it was known. */
void poll_limit_replay(struct poll_limit *pl, const struct poll_limit_params *params,
		       const u64 *idle_ns, u64 *limit_ns, size_t periods);

#endif

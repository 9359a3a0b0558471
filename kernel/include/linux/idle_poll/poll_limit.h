/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long should an idle CPU poll before it halts? See poll_limit.c.
 */
#ifndef _LINUX_IDLE_POLL_POLL_LIMIT_H
#define _LINUX_IDLE_POLL_POLL_LIMIT_H

#include <linux/types.h>

#define POLL_LIMIT_BUCKETS	16

/**
 * struct poll_limit_params - what the limit is derived from
 * @halt_cost_ns: what a wakeup from halt costs more than one from polling, times what
 *	waiting is worth; 0 means not known (yet), and then nothing is polled
 * @ceiling_ns: the limit is never above this
 */
struct poll_limit_params {
	u64 halt_cost_ns;
	u64 ceiling_ns;
};

/**
 * struct poll_limit - what one CPU has learned about its idle periods
 * @limit_ns: poll for this long in the next idle period, then halt
 * @weight: decaying number of idle periods that ended in each bucket
 * @sum_ns: the sum of their durations, decaying with them
 * @total: sum of @weight
 * @halt_cost_ns: the cost that @credit_ns was accounted in
 * @credit_ns: how far the account is from breaking the 2x promise
 * @trial_left: periods left in the running trial, 0 outside of one
 * @trial_wait: periods to wait before the next trial
 * @trial_backoff: what @trial_wait is set to after a trial that failed
 */
struct poll_limit {
	u64 limit_ns;
	u32 weight[POLL_LIMIT_BUCKETS];
	u64 sum_ns[POLL_LIMIT_BUCKETS];
	u32 total;
	u64 halt_cost_ns;
	u64 credit_ns;
	u32 trial_left;
	u32 trial_wait;
	u32 trial_backoff;
};

void poll_limit_init(struct poll_limit *pl, const struct poll_limit_params *params);
u64 poll_limit_update(struct poll_limit *pl, const struct poll_limit_params *params, u64 idle_ns);

#endif /* _LINUX_IDLE_POLL_POLL_LIMIT_H */

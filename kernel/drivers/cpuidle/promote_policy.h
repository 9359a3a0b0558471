/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When should a shallow idle state be left for a deeper one? See promote_policy.c.
 */
#ifndef _DRIVERS_CPUIDLE_PROMOTE_POLICY_H
#define _DRIVERS_CPUIDLE_PROMOTE_POLICY_H

#include <linux/types.h>

/* Instead of the index of a state: there is none. */
#define PROMOTE_NONE		-1

/**
 * struct promote_state - an idle state of one CPU, as the policy sees it
 * @residency_ns: from this idle duration on it saves energy
 * @latency_ns: what leaving it takes, at worst
 * @allowed: may be entered
 * @leavable: its driver asks to leave it if it lasts
 * @timeout_ns: after this time in it, it was a wrong guess; 0: it never is
 * @next: the next deeper state that is allowed, or PROMOTE_NONE
 *
 * The last two follow from the others, of all states: promote_plan().
 */
struct promote_state {
	u64 residency_ns;
	u64 latency_ns;
	bool allowed;
	bool leavable;
	u64 timeout_ns;
	int next;
};

void promote_plan(struct promote_state *states, unsigned int count);
u64 promote_timeout(const struct promote_state *states, unsigned int index, u64 event_ns);
bool promote_ended(u64 timeout_ns, u64 slept_ns);
int promote_floor(const struct promote_state *states, unsigned int index, u64 limit_ns);
bool promote_returns(const struct promote_state *states, unsigned int index, unsigned int reached,
		     u64 limit_ns, u64 event_ns);

#endif /* _DRIVERS_CPUIDLE_PROMOTE_POLICY_H */

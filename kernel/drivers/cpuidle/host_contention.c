// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does somebody else want the core that this CPU polls on?
 *
 * On a host with fewer cores than busy virtual CPUs, a virtual CPU that polls
 * loses twice. It spends its share of the host on nothing, and it may hold the
 * very core that its peer needs in order to wake it. The guest cannot see the
 * host's run queues, but it can see time that was taken from it:
 *
 * - a poll looks at the clock every few microseconds, or after each wait for a
 *   store, which lasts for half of HOST_CONTENTION_GAP_NS at most (poll_wait.h);
 *   where two looks lie further apart than HOST_CONTENTION_GAP_NS, the host ran
 *   something else;
 * - a hypervisor that tells its guests about stolen time says so itself, for
 *   all of the CPU's time.
 *
 * The rule: where at least a quarter of the time polled fell into gaps, or a
 * quarter of all time was stolen by the hypervisor's account, the CPU does not
 * poll for a second. The question is asked anew after each 60 ms polled, and
 * evidence is forgotten after a second. The gaps of one poll count for 7 ms at most, and
 * the longest time in the account not at all. So one or two stolen time slices are no first
 * answer, nor is a guest that was stopped for a while, nor the sum of a quiet hour.
 * Gaps of 15 ms are an answer at once, however short the polls between them: the rest
 * of the 60 ms could not change it.
 *
 * During a pause nothing is judged, for there are no polls to judge by. To ask again
 * delays what the CPU waits for. So in the first 30 ms polled after a pause, half of the
 * evidence is enough for the same answer: gaps of 7.5 ms, which are two slices at least. And
 * where the same answer follows, the next pause is four times as long, up to 16 s. An
 * overcommitted host then loses at most 60 ms in 16 s to each such CPU, less than half a
 * percent. Once 60 ms were polled after a pause without the answer, the host is found free, and
 * pauses begin with one second again. These 60 ms may take longer than a second: most CPUs poll
 * less than that in one. So does a minute without an answer, however little was polled.
 *
 * If one poll counted for 5 ms at most, a host that takes every other 20 ms would seem to
 * take 5 of 25. If two slices were enough, one that takes 5 % of the time, at random, would
 * now and then seem to take a quarter.
 *
 * Everything here is integer arithmetic without side effects, so the same file
 * runs in the kernel and in unit tests.
 *
 * Context: host_contention_add() is called by the owning CPU only, from its idle
 * task, not from an interrupt. host_contended() may be asked anywhere. Nothing to lock.
 */
#include <linux/compiler.h>
#include <linux/idle_poll/host_contention.h>
#include <linux/minmax.h>
#include <linux/types.h>

#define EVIDENCE_NS		60000000ULL	/* 60 ms */
#define AGAIN_NS		30000000ULL	/* 30 ms polled after a pause */
#define WINDOW_NS		1000000000ULL	/* 1 s */
#define GAP_MAX_NS		7000000ULL	/* 7 ms: below a quarter of AGAIN_NS */
#define STOLEN_SHARE		4
#define PAUSE_MIN_NS		1000000000ULL	/* 1 s */
#define PAUSE_FACTOR		4
#define PAUSE_MAX_NS		16000000000ULL	/* 16 s */
#define FORGET_NS		60000000000ULL	/* 1 min */

static void begin_window(struct host_contention *hc, u64 now_ns)
{
	hc->window_start_ns = now_ns;
	hc->ran_ns = 0;
	hc->gap_ns = 0;
	hc->account_ns = 0;
	hc->account_max_ns = 0;
}

static bool poll_gaps_exceed(const struct host_contention *hc)
{
	u64 polled_ns = hc->ran_ns + hc->gap_ns;
	bool again = hc->pause_ns && hc->judged_ns < AGAIN_NS;
	u64 enough_ns = again ? AGAIN_NS : EVIDENCE_NS;

	return hc->gap_ns >= max(polled_ns, enough_ns) / STOLEN_SHARE;
}

static bool steal_account_exceeds(const struct host_contention *hc, u64 now_ns)
{
	u64 passed_ns = now_ns - hc->window_start_ns;

	return passed_ns >= EVIDENCE_NS &&
	       hc->account_ns - hc->account_max_ns >= passed_ns / STOLEN_SHARE;
}

/**
 * host_contention_add - take new evidence into account
 * @hc: what the CPU has seen so far; all zero in the beginning
 * @now_ns: the time
 * @ran_ns: for so long the CPU polled, since the last call
 * @gap_ns: for so long its polls were interrupted by the host
 * @account_ns: stolen time since the last call, as the hypervisor says
 */
void host_contention_add(struct host_contention *hc, u64 now_ns, u64 ran_ns, u64 gap_ns,
			 u64 account_ns)
{
	/* A poll is told of when the CPU is idle next. The first one may lie far back. */
	if (host_contended(hc, now_ns) || !hc->window_start_ns ||
	    now_ns - hc->window_start_ns > WINDOW_NS) {
		begin_window(hc, now_ns);
		return;
	}

	gap_ns = min(gap_ns, GAP_MAX_NS);
	hc->ran_ns += ran_ns;
	hc->gap_ns += gap_ns;
	hc->account_ns += account_ns;
	hc->account_max_ns = max(hc->account_max_ns, account_ns);

	if (now_ns - hc->until_ns > FORGET_NS)
		hc->pause_ns = 0;
	if (poll_gaps_exceed(hc) || steal_account_exceeds(hc, now_ns)) {
		hc->pause_ns = clamp(PAUSE_FACTOR * hc->pause_ns, PAUSE_MIN_NS, PAUSE_MAX_NS);
		WRITE_ONCE(hc->until_ns, now_ns + hc->pause_ns);
		hc->pauses++;
		hc->paused_ns += hc->pause_ns;
		hc->judged_ns = 0;
		begin_window(hc, now_ns);
		return;
	}
	hc->judged_ns += ran_ns + gap_ns;
	if (hc->judged_ns >= EVIDENCE_NS)
		hc->pause_ns = 0;
	if (hc->ran_ns + hc->gap_ns >= EVIDENCE_NS)
		begin_window(hc, now_ns);
}

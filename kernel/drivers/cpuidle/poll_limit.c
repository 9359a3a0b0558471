// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long should an idle CPU poll before it halts?
 *
 * A CPU that polls sees a wake at once, but burns the time until it comes. A
 * CPU that halts burns nothing, but every wake costs it the halt cost C: what
 * the interrupt, the way out of the low-power state and, in a guest, the
 * hypervisor take. It is measured on the running machine (halt_cost.c) and on
 * its programs (wake_cost.c), and is the only price in this file. Who values a
 * nanosecond of waiting more than one of idle CPU time passes a multiple of it.
 *
 * An idle period that ends d after it began then costs, with a limit of L,
 *
 *	d		if d <= L: the poll caught the wake,
 *	L + C		if d >  L: the CPU polled for nothing, and halted.
 *
 * Somebody who knows d beforehand pays min(d, C). This is the ski-rental
 * problem; three rules follow from it.
 *
 * 1. Learn. The durations of recent idle periods are kept in a histogram with
 *    a bucket per power of two, each with a weight and the sum of what fell
 *    into it, so the cost that each bucket boundary would have had as a limit
 *    is known exactly, not estimated from bucket middles. Where none of them
 *    beats halting at once, nothing is polled. Otherwise the limit is the
 *    highest boundary that costs at most 1/8 more than the cheapest, and less
 *    than halting at once: a missed wake costs this CPU C, but whoever waits
 *    for this CPU loses C as well, and if that is a CPU that polls, it may then
 *    miss in turn. Where nothing lasted longer, a higher limit costs nothing at
 *    all, and covers what the memory has forgotten. Limits above 2C are not
 *    considered.
 *
 *    All weights halve whenever they add up to 128 periods, so 64 to 128 are
 *    remembered: enough to tell a wait that one period in a hundred exceeds
 *    from one that one in ten does, which is what the limit of a steady
 *    workload hangs on. They also halve at every pause, a period beyond
 *    POLL_LIMIT_PAUSE halt costs, because a pause ends whatever went before:
 *    a few of them empty the memory, and the next workload fills it anew.
 *
 *    A mostly idle CPU sees durations far above C. Every limit above 0 then
 *    only adds to the price, and the limit is 0. Where a few short ones are
 *    among them, as when an interrupt follows another, the limit is one that
 *    pays for these.
 *
 * 2. Promise. Whatever the pattern, made by an adversary even, the total cost
 *    is at most twice what the clairvoyant pays, plus a warm-up of
 *    POLL_LIMIT_WARMUP halt costs, in any stretch of time. An account enforces
 *    it: each period adds twice the clairvoyant's price and takes off our own.
 *    As long as 0 <= L <= 2C, no period can take off more than the distance of
 *    L from C. That is the stake, and it is never more than half of the
 *    account: where little is left, L is close to C. So the account never runs
 *    dry, and what is left is enough to recover with: C alone would win
 *    nothing from long waits, and be the limit ever after. (For the same
 *    reason each period adds 1 ns: an account must not round down to nothing
 *    to stake.) Holding at most the warm-up, the account cannot be saved up
 *    for a later spree, either. The promise needs a ceiling of at least C;
 *    under a lower one the ceiling is the limit then.
 *
 * 3. Try. Two CPUs that wait for each other and both halt see each other's
 *    halt cost: each finds that the wake took C plus the work of the other,
 *    and that polling does not pay. If both polled, each would find the work
 *    alone. Neither can learn this from what it sees, so, when the limit is 0
 *    although most periods end within 4C or in the bucket that 4C is in, a CPU
 *    polls for up to 2C for POLL_LIMIT_TRIAL periods and looks at what becomes
 *    of the durations. With up to C/2 of work one side is enough: the other
 *    sees its waits shorten by C and follows. With more, the trials of both
 *    have to overlap, as they come to do. Beyond 3C/4, both may stay in halt:
 *    what is left of it in memory after a trial, a quarter, outweighs the gain.
 *    A trial ends early when half of the warm-up is spent. It has success when
 *    some limit would have saved more than 1/32 of what halting at once costs.
 *    (For one that saves less, a few short periods are enough.) Without success
 *    it doubles the wait until the next one, from POLL_LIMIT_WAIT_MIN to
 *    POLL_LIMIT_WAIT_MAX periods. A mostly idle CPU never tries.
 *
 * Everything here is integer arithmetic, divides by powers of two only, and has
 * no effect outside of struct poll_limit, so the same file runs in the kernel,
 * in unit tests and in simulations. An update walks the buckets four times at
 * most.
 *
 * Context: poll_limit_update() is called by the owning CPU only, from its idle
 * task, not from an interrupt; there is nothing to lock.
 */
#include <linux/bitops.h>
#include <linux/idle_poll/poll_limit.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>

/* Bucket b ends at 2^(b + 9) ns: 512 ns, 1 us, ... 8.4 ms, and the rest. */
#define POLL_LIMIT_SHIFT	9

/* The weight of one idle period: what is left of it after 4 halvings is 1. */
#define POLL_LIMIT_ONE		16
#define POLL_LIMIT_MEMORY	(128 * POLL_LIMIT_ONE)

#define POLL_LIMIT_SLACK	8	/* of the price */
#define POLL_LIMIT_SUCCESS	32	/* of the price */
#define POLL_LIMIT_PAUSE	64	/* halt costs */
#define POLL_LIMIT_WARMUP	16	/* halt costs */
#define POLL_LIMIT_TRIAL	128	/* periods */
#define POLL_LIMIT_WAIT_MIN	64	/* periods */
#define POLL_LIMIT_WAIT_MAX	4096	/* periods */

/* Beyond a second, nobody polls; keeps every product below far from 2^64. */
#define POLL_LIMIT_COST_MAX	1000000000ULL

static unsigned int bucket_of(u64 idle_ns)
{
	unsigned int bits = fls64(idle_ns >> POLL_LIMIT_SHIFT);

	return min(bits, POLL_LIMIT_BUCKETS - 1U);
}

static u64 bucket_end_ns(unsigned int bucket)
{
	return 1ULL << (bucket + POLL_LIMIT_SHIFT);
}

static void halve(struct poll_limit *pl)
{
	unsigned int b;

	pl->total = 0;
	for (b = 0; b < POLL_LIMIT_BUCKETS; b++) {
		pl->weight[b] /= 2;
		pl->total += pl->weight[b];
		/* An odd weight loses a half; the sum must not outlive it. */
		pl->sum_ns[b] = pl->weight[b] ? pl->sum_ns[b] / 2 : 0;
	}
}

static void remember(struct poll_limit *pl, u64 idle_ns, u64 cost_ns)
{
	unsigned int b = bucket_of(idle_ns);

	if (idle_ns > POLL_LIMIT_PAUSE * cost_ns || pl->total >= POLL_LIMIT_MEMORY)
		halve(pl);

	/* The last bucket is open-ended, is never polled out, needs no sum. */
	if (b < POLL_LIMIT_BUCKETS - 1)
		pl->sum_ns[b] += idle_ns * POLL_LIMIT_ONE;
	pl->weight[b] += POLL_LIMIT_ONE;
	pl->total += POLL_LIMIT_ONE;
}

/*
 * What the periods in memory would have cost with each limit: @price[0] without
 * polling, @price[b + 1] with a limit at the end of bucket b, or at @cap_ns
 * where that comes first. Returns the number of prices.
 */
static unsigned int price_limits(const struct poll_limit *pl, u64 cost_ns, u64 cap_ns,
				 u64 price[POLL_LIMIT_BUCKETS])
{
	u64 caught_ns = 0, missed = pl->total;
	unsigned int b;

	price[0] = missed * cost_ns;
	for (b = 0; b < POLL_LIMIT_BUCKETS - 1; b++) {
		u64 end_ns = bucket_end_ns(b);

		/* A cap inside of a bucket catches it if it is above its mean. */
		if (end_ns > cap_ns && pl->sum_ns[b] > pl->weight[b] * cap_ns)
			break;

		caught_ns += pl->sum_ns[b];
		missed -= pl->weight[b];
		price[b + 1] = caught_ns + missed * (min(end_ns, cap_ns) + cost_ns);
		if (end_ns >= cap_ns)
			return b + 2;
	}
	return b + 1;
}

/* The highest limit that would have cost little more than the cheapest, which saves much or not. */
static u64 learned_limit(const struct poll_limit *pl, u64 cost_ns, u64 cap_ns, bool *saves)
{
	u64 price[POLL_LIMIT_BUCKETS], best;
	unsigned int i, n;

	n = price_limits(pl, cost_ns, cap_ns, price);
	best = price[0];
	for (i = 1; i < n; i++)
		best = min(best, price[i]);
	/* With a cap of 0, a price is of no limit that could be had. */
	*saves = cap_ns && best < price[0] - price[0] / POLL_LIMIT_SUCCESS;
	if (best == price[0])
		return 0;

	/* But none that would have cost more than no poll at all. */
	best = min(best + best / POLL_LIMIT_SLACK, price[0] - 1);
	for (i = n - 1; price[i] > best; i--)
		;
	return min(bucket_end_ns(i - 1), cap_ns);
}

/* Do at least half of the periods end in the bucket of @reach_ns or below? */
static bool mostly_within(const struct poll_limit *pl, u64 reach_ns)
{
	unsigned int b, last = bucket_of(reach_ns);
	u32 within = 0;

	for (b = 0; b <= last && b < POLL_LIMIT_BUCKETS - 1; b++)
		within += pl->weight[b];
	return within * 2 >= pl->total;
}

/* Counts one period; true while a trial runs. The learned limit @polls, and @saves much, or not. */
static bool on_trial(struct poll_limit *pl, u64 cost_ns, bool polls, bool saves)
{
	bool affordable = pl->credit_ns >= POLL_LIMIT_WARMUP / 2 * cost_ns;

	if (saves) {
		pl->trial_left = 0;
		pl->trial_wait = POLL_LIMIT_WAIT_MIN;
		pl->trial_backoff = POLL_LIMIT_WAIT_MIN;
		return false;
	}
	if (pl->trial_left) {
		if (--pl->trial_left && affordable)
			return true;
		pl->trial_left = 0;
		pl->trial_wait = pl->trial_backoff;
		pl->trial_backoff = min(pl->trial_backoff * 2, POLL_LIMIT_WAIT_MAX);
		return false;
	}
	if (polls)
		return false;
	if (pl->trial_wait) {
		pl->trial_wait--;
		return false;
	}
	if (!mostly_within(pl, 4 * cost_ns))
		return false;

	pl->trial_left = POLL_LIMIT_TRIAL;
	return true;
}

/* Accounts for one period of @idle_ns that was given @limit_ns. */
static void account_period(struct poll_limit *pl, u64 idle_ns, u64 limit_ns, u64 cost_ns)
{
	u64 paid_ns = idle_ns <= limit_ns ? idle_ns : limit_ns + cost_ns;
	u64 credit_ns = pl->credit_ns + 2 * min(idle_ns, cost_ns) + 1;

	credit_ns = credit_ns > paid_ns ? credit_ns - paid_ns : 0;
	pl->credit_ns = min(credit_ns, POLL_LIMIT_WARMUP * cost_ns);
}

/**
 * poll_limit_init - forget everything
 * @pl: the state of one CPU
 * @params: halt cost and ceiling
 *
 * The first limit is the one that keeps the promise, the halt cost itself.
 */
void poll_limit_init(struct poll_limit *pl, const struct poll_limit_params *params)
{
	memset(pl, 0, sizeof(*pl));
	pl->halt_cost_ns = min(params->halt_cost_ns, POLL_LIMIT_COST_MAX);
	pl->credit_ns = POLL_LIMIT_WARMUP * pl->halt_cost_ns;
	pl->trial_backoff = POLL_LIMIT_WAIT_MIN;
	pl->limit_ns = min(pl->halt_cost_ns, params->ceiling_ns);
}

/**
 * poll_limit_update - learn from one idle period, choose the next limit
 * @pl: the state of one CPU
 * @params: halt cost and ceiling; a changed halt cost starts a new account
 * @idle_ns: how long after the beginning of the idle period its wake arrived,
 *	without the time that the wake itself took
 *
 * Return: pl->limit_ns, the time to poll in the next idle period, in ns.
 */
u64 poll_limit_update(struct poll_limit *pl, const struct poll_limit_params *params, u64 idle_ns)
{
	u64 cost_ns = min(params->halt_cost_ns, POLL_LIMIT_COST_MAX);
	u64 cap_ns = min(2 * cost_ns, params->ceiling_ns);
	u64 stake_ns;
	bool saves;

	if (pl->halt_cost_ns != cost_ns) {
		pl->halt_cost_ns = cost_ns;
		pl->credit_ns = POLL_LIMIT_WARMUP * cost_ns;
	} else {
		account_period(pl, idle_ns, pl->limit_ns, cost_ns);
	}

	remember(pl, idle_ns, cost_ns);
	pl->limit_ns = learned_limit(pl, cost_ns, cap_ns, &saves);
	if (on_trial(pl, cost_ns, pl->limit_ns, saves))
		pl->limit_ns = cap_ns;

	stake_ns = min(pl->credit_ns / 2, cost_ns);
	pl->limit_ns = clamp(pl->limit_ns, cost_ns - stake_ns, cost_ns + stake_ns);
	pl->limit_ns = min(pl->limit_ns, params->ceiling_ns);
	return pl->limit_ns;
}

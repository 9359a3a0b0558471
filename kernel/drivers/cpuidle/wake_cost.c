// SPDX-License-Identifier: GPL-2.0-only
/*
 * What does halting cost the programs that run on this CPU?
 *
 * A benchmark at boot does not know. What a program loses with each wakeup from
 * a halt depends on how long the CPU had slept, on what else its host does, on
 * how cold its caches are, on the interrupt that its waker had to send, and on
 * the tick that stopped and started again. So the programs themselves are
 * asked, by an experiment that never ends:
 *
 * 1. A *cycle* runs from the moment a CPU becomes idle to the moment it becomes
 *    idle again: the wait, the wakeup and the work that followed. If a halt
 *    delays the work by C, then the cycle is longer by C, whoever does the
 *    waking: a peer that waits for our answer, a timer, a network. What the
 *    halt costs the waker is in it where the waker's delay comes back to us.
 *
 * 2. On a CPU that polls, one cycle in about 32 begins with a halt instead,
 *    without any regard to what the CPU was about to see. As many polled cycles are
 *    kept to compare with. Once there is enough evidence, one cycle in about 128 is
 *    enough to keep it fresh.
 *
 *    The experiment never polls, it only halts: that is its whole price. Where cycles
 *    are far shorter than what a halt costs, one in 32 is dear. So the experiment also
 *    pauses between two cycles that it draws, so long that all its halts together take
 *    at most one part in 128, later in 512, of the CPU's time, by what a halt is known
 *    to cost. (Where a program waits for several CPUs in turn, their shares add up.)
 *    A CPU that is always woken from short waits has its answer after 64 * 128 halt
 *    costs, which is 0.8 s for 100 us. Until then the machine's own cost counts.
 *
 *    No rhythm of the load may be mistaken for an effect. A pause may well end in the
 *    gap between two bursts, so that each draw falls on the same part of a burst. So
 *    cycles of both kinds are drawn alike: in pairs, one of either kind in random order,
 *    each a pause and a random number of cycles after the one before. (Not the first
 *    cycle after a pause: that is likely to follow a long one.)
 *
 * 3. The latest 64 cycles of either kind are compared. The estimate is the
 *    median of all 64 x 64 differences between a halted and a polled cycle
 *    (Hodges and Lehmann, 1963), which some wild cycles, or two sorts of work
 *    that take turns, do not move. Its interval is that of the rank-sum test
 *    (Moses, 1965), for a confidence of 99.9 %, because the question is asked
 *    again every second: of the ordered differences, those at the ranks
 *    64 * 64 / 2 -+ 3.29 * sqrt(64 * 64 * 129 / 12) = 2048 -+ 690.
 *
 * The comparison is by assignment: a cycle that was to poll counts as polled
 * even if its poll expired and the CPU halted after all. Anything else would
 * compare short waits with long ones. The price: where few polls end with a
 * wakeup, most polled cycles have a halt in them as well, and the difference is
 * far below what a halt costs. A limit that is too low would justify itself
 * that way. So a cost is believed only where three of four polls are hits.
 *
 * By assignment again, a cycle that was to halt counts as halted even if its wakeup came
 * before the CPU entered an idle state. It lost next to nothing. But the halts that a
 * limit decides about are those of longer waits, and these lose all of it. A cost that is
 * too low would have the CPU halt in all of them. So a cost is believed only where
 * three of four deliberate halts were halts.
 *
 * There are three answers. The interval is above zero, most polls are hits, and most
 * deliberate halts were halts: halting costs the programs this much. It is below zero:
 * polling does harm, for example because a hypervisor takes the core from the very task
 * that the poll waits for. Otherwise the programs cannot tell, and halt_cost.c has to be
 * asked.
 *
 * That figure may be too high. Then polls are long enough to be hits, and the upper end of
 * the interval is a bound, which program_cost.c uses for a minute. With a low bound, the CPU
 * hardly polls, and learns nothing. So the bound is forgotten then, and the experiment begins
 * anew.
 *
 * And it may be far too low: a program loses more than a benchmark does. Then most
 * polls are too short to catch a wakeup, and without hits there is no answer that could
 * put it right. So a CPU with many cycles, no answer and few hits *probes*: for some
 * seconds, a missed wakeup counts four times as much, which makes the polls longer. If the
 * programs answer, their answer counts from then on. Whether a poll pays is still for
 * poll_limit.c to say: where it would not pay at four times the price, there is none.
 *
 * A probe lasts for 3 s, in which 726 cycles a second are enough for an answer, and for the
 * pauses between what is drawn. The wait for the next one is three times as long as the probe,
 * and doubles with each, up to 50 times. It is short again once an answer has held for a
 * minute. One that was gone sooner is no better than none, and so is one that says that these
 * polls do harm, which is not held against shorter ones. A load that ends in a probe says
 * nothing of probes, and leaves the wait as it is. So does a probe that ends early because the
 * host needs the core: nobody is asked then. Nor does an answer hold in that time.
 *
 * Everything here is integer arithmetic without side effects, so the same file
 * runs in the kernel and in unit tests.
 *
 * Context: wake_cost_begin() and wake_cost_end() are called by the owning CPU
 * only, from its idle task, not from an interrupt; they take a few instructions.
 * wake_cost_compare() takes some ten microseconds: call it in process context,
 * on copies of the rings. A copy may mix old and new cycles; each is a whole word,
 * and which of the latest cycles are in the ring does not matter.
 */
#include <linux/compiler.h>
#include <linux/idle_poll/wake_cost.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>

/* While evidence is being gathered, and while it is kept fresh. */

/* Cycles between two deliberate halts, on average; powers of two. */
#define WAKE_COST_GAP		32
#define WAKE_COST_GAP_KNOWN	128

/* The time between them, in costs of a halt. */
#define WAKE_COST_PAUSE		128
#define WAKE_COST_PAUSE_KNOWN	512

/* A cost that is far too high is to be corrected soon. */
#define WAKE_COST_PAUSE_MAX_NS	(1000ULL * 1000 * 1000)

/* Probes: what is drawn, and the cycles and pauses that this takes, see draw_next(). */
#define PROBE_DRAWS		(2 * WAKE_COST_SAMPLES)
#define PROBE_CYCLES		(PROBE_DRAWS * (WAKE_COST_GAP / 2 + 1))
#define PROBE_PAUSES		(PROBE_DRAWS * WAKE_COST_PAUSE / 2)
#define PROBE_CYCLES_NS		(3000ULL * 1000 * 1000)
#define PROBE_COST_MAX_NS	(1000ULL * 1000)

/* The time from a probe to the next, in probes; and for how long an answer is to hold. */
#define PROBE_WAIT_MIN		3
#define PROBE_WAIT_MAX		50
#define PROBE_HELD_NS		(60ULL * 1000 * 1000 * 1000)

/* Ranks of the ordered differences, see above. */
#define WAKE_COST_PAIRS		(WAKE_COST_SAMPLES * WAKE_COST_SAMPLES)
#define WAKE_COST_MARGIN	690

/* Marsaglia's xorshift generator; never 0 unless seeded with it. */
static u32 next_random(u32 *state)
{
	u32 x = *state;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	*state = x;
	return x;
}

/* Draws the next cycle. The gap is from half of the mean to one and a half of it. */
static void draw_next(struct wake_cost *wc, u64 now_ns)
{
	bool known = wake_cost_known(wc);
	/* Every other cycle that is drawn begins with a halt. */
	u32 mean = (known ? WAKE_COST_GAP_KNOWN : WAKE_COST_GAP) / 2;
	u64 costs = (known ? WAKE_COST_PAUSE_KNOWN : WAKE_COST_PAUSE) / 2;
	u64 pause_ns = costs * READ_ONCE(wc->halt_cost_ns);

	wc->pause_until_ns = now_ns + min(pause_ns, WAKE_COST_PAUSE_MAX_NS);
	wc->until_next = mean / 2 + (next_random(&wc->random) & (mean - 1));
	if (wc->second)
		wc->next = wc->next == WAKE_COST_HALTED ? WAKE_COST_POLLED : WAKE_COST_HALTED;
	else
		wc->next = next_random(&wc->random) >> 31 ? WAKE_COST_POLLED : WAKE_COST_HALTED;
	wc->second = !wc->second;
}

/**
 * wake_cost_init - begin the experiment anew
 * @wc: the experiment of one CPU
 * @seed: anything; CPUs with different seeds halt at different times
 */
void wake_cost_init(struct wake_cost *wc, u32 seed)
{
	memset(wc, 0, sizeof(*wc));
	/* An odd factor: no seed but 0 gives 0. */
	wc->random = (seed + 1) * 2654435769U;
	if (!wc->random)
		wc->random = 1;
	draw_next(wc, 0);
}

/**
 * wake_cost_begin - a cycle begins
 * @wc: the experiment of one CPU
 * @now_ns: the time, by the clock of every call on this CPU
 * @polls: the CPU would poll now; one that halts anyway is no evidence
 *
 * Return: true if the CPU is to halt at once, for the experiment.
 */
bool wake_cost_begin(struct wake_cost *wc, u64 now_ns, bool polls)
{
	wc->open = WAKE_COST_NONE;
	wc->aborted = false;
	if (!polls || now_ns < wc->pause_until_ns)
		return false;

	if (wc->until_next) {
		wc->until_next--;
		return false;
	}
	wc->open = wc->next;
	draw_next(wc, now_ns);
	return wc->open == WAKE_COST_HALTED;
}

/**
 * wake_cost_halt_aborted - the cycle that is going on begins without its deliberate halt
 * @wc: the experiment of one CPU
 *
 * A wakeup came before the CPU entered an idle state. Says nothing of a cycle that was not
 * to begin with such a halt.
 */
void wake_cost_halt_aborted(struct wake_cost *wc)
{
	wc->aborted = true;
}

static void note_aborted(struct wake_cost *wc, u32 slot)
{
	wc->aborts -= wc->was_aborted[slot];
	wc->was_aborted[slot] = wc->aborted;
	WRITE_ONCE(wc->aborts, wc->aborts + wc->aborted);
}

/**
 * wake_cost_end - the cycle ends: the CPU has worked, and is idle again
 * @wc: the experiment of one CPU
 * @cycle_ns: how long it was
 *
 * Not for a cycle whose wait somebody else chose. When the next one begins, that is dropped.
 */
void wake_cost_end(struct wake_cost *wc, u64 cycle_ns)
{
	enum wake_cost_kind kind = wc->open;
	u32 slot = wc->count[kind] % WAKE_COST_SAMPLES;

	WRITE_ONCE(wc->cycles, wc->cycles + 1);
	if (kind == WAKE_COST_NONE)
		return;
	wc->open = WAKE_COST_NONE;
	if (kind == WAKE_COST_HALTED)
		note_aborted(wc, slot);
	WRITE_ONCE(wc->cycle_ns[kind][slot],
		   (u32)min(cycle_ns, (u64)U32_MAX));
	/* Wraps after years, at a multiple of the ring's length. */
	WRITE_ONCE(wc->count[kind], wc->count[kind] + 1);
}

static void sort_samples(u32 samples[WAKE_COST_SAMPLES])
{
	unsigned int i, j;

	for (i = 1; i < WAKE_COST_SAMPLES; i++) {
		u32 sample = samples[i];

		for (j = i; j > 0 && samples[j - 1] > sample; j--)
			samples[j] = samples[j - 1];
		samples[j] = sample;
	}
}

/* How many of all differences between sorted samples are @at_most_ns or less? */
static unsigned int count_differences(const u32 slow_ns[WAKE_COST_SAMPLES],
				      const u32 fast_ns[WAKE_COST_SAMPLES], s64 at_most_ns)
{
	unsigned int s, f = 0, count = 0;

	/* The longer the slow sample, the more fast ones are too short. */
	for (s = 0; s < WAKE_COST_SAMPLES; s++) {
		while (f < WAKE_COST_SAMPLES && (s64)slow_ns[s] - fast_ns[f] > at_most_ns)
			f++;
		count += WAKE_COST_SAMPLES - f;
	}
	return count;
}

/* The difference with this rank, counted from 1, by halving the range it is in. */
static s64 difference_at(const u32 slow_ns[WAKE_COST_SAMPLES],
			 const u32 fast_ns[WAKE_COST_SAMPLES], unsigned int rank)
{
	s64 low = -(s64)U32_MAX, high = U32_MAX;

	while (low < high) {
		/* Rounds towards low, below zero too. */
		s64 middle = low + ((high - low) >> 1);

		if (count_differences(slow_ns, fast_ns, middle) >= rank)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/**
 * wake_cost_compare - by how much are slow samples longer than fast ones?
 * @estimate: set to the answer, in ns
 * @slow_ns: samples from halting; sorted on return
 * @fast_ns: samples from polling; sorted on return
 */
void wake_cost_compare(struct wake_cost_estimate *estimate, u32 slow_ns[WAKE_COST_SAMPLES],
		       u32 fast_ns[WAKE_COST_SAMPLES])
{
	sort_samples(slow_ns);
	sort_samples(fast_ns);
	estimate->cost_ns = difference_at(slow_ns, fast_ns, WAKE_COST_PAIRS / 2);
	estimate->lower_ns = difference_at(slow_ns, fast_ns,
					   WAKE_COST_PAIRS / 2 - WAKE_COST_MARGIN);
	estimate->upper_ns = difference_at(slow_ns, fast_ns,
					   WAKE_COST_PAIRS / 2 + WAKE_COST_MARGIN + 1);
}

/** wake_cost_are_hits - did most of @polls end with a wakeup, as @hits of them did? */
bool wake_cost_are_hits(u64 polls, u64 hits)
{
	return 4 * hits >= 3 * polls;
}

/**
 * wake_cost_tells - would the latest cycles show what a halt costs?
 * @polls: polls since the last time that this was asked, some seconds at most
 * @hits: those that ended with a wakeup
 * @aborts: how many of the latest deliberate halts were none
 *
 * Return: true if most polls spared a halt, and most deliberate halts were some. Then the interval
 * of the estimate holds the cost.
 */
bool wake_cost_tells(u64 polls, u64 hits, u32 aborts)
{
	return wake_cost_are_hits(polls, hits) && 4 * aborts <= WAKE_COST_SAMPLES;
}

/**
 * wake_cost_is_conclusive - is the estimate an answer?
 * @estimate: of the latest cycles
 * @tells: what wake_cost_tells() says of them
 *
 * Return: true if polling does harm, or if halting costs what the estimate says.
 */
bool wake_cost_is_conclusive(const struct wake_cost_estimate *estimate, bool tells)
{
	return estimate->upper_ns < 0 || (estimate->lower_ns > 0 && tells);
}

static bool are_enough(u64 cycles, u64 in_ns)
{
	/* Nobody asks as rarely as once in 1000 s; keeps both products far from 2^64. */
	return min(cycles, 1000000000ULL) * PROBE_CYCLES_NS >=
	       PROBE_CYCLES * min(in_ns, 1000000000000ULL);
}

/* The wait grows only if the probe was in vain. One with too few cycles says nothing. */
static void end_probe(struct wake_cost_probe *probe, u64 now_ns, bool in_vain)
{
	u64 shortest_ns = PROBE_WAIT_MIN * probe->length_ns;

	if (in_vain || probe->wait_ns < shortest_ns)
		probe->wait_ns = clamp(2 * probe->wait_ns, shortest_ns,
				       PROBE_WAIT_MAX * probe->length_ns);
	probe->on = false;
	probe->next_ns = now_ns + probe->wait_ns;
}

/**
 * wake_cost_probe - is a missed wakeup to count more for a while?
 * @probe: the probes of one CPU; all 0 at first
 * @wc: its experiment
 * @now_ns: the time, by any clock that does not step back
 * @hits: wakeups from a poll by now
 * @answered: the programs have an answer
 * @asked: they are asked, as the price decides for how long the CPU polls
 *
 * To be called about once a second.
 *
 * Return: true while it is to count WAKE_COST_PROBE_PRICE times as much.
 */
bool wake_cost_probe(struct wake_cost_probe *probe, const struct wake_cost *wc, u64 now_ns,
		     u64 hits, bool answered, bool asked)
{
	u64 cycles = READ_ONCE(wc->cycles), cost_ns = READ_ONCE(wc->halt_cost_ns);
	u64 new_cycles = cycles - probe->seen_cycles, new_hits = hits - probe->seen_hits;
	u64 elapsed_ns = now_ns - probe->seen_ns;

	probe->seen_ns = now_ns;
	probe->seen_cycles = cycles;
	probe->seen_hits = hits;

	if (probe->on) {
		if (answered || !asked || now_ns - probe->begun_ns >= probe->length_ns)
			end_probe(probe, now_ns,
				  answered || cycles - probe->begun_cycles >= PROBE_CYCLES);
		probe->needed_ns = now_ns;
	} else if (answered || !asked) {
		if (!asked)
			probe->needed_ns += elapsed_ns;
		if (now_ns - probe->needed_ns >= PROBE_HELD_NS)
			probe->wait_ns = 0;
		/* An answer may be gone for a moment only. */
		probe->next_ns = now_ns + max(probe->wait_ns, PROBE_WAIT_MIN * PROBE_CYCLES_NS);
	} else {
		probe->needed_ns = now_ns;
		if (now_ns < probe->next_ns || cost_ns > PROBE_COST_MAX_NS ||
		    4 * new_hits >= 3 * new_cycles || !are_enough(new_cycles, elapsed_ns))
			return false;
		probe->on = true;
		WRITE_ONCE(probe->count, probe->count + 1);
		probe->begun_ns = now_ns;
		probe->begun_cycles = cycles;
		probe->length_ns = PROBE_CYCLES_NS + PROBE_PAUSES * cost_ns;
	}
	return probe->on;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the programs of one CPU say a wakeup from halt costs, and for how long that counts.
 *
 * wake_cost.c compares the cycles of one CPU. Once a second its evidence is evaluated
 * here. Where it has an answer, that answer counts on this CPU; where it has none, or no
 * fresh one, the machine's figure does. Where that makes polls too short for an answer, the
 * CPU polls for longer from time to time (wake_cost_probe()). Where the machine's figure is above
 * what the programs lose at most, this bound counts for a minute. A CPU that polls less by it
 * learns nothing new, so it is then forgotten, and found again within seconds if it still holds.
 *
 * An answer below the machine's figure ends polls, and with them what it rests on. Where it ended
 * their hits, its upper end is such a bound. Where it ended all of them, nothing contradicts it,
 * and it goes on counting itself. Both last for eight times as long as the CPU polled to find the
 * answer, from 4 s to a minute. So a steady load whose answer is found within 7 s polls in vain
 * for about a ninth of the time, and more if finding it takes longer. A load that comes to lose
 * more is heard after at most about that minute. An answer that is more than a quarter above the
 * machine's figure goes on counting for at least 4 s after it was last heard: by the figure, polls
 * would be too short to find it again, and only a probe could.
 *
 * After a minute in which nobody asked, as where the CPU was offline or polling switched off, its
 * answer and its bound are forgotten.
 *
 * Where polling does harm, the CPU does not poll for ten seconds. Without polls
 * there is no new evidence, so it then tries again, and waits twice as long each
 * time the answer is the same, up to ten minutes.
 *
 * This file only judges. Context: process context, one call at a time for one CPU, which
 * may go on idling meanwhile; any for program_cost_ns().
 */
#include <linux/compiler.h>
#include <linux/idle_poll/machine_cost.h>
#include <linux/idle_poll/program_cost.h>
#include <linux/jiffies.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/typecheck.h>
#include <asm/barrier.h>

#define EVIDENCE_PER_MINUTE	(WAKE_COST_SAMPLES / 4)
/*
 * Less is drawn where it is only kept fresh, and more would be felt: one wakeup in 128 is below
 * 1 %. Where wakeups are few, some of it may be half an hour old, without the time of suspend.
 */
#define EVIDENCE_PER_MINUTE_KNOWN	(EVIDENCE_PER_MINUTE / 8)
#define BOUND_LASTS		(60UL * HZ)
/* With less, noise ends more answers, above and below; with more, loads that take turns lose. */
#define ANSWER_OUTLASTS_POLLS	(4UL * HZ)
#define ANSWER_OUTLASTS_SEARCH	8	/* times */
#define CONFIRMS_ANSWER		(WAKE_COST_SAMPLES / 4) /* deliberate halts */
#define GAP			(60UL * HZ) /* without an update, which is due every few seconds */
#define HARM_WAIT_MIN		(10UL * HZ)
#define HARM_WAIT_MAX		(600UL * HZ)

/**
 * program_cost_ns - what a wakeup from halt costs on one CPU
 * @pc: the CPU
 * @machine_ns: what it costs on this machine, or is assumed to cost
 *
 * Context: any; single words are read, which an update may change one by one.
 *
 * Return: what it costs the programs there, in ns; where these cannot tell, @machine_ns, but no
 * more than what they lose at most; 0 if polling does harm.
 */
u64 program_cost_ns(const struct program_cost *pc, u64 machine_ns)
{
	s64 cost_ns;

	if (!program_cost_answered(pc))
		return min(machine_ns, READ_ONCE(pc->at_most_ns) ?: U64_MAX);
	cost_ns = READ_ONCE(pc->estimate.cost_ns);
	return cost_ns > 0 ? cost_ns : 0;
}

static void forget(struct program_cost *pc)
{
	struct wake_cost *wc = &pc->wake_cost;
	int kind;

	for (kind = 0; kind < WAKE_COST_KINDS; kind++)
		WRITE_ONCE(wc->fresh_from[kind], READ_ONCE(wc->count[kind]));
	WRITE_ONCE(pc->estimated, false);
}

/*
 * Nobody asked for long: the CPU was offline, or all polling off. What its programs said before
 * says nothing, and without an answer it polls, so they are to be heard.
 */
static void begin_anew_after_a_gap(struct program_cost *pc, const struct program_cost_input *in)
{
	if (!time_before(in->now, pc->update_jiffies + GAP)) {
		WRITE_ONCE(pc->at_most_ns, 0);
		forget(pc);
		pc->sought = in->now;
		pc->harm_until = 0;
		pc->harm_wait = 0;
	}
	pc->update_jiffies = in->now;
}

/* A ring that fills too slowly mixes evidence from different times. */
static void forget_old_evidence(struct program_cost *pc, const struct program_cost_input *in,
				u32 count)
{
	u32 enough = wake_cost_known(&pc->wake_cost) ? EVIDENCE_PER_MINUTE_KNOWN :
						       EVIDENCE_PER_MINUTE;

	if (time_before(in->now, pc->minute_jiffies + 60 * HZ))
		return;
	if (count - pc->minute_count < enough)
		forget(pc);
	pc->minute_jiffies = in->now;
	pc->minute_count = count;
}

/* Under it, the CPU has polled less, if at all: what it saw then does not count. */
static void forget_old_bound(struct program_cost *pc, const struct program_cost_input *in)
{
	if (!pc->at_most_ns || time_before(in->now, pc->at_most_until))
		return;
	WRITE_ONCE(pc->at_most_ns, 0);
	forget(pc);
}

/* A cycle whose poll missed takes as long as one with a halt: a small difference says nothing. */
static void note_hits(struct program_cost *pc, u64 polls, u64 hits)
{
	int kind;

	if (polls && wake_cost_are_hits(polls, hits))
		return;
	for (kind = 0; kind < WAKE_COST_KINDS; kind++)
		pc->missed_until[kind] = READ_ONCE(pc->wake_cost.count[kind]);
}

/* Is no cycle in the rings from when polls missed? */
static bool all_hit(const struct program_cost *pc)
{
	const u32 *count = pc->wake_cost.count;

	return READ_ONCE(count[WAKE_COST_POLLED]) - pc->missed_until[WAKE_COST_POLLED] >=
	       WAKE_COST_SAMPLES &&
	       READ_ONCE(count[WAKE_COST_HALTED]) - pc->missed_until[WAKE_COST_HALTED] >=
	       WAKE_COST_SAMPLES;
}

/* By the machine's figure, the CPU would poll for too long. A bound alone ends no polling. */
static void note_bound(struct program_cost *pc, const struct program_cost_input *in, s64 upper_ns,
		       unsigned long until)
{
	u64 at_most_ns = max_t(s64, upper_ns, MACHINE_COST_NOTHING_NS);

	WRITE_ONCE(pc->at_most_ns, at_most_ns < in->machine_ns ? at_most_ns : 0);
	pc->at_most_until = until;
}

/*
 * An answer below the machine's figure ends polls, and with them the hits that it rests on.
 * But perhaps another load runs now: so its bound counts for some time only, and what was
 * seen of the old load does not count after that.
 */
static void outlast_polls(struct program_cost *pc, const struct program_cost_input *in)
{
	unsigned long least = in->now + ANSWER_OUTLASTS_POLLS;
	unsigned long until = pc->answer_jiffies + pc->answer_lasts;

	/* What the answer has lasted already is part of it. */
	if (time_before(until, least))
		until = least;
	note_bound(pc, in, pc->estimate.upper_ns, until);
	if (pc->at_most_ns)
		forget(pc);
}

/*
 * Since when does the CPU poll to find an answer? Where it mostly halts, that costs little. Where
 * its price decides nothing, it polls for another reason.
 */
static void note_search(struct program_cost *pc, const struct program_cost_input *in, u64 cycles,
			u64 polls)
{
	if (pc->estimated || pc->at_most_ns || !in->learns || !polls || 2 * polls < cycles)
		pc->sought = in->now;
}

/*
 * Did an answer end all polls of a CPU that had @cycles and no @polls, and has it lasted? Nothing
 * is drawn that could contradict it. Elsewhere, polls are absent for other reasons: by the
 * machine's figure, there would be no more of them than by an answer above it.
 */
static bool ended_polls(const struct program_cost *pc, const struct program_cost_input *in,
			u64 cycles, u64 polls)
{
	return pc->estimated && pc->estimate.cost_ns < (s64)in->machine_ns && cycles && !polls &&
	       !time_before(in->now, pc->answer_jiffies + pc->answer_lasts) && in->learns;
}

/*
 * Did the programs say lately that a halt costs them far more than the machine's figure? Without
 * this answer, polls are too short for the hits that the next one needs. With one that is little
 * above the figure, they are as long as with the figure.
 */
static bool has_dear_answer(const struct program_cost *pc, const struct program_cost_input *in)
{
	return pc->estimated &&
	       time_before(in->now, pc->estimate_jiffies + ANSWER_OUTLASTS_POLLS) &&
	       pc->estimate.cost_ns > (s64)(in->machine_ns + in->machine_ns / 4);
}

/*
 * Evidence from a few trials of poll_limit.c hardly moves an answer to which it is added, whatever
 * it says: it does not confirm it.
 */
static void note_answer(struct program_cost *pc, const struct program_cost_input *in)
{
	if (!pc->estimated)
		pc->answer_lasts = clamp(ANSWER_OUTLASTS_SEARCH * (in->now - pc->sought),
					 ANSWER_OUTLASTS_POLLS, BOUND_LASTS);
	else if (pc->estimate_count - pc->answer_count < CONFIRMS_ANSWER)
		return;
	pc->answer_jiffies = in->now;
	pc->answer_count = pc->estimate_count;
}

static void answer(struct program_cost *pc, const struct wake_cost_estimate *new)
{
	WRITE_ONCE(pc->at_most_ns, 0);
	WRITE_ONCE(pc->estimate.cost_ns, new->cost_ns);
	WRITE_ONCE(pc->estimate.lower_ns, new->lower_ns);
	WRITE_ONCE(pc->estimate.upper_ns, new->upper_ns);
}

static void decide(struct program_cost *pc, const struct program_cost_input *in,
		   const struct wake_cost_estimate *new, bool tells)
{
	bool conclusive = wake_cost_is_conclusive(new, tells);

	if (conclusive)
		note_answer(pc, in);
	else if (has_dear_answer(pc, in))
		return;
	WRITE_ONCE(pc->estimate_jiffies, in->now);
	if (conclusive)
		answer(pc, new);
	else if (tells && all_hit(pc))
		note_bound(pc, in, new->upper_ns, in->now + BOUND_LASTS);
	else if (pc->estimated)
		outlast_polls(pc, in);
	if (new->upper_ns < 0) {
		pc->harm_wait = clamp(2 * pc->harm_wait, HARM_WAIT_MIN, HARM_WAIT_MAX);
		/* 0 means that no wait is on. */
		pc->harm_until = (in->now + pc->harm_wait) ?: 1;
	} else {
		pc->harm_wait = 0;
	}
	/* Who finds it set reads an answer: a mix of two, maybe, or one that has just ended. */
	smp_store_release(&pc->estimated, conclusive);
}

/* The CPU goes on idling meanwhile: the copy may hold a cycle more or less of the old ones. */
static void copy_cycles(u32 to_ns[WAKE_COST_SAMPLES], const u32 from_ns[WAKE_COST_SAMPLES])
{
	/* Each cycle is a whole word, and which of the latest are here does not matter. */
	data_race(memcpy(to_ns, from_ns, WAKE_COST_SAMPLES * sizeof(*to_ns)));
}

/* The programs' answer. True if it is that the longer polls of a probe do harm. */
static bool update_estimate(struct program_cost *pc, const struct program_cost_input *in)
{
	u32 halted_ns[WAKE_COST_SAMPLES], polled_ns[WAKE_COST_SAMPLES];
	u32 count = READ_ONCE(pc->wake_cost.count[WAKE_COST_HALTED]);
	u64 polls = in->polls - pc->seen_polls;
	u64 hits = in->hits - pc->seen_hits;
	u64 cycles = READ_ONCE(pc->wake_cost.cycles) - pc->seen_cycles;
	struct wake_cost_estimate new;

	pc->seen_polls += polls;
	pc->seen_hits += hits;
	pc->seen_cycles += cycles;
	note_hits(pc, polls, hits);
	begin_anew_after_a_gap(pc, in);

	if (pc->harm_until) {
		if (time_before(in->now, pc->harm_until))
			return false;
		/* Evidence from before the wait must not decide the next one. */
		pc->harm_until = 0;
		forget(pc);
	}
	note_search(pc, in, cycles, polls);
	forget_old_evidence(pc, in, count);
	forget_old_bound(pc, in);
	if (ended_polls(pc, in, cycles, polls))
		forget(pc);
	if (count == pc->estimate_count || !wake_cost_known(&pc->wake_cost))
		return false;

	copy_cycles(halted_ns, pc->wake_cost.cycle_ns[WAKE_COST_HALTED]);
	copy_cycles(polled_ns, pc->wake_cost.cycle_ns[WAKE_COST_POLLED]);
	wake_cost_compare(&new, halted_ns, polled_ns);
	pc->estimate_count = count;
	/* Which says nothing of shorter ones. */
	if (new.upper_ns < 0 && pc->probe.on)
		return true;
	decide(pc, in, &new, wake_cost_tells(polls, hits, READ_ONCE(pc->wake_cost.aborts)));
	return false;
}

/**
 * program_cost_update - hear the programs of one CPU, once a second
 * @pc: the CPU
 * @in: what else is known of it
 *
 * Return: true while a missed wakeup is to count more, so that the CPU polls for longer to hear
 * them.
 */
bool program_cost_update(struct program_cost *pc, const struct program_cost_input *in)
{
	bool harms = update_estimate(pc, in);
	bool answered = harms || program_cost_heard(pc);
	bool asked = in->learns && in->machine_ns;
	bool was_on = pc->probe.on;

	wake_cost_probe(&pc->probe, &pc->wake_cost, in->now_ns, in->hits, answered, asked);
	/* What shorter polls found must not decide about longer ones, nor the other way round. */
	if (pc->probe.on != was_on && !pc->estimated)
		forget(pc);
	return pc->probe.on;
}

/**
 * program_cost_init - begin anew on one CPU
 * @pc: the CPU, all zero
 * @cpu: its number
 * @now: jiffies
 */
void program_cost_init(struct program_cost *pc, unsigned int cpu, unsigned long now)
{
	wake_cost_init(&pc->wake_cost, cpu);
	pc->sought = now;
	pc->minute_jiffies = now;
	pc->update_jiffies = now;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a wakeup from halt costs: measured, kept fresh, and turned into a price.
 *
 * There are two sources. halt_cost.c measures the machine: when polling
 * starts, twice more in the first minute, when a loading machine has come to
 * rest, and then every ten minutes, for 0.3 s each, because frequencies, hosts and
 * neighbours change. A measurement polls, so it waits while no CPU is to.
 * machine_cost.c knows what the measurements say together, and what is assumed before.
 *
 * wake_cost.c measures the programs on each CPU that
 * polls; once a second its evidence is evaluated here. Where it has an answer,
 * that answer counts on this CPU; where it has none, or no fresh one, the
 * machine's figure does. Where that makes polls too short for an answer, the price
 * is raised from time to time (wake_cost_probe()). Where it is above what the programs
 * lose at most, this bound counts for a minute. A CPU that polls less by it learns nothing
 * new, so it is then forgotten, and found again within seconds if it still holds.
 *
 * An answer below the machine's figure ends polls, and with them what it rests on. Where it ended
 * their hits, its upper end is such a bound. Where it ended all of them, nothing contradicts it,
 * and it goes on counting itself. Both last for eight times as long as the CPU polled to find the
 * answer, from 4 s to a minute. So a steady load whose answer is found within 7 s polls in vain
 * for about a ninth of the time, and more if finding it takes longer. A load that comes to lose
 * more is heard after at most about that minute. An answer that is more than a quarter above the
 * machine's figure goes on counting for some seconds after it was last heard: by the figure, polls
 * would be too short to find it again, and only a probe could.
 *
 * Where polling does harm, the CPU does not poll for ten seconds. Without polls
 * there is no new evidence, so it then tries again, and waits twice as long each
 * time the answer is the same, up to ten minutes.
 *
 * The price of a missed wakeup, which poll_limit.c weighs against time polled, is
 * the cost times the weight of waiting, which says how many microseconds of idle
 * CPU time a microsecond of waiting is worth. The price follows the cost only where that
 * changed by more than an eighth: each change makes the policy begin a new account.
 *
 * Context: process context, serialised by cost_mutex, but for idle_cost_ns(),
 * idle_cost_wakeup_ns() and idle_cost_machine_ns().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/idle_poll/idle_cost.h>
#include <linux/idle_poll/machine_cost.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>

#define CALIBRATE_RETRY_MIN	(1UL * HZ)
#define CALIBRATE_SOON		(20UL * HZ)
#define CALIBRATE_AGAIN		(600UL * HZ)
#define CALIBRATE_RETRY_MAX	(60UL * HZ)
#define CALIBRATE_SOON_TIMES	3

#define ESTIMATE_PERIOD		HZ
#define ESTIMATE_PERIOD_AT_REST	(4 * HZ)
#define FEW_POLLS		100
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
#define HARM_WAIT_MIN		(10UL * HZ)
#define HARM_WAIT_MAX		(600UL * HZ)

#define PROBE_PRICE_MAX_NS	(TICK_NSEC / 2ULL)

#define CANNOT_TELL		"cannot tell it from 0; at most "

/* Guards all below, and the measurement. */
static DEFINE_MUTEX(cost_mutex);
static const struct idle_cost_ops *ops;
static bool running;
/* The latest measurement that came to its end, whatever it says. */
static struct halt_cost costs[HALT_COST_SLEEPS];
static unsigned long costs_jiffies;
/* What the measurements say together; single words are read without the mutex. */
static struct machine_cost machine;
static unsigned long calibrate_wait;
/* Why there is no result, as the log said last; 0 if there was one since. Without the mutex. */
static int reported;
static struct dentry *debugfs;

static void force_wait(unsigned int cpu, enum idle_wait how)
{
	WRITE_ONCE(ops->of(cpu)->forced, how);
}

static u64 count_waits(unsigned int cpu)
{
	return READ_ONCE(ops->of(cpu)->forced_waits);
}

static bool is_usable(unsigned int cpu)
{
#ifdef LIGHTSLEEP_MODULE
	if (ops->wait_forbidden(cpu))
		return false;
#endif
	return halt_cost_may_use(cpu);
}

static const struct halt_cost_ops halt_cost_ops = {
	.force = force_wait,
	.waits = count_waits,
	.usable = is_usable,
};

/**
 * idle_cost_machine_ns - what a wakeup from halt costs on this machine
 *
 * Return: what was measured, in ns; 0 if nothing was.
 */
u64 idle_cost_machine_ns(void)
{
	return READ_ONCE(machine.results) ? READ_ONCE(machine.cost_ns) : 0;
}

/**
 * idle_cost_ns - what a wakeup from halt costs on one CPU
 * @ic: the CPU
 *
 * Context: any; single words are read, which an update may change one by one.
 *
 * Return: what it costs the programs there, in ns; where these cannot tell, what it costs
 * on this machine, or is assumed to cost, but no more than what they lose at most; 0 before the
 * first measurement, or if polling does harm.
 */
u64 idle_cost_ns(const struct idle_cost *ic)
{
	u64 at_most_ns;
	s64 cost_ns;

	if (!READ_ONCE(ic->estimated)) {
		at_most_ns = READ_ONCE(ic->at_most_ns) ?: U64_MAX;
		return min(READ_ONCE(machine.cost_ns), at_most_ns);
	}
	cost_ns = READ_ONCE(ic->estimate.cost_ns);
	return cost_ns > 0 ? cost_ns : 0;
}

/**
 * idle_cost_wakeup_ns - how long the wakeup itself takes that ends a halt of one CPU
 * @ic: the CPU
 *
 * What programs lose may be more: it counts what their waker does, and cold caches. None of
 * that is part of the idle period.
 *
 * Context: as for idle_cost_ns().
 *
 * Return: the time, in ns, for which the CPU is still idle when its wakeup has arrived.
 */
u64 idle_cost_wakeup_ns(const struct idle_cost *ic)
{
	return min(idle_cost_ns(ic), READ_ONCE(machine.cost_ns));
}

/* By what a halt is known to cost, the experiment on programs bounds what it takes. */
static void tell_experiment(struct idle_cost *ic, u64 cost_ns)
{
	WRITE_ONCE(ic->wake_cost.halt_cost_ns, min_t(u64, cost_ns, U32_MAX));
}

/* A poll is up to twice as long: a tick at most, as a probe may waste all that it polls. */
static u64 raised_for_probe(u64 price_ns)
{
	return max(price_ns, min(price_ns * WAKE_COST_PROBE_PRICE, PROBE_PRICE_MAX_NS));
}

static void update_price(struct idle_cost *ic)
{
	unsigned int weight = ops->wait_weight();
	u64 cost_ns = idle_cost_ns(ic);
	u64 new_ns = ic->probe.on ? raised_for_probe(cost_ns * weight) : cost_ns * weight;
	u64 old_ns = ic->miss_cost_ns;
	u64 apart_ns = new_ns > old_ns ? new_ns - old_ns : old_ns - new_ns;

	tell_experiment(ic, cost_ns);
	/* A cost that differs a little is another sample of the same. Weights differ on purpose. */
	if (!new_ns || weight != ic->weight || apart_ns > old_ns / 8)
		WRITE_ONCE(ic->miss_cost_ns, new_ns);
	ic->weight = weight;
}

static void forget(struct idle_cost *ic)
{
	struct wake_cost *wc = &ic->wake_cost;
	int kind;

	for (kind = 0; kind < WAKE_COST_KINDS; kind++)
		WRITE_ONCE(wc->fresh_from[kind], READ_ONCE(wc->count[kind]));
	WRITE_ONCE(ic->estimated, false);
}

/* A ring that fills too slowly mixes evidence from different times. */
static void forget_old_evidence(struct idle_cost *ic, u32 count)
{
	u32 enough = wake_cost_known(&ic->wake_cost) ? EVIDENCE_PER_MINUTE_KNOWN :
						       EVIDENCE_PER_MINUTE;

	if (time_before(jiffies, ic->minute_jiffies + 60 * HZ))
		return;
	if (count - ic->minute_count < enough)
		forget(ic);
	ic->minute_jiffies = jiffies;
	ic->minute_count = count;
}

/* Under it, the CPU has polled less, if at all: what it saw then does not count. */
static void forget_old_bound(struct idle_cost *ic)
{
	if (!ic->at_most_ns || time_before(jiffies, ic->at_most_until))
		return;
	WRITE_ONCE(ic->at_most_ns, 0);
	forget(ic);
}

/* A cycle whose poll missed takes as long as one with a halt: a small difference says nothing. */
static void note_hits(struct idle_cost *ic, u64 polls, u64 hits)
{
	int kind;

	if (polls && wake_cost_are_hits(polls, hits))
		return;
	for (kind = 0; kind < WAKE_COST_KINDS; kind++)
		ic->missed_until[kind] = READ_ONCE(ic->wake_cost.count[kind]);
}

/* Is no cycle in the rings from when polls missed? */
static bool all_hit(const struct idle_cost *ic)
{
	const u32 *count = ic->wake_cost.count;

	return READ_ONCE(count[WAKE_COST_POLLED]) - ic->missed_until[WAKE_COST_POLLED] >=
	       WAKE_COST_SAMPLES &&
	       READ_ONCE(count[WAKE_COST_HALTED]) - ic->missed_until[WAKE_COST_HALTED] >=
	       WAKE_COST_SAMPLES;
}

/* By the machine's figure, the CPU would poll for too long. A bound alone ends no polling. */
static void note_bound(struct idle_cost *ic, s64 upper_ns, unsigned long until)
{
	u64 at_most_ns = max_t(s64, upper_ns, MACHINE_COST_NOTHING_NS);

	WRITE_ONCE(ic->at_most_ns, at_most_ns < machine.cost_ns ? at_most_ns : 0);
	ic->at_most_until = until;
}

/*
 * An answer below the machine's figure ends polls, and with them the hits that it rests on.
 * But perhaps another load runs now: so its bound counts for some time only, and what was
 * seen of the old load does not count after that.
 */
static void outlast_polls(struct idle_cost *ic)
{
	unsigned long least = jiffies + ANSWER_OUTLASTS_POLLS;
	unsigned long until = ic->answer_jiffies + ic->answer_lasts;

	/* What the answer has lasted already is part of it. */
	if (time_before(until, least))
		until = least;
	note_bound(ic, ic->estimate.upper_ns, until);
	if (ic->at_most_ns)
		forget(ic);
}

/* Since when does the CPU poll to find an answer? Where it mostly halts, that costs little. */
static void note_search(struct idle_cost *ic, u64 cycles, u64 polls)
{
	if (ic->estimated || ic->at_most_ns || !polls || 2 * polls < cycles)
		ic->sought = jiffies;
}

/*
 * Did an answer end all polls of a CPU that had @cycles and no @polls, and has it lasted? Nothing
 * is drawn that could contradict it. Elsewhere, polls are absent for other reasons: by the
 * machine's figure, there would be no more of them than by an answer above it.
 */
static bool ended_polls(const struct idle_cost *ic, unsigned int cpu, u64 cycles, u64 polls)
{
	return ic->estimated && ic->estimate.cost_ns < (s64)machine.cost_ns && cycles && !polls &&
	       !time_before(jiffies, ic->answer_jiffies + ic->answer_lasts) && ops->learns(cpu);
}

/*
 * Did the programs say lately that a halt costs them far more than the machine's figure? Without
 * this answer, polls are too short for the hits that the next one needs. With one that is little
 * above the figure, they are as long as with the figure.
 */
static bool has_dear_answer(const struct idle_cost *ic)
{
	return ic->estimated &&
	       time_before(jiffies, ic->estimate_jiffies + ANSWER_OUTLASTS_POLLS) &&
	       ic->estimate.cost_ns > (s64)(machine.cost_ns + machine.cost_ns / 4);
}

/*
 * Evidence from a few trials of poll_limit.c hardly moves an answer to which it is added, whatever
 * it says: it does not confirm it.
 */
static void note_answer(struct idle_cost *ic)
{
	if (!ic->estimated)
		ic->answer_lasts = clamp(ANSWER_OUTLASTS_SEARCH * (jiffies - ic->sought),
					 ANSWER_OUTLASTS_POLLS, BOUND_LASTS);
	else if (ic->estimate_count - ic->answer_count < CONFIRMS_ANSWER)
		return;
	ic->answer_jiffies = jiffies;
	ic->answer_count = ic->estimate_count;
}

static void decide(struct idle_cost *ic, const struct wake_cost_estimate *new, bool tells)
{
	bool conclusive = wake_cost_is_conclusive(new, tells);

	if (conclusive)
		note_answer(ic);
	else if (has_dear_answer(ic))
		return;
	WRITE_ONCE(ic->estimate_jiffies, jiffies);
	if (conclusive)
		WRITE_ONCE(ic->at_most_ns, 0);
	else if (tells && all_hit(ic))
		note_bound(ic, new->upper_ns, jiffies + BOUND_LASTS);
	else if (ic->estimated)
		outlast_polls(ic);
	/* A reader may get a mix of two estimates, but not of one that says nothing. */
	if (!conclusive)
		WRITE_ONCE(ic->estimated, false);
	ic->estimate = *new;
	if (new->upper_ns < 0) {
		ic->harm_wait = clamp(2 * ic->harm_wait, HARM_WAIT_MIN, HARM_WAIT_MAX);
		/* 0 means that no wait is on. */
		ic->harm_until = (jiffies + ic->harm_wait) ?: 1;
	} else {
		ic->harm_wait = 0;
	}
	WRITE_ONCE(ic->estimated, conclusive);
}

/* The CPU goes on idling meanwhile: the copy may hold a cycle more or less of the old ones. */
static void copy_cycles(u32 to_ns[WAKE_COST_SAMPLES], const u32 from_ns[WAKE_COST_SAMPLES])
{
	/* Each cycle is a whole word, and which of the latest are here does not matter. */
	data_race(memcpy(to_ns, from_ns, WAKE_COST_SAMPLES * sizeof(*to_ns)));
}

/* The programs' answer. True if it is that the longer polls of a probe do harm. */
static bool update_estimate(struct idle_cost *ic, unsigned int cpu)
{
	u32 halted_ns[WAKE_COST_SAMPLES], polled_ns[WAKE_COST_SAMPLES];
	u32 count = READ_ONCE(ic->wake_cost.count[WAKE_COST_HALTED]);
	u64 polls = READ_ONCE(ic->polls) - ic->seen_polls;
	u64 hits = READ_ONCE(ic->hits) - ic->seen_hits;
	u64 cycles = READ_ONCE(ic->wake_cost.cycles) - ic->seen_cycles;
	struct wake_cost_estimate new;

	ic->seen_polls += polls;
	ic->seen_hits += hits;
	ic->seen_cycles += cycles;
	note_hits(ic, polls, hits);

	if (ic->harm_until) {
		if (time_before(jiffies, ic->harm_until))
			return false;
		/* Evidence from before the wait must not decide the next one. */
		ic->harm_until = 0;
		forget(ic);
	}
	note_search(ic, cycles, polls);
	forget_old_evidence(ic, count);
	forget_old_bound(ic);
	if (ended_polls(ic, cpu, cycles, polls))
		forget(ic);
	if (count == ic->estimate_count || !wake_cost_known(&ic->wake_cost))
		return false;

	copy_cycles(halted_ns, ic->wake_cost.cycle_ns[WAKE_COST_HALTED]);
	copy_cycles(polled_ns, ic->wake_cost.cycle_ns[WAKE_COST_POLLED]);
	wake_cost_compare(&new, halted_ns, polled_ns);
	ic->estimate_count = count;
	/* Which says nothing of shorter ones. */
	if (new.upper_ns < 0 && ic->probe.on)
		return true;
	decide(ic, &new, wake_cost_tells(polls, hits, READ_ONCE(ic->wake_cost.aborts)));
	return false;
}

/* True while the CPU probes for the programs' answer. */
static bool update_probe(struct idle_cost *ic, unsigned int cpu, bool harms)
{
	bool pointless = harms || ic->estimated || ic->at_most_ns || READ_ONCE(ic->isolated) ||
			 !idle_cost_ns(ic) || !ops->learns(cpu);
	bool was_on = ic->probe.on;

	wake_cost_probe(&ic->probe, &ic->wake_cost, ktime_get_ns(), READ_ONCE(ic->hits), pointless);
	/* What shorter polls found must not decide about longer ones, nor the other way round. */
	if (ic->probe.on != was_on && !ic->estimated)
		forget(ic);
	return ic->probe.on;
}

static void update_prices(void)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		update_price(ops->of(cpu));
}

static void estimate_costs(struct work_struct *work);
static DECLARE_DELAYED_WORK(estimate_work, estimate_costs);

/* Once a second while CPUs poll; a machine at rest is not woken as often for it. */
static void estimate_costs(struct work_struct *work)
{
	static u64 polls_before;
	unsigned int cpu;
	bool soon = false;
	u64 polls = 0;

	/* In the order of idle_cost_calibrate(). */
	mutex_lock(&cost_mutex);
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct idle_cost *ic = ops->of(cpu);
		bool told = ic->estimated || ic->at_most_ns;

		WRITE_ONCE(ic->isolated, !halt_cost_may_use(cpu));
		soon |= update_probe(ic, cpu, update_estimate(ic, cpu));
		/* From now on, the CPU may poll in vain, until its programs are heard again. */
		soon |= told && !ic->estimated && !ic->at_most_ns;
		polls += READ_ONCE(ic->polls);
		/* Each comparison takes some ten microseconds, and CPUs may be many. */
		cond_resched();
	}
	update_prices();
	cpus_read_unlock();
	mutex_unlock(&cost_mutex);

	queue_delayed_work(ops->workers, &estimate_work,
			   soon || polls - polls_before > FEW_POLLS ? ESTIMATE_PERIOD :
			   round_jiffies_relative(ESTIMATE_PERIOD_AT_REST));
	polls_before = polls;
}

/* Has the exit latency and all prices follow what is known of the machine. */
static void publish(void)
{
#ifdef LIGHTSLEEP_MODULE
	ops->set_exit_latency(machine.worst_ns);
#endif
	cpus_read_lock();
	update_prices();
	cpus_read_unlock();
}

static void log_result(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	bool is_bound;
	u64 cost_ns;

	machine_cost_says(measured, &cost_ns, &is_bound);
	pr_info("a wakeup from halt costs %llu ns more than one from polling (this measurement: %s%llu ns)\n",
		machine.cost_ns, is_bound ? CANNOT_TELL : "", cost_ns);
}

/* A measurement that came to its end. */
static int judge(const struct halt_cost measured[HALT_COST_SLEEPS], bool quiet)
{
	int ret = machine_cost_add(&machine, measured);

	memcpy(costs, measured, sizeof(costs));
	costs_jiffies = jiffies;
	publish();
	if (ret)
		return ret;
	WRITE_ONCE(reported, 0);
	if (!quiet)
		log_result(measured);
	return 0;
}

/* idle_cost_calibrate(), but for -ENODATA where noise hides the cost. */
static int calibrate(bool quiet)
{
	struct halt_cost measured[HALT_COST_SLEEPS];
	int ret;

	mutex_lock(&cost_mutex);
	ret = running ? halt_cost_measure(&halt_cost_ops, measured) : -ENODEV;
	if (!ret) {
		ret = judge(measured, quiet);
	} else if (running) {
		machine_cost_assume(&machine);
		publish();
	}
	mutex_unlock(&cost_mutex);
	return ret;
}

/**
 * idle_cost_calibrate - measure the machine now
 * @quiet: a result is nothing new
 *
 * Return: 0; -ENODEV before idle_cost_start() and after idle_cost_stop(); -EAGAIN if
 * other work on the machine or its host drowns the difference; -EBUSY if polls make wakeups slower;
 * otherwise what halt_cost_measure() returns.
 */
int idle_cost_calibrate(bool quiet)
{
	int ret = calibrate(quiet);

	return ret == -ENODATA ? -EAGAIN : ret;
}

static const char *reason(int error)
{
	switch (error) {
	case -EBUSY:
		return "polls make wakeups slower";
	case -EPERM:
#ifdef LIGHTSLEEP_MODULE
		return "a disabled state or a latency limit forbids it on all CPUs";
#else
		return "all CPUs are isolated";
#endif
	case -EAGAIN:
	case -ETIMEDOUT:
		return "the machine is busy";
	default:
		return "it failed";
	}
}

static void calibrate_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(calibrate_work, calibrate_again);

/* A machine that stays busy is tried every minute, and the log says so once. */
static void calibrate_and_schedule(void)
{
	int ret = calibrate(READ_ONCE(machine.results) >= CALIBRATE_SOON_TIMES);
	unsigned int results = READ_ONCE(machine.results);
	char at_most[64];

	if (ret == -ENODEV)
		return;
	if (!ret)
		calibrate_wait = results < CALIBRATE_SOON_TIMES ? CALIBRATE_SOON : CALIBRATE_AGAIN;
	else
		calibrate_wait = clamp(2 * calibrate_wait, CALIBRATE_RETRY_MIN,
				       results ? CALIBRATE_AGAIN : CALIBRATE_RETRY_MAX);
	if (!results && ret != READ_ONCE(reported)) {
		WRITE_ONCE(reported, ret);
		scnprintf(at_most, sizeof(at_most), CANNOT_TELL "%llu ns",
			  READ_ONCE(machine.bound_ns));
		pr_warn("cannot measure the halt cost: %s (error %d); the next attempt is in %lu s, and %llu ns is assumed until then\n",
			ret == -ENODATA ? at_most : reason(ret), ret == -ENODATA ? -EAGAIN : ret,
			calibrate_wait / HZ, READ_ONCE(machine.cost_ns));
	}
	queue_delayed_work(ops->workers, &calibrate_work, calibrate_wait);
}

/*
 * A measurement polls. Where no CPU is to, there is only the first, and what somebody asks for.
 * A pause is over in seconds, so the next one need not wait for longer.
 */
static void calibrate_again(struct work_struct *work)
{
	bool stopped = ops->polling_stopped();
	unsigned long wait = CALIBRATE_SOON;

	if (!stopped && !ops->polling_paused()) {
		calibrate_and_schedule();
		return;
	}
	if (stopped)
		wait = max(calibrate_wait, wait);
	queue_delayed_work(ops->workers, &calibrate_work, round_jiffies_relative(wait));
}

/* debugfs: what the last measurement found, by length of sleep, and what it says. */
static int halt_cost_show(struct seq_file *file, void *unused)
{
	bool is_bound;
	unsigned int n;
	u64 cost_ns;
	int ret;

	seq_puts(file, "slept_ns cost_ns lower_ns upper_ns worst_ns\n");
	mutex_lock(&cost_mutex);
	if (!costs[0].slept_ns)
		goto out_unlock;
	for (n = 0; n < HALT_COST_SLEEPS; n++)
		seq_printf(file, "%llu %lld %lld %lld %llu\n", costs[n].slept_ns,
			   costs[n].estimate.cost_ns, costs[n].estimate.lower_ns,
			   costs[n].estimate.upper_ns, costs[n].worst_ns);
	seq_printf(file, "%lu s ago: ", (jiffies - costs_jiffies) / HZ);
	ret = machine_cost_says(costs, &cost_ns, &is_bound);
	if (ret == -EBUSY)
		seq_printf(file, "%s\n", reason(ret));
	else
		seq_printf(file, "%s%llu ns\n", is_bound ? CANNOT_TELL : "", cost_ns);
out_unlock:
	mutex_unlock(&cost_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(halt_cost);

/**
 * idle_cost_init - begin anew on one CPU
 * @ic: its state
 * @cpu: the CPU
 *
 * Context: process context, before the CPU idles by what is learned here.
 */
void idle_cost_init(struct idle_cost *ic, unsigned int cpu)
{
	u64 cost_ns = READ_ONCE(machine.cost_ns);

	/* A measurement may look on where a CPU comes online. */
	data_race(memset(ic, 0, sizeof(*ic)));
	wake_cost_init(&ic->wake_cost, cpu);
	tell_experiment(ic, cost_ns);
	ic->isolated = !halt_cost_may_use(cpu);
	ic->sought = jiffies;
	ic->minute_jiffies = jiffies;
	/* The cost is not known before idle_cost_start(). */
	if (cost_ns) {
		ic->weight = ops->wait_weight();
		ic->miss_cost_ns = cost_ns * ic->weight;
	}
}

/**
 * idle_cost_start - measure now and from now on
 * @user: who polls and halts, until idle_cost_stop()
 *
 * What is learned polls nothing before the first measurement: the price of all CPUs is 0 until
 * then.
 */
void idle_cost_start(const struct idle_cost_ops *user)
{
	ops = user;
	debugfs = debugfs_create_dir(ops->name, NULL);
	debugfs_create_file("halt_cost", 0400, debugfs, NULL, &halt_cost_fops);

	/* Who asks for a measurement may come before, and after idle_cost_stop(). */
	mutex_lock(&cost_mutex);
	running = true;
	mutex_unlock(&cost_mutex);
	calibrate_and_schedule();
	estimate_costs(NULL);
}

/* Returns when nothing is measured any more. */
void idle_cost_stop(void)
{
	mutex_lock(&cost_mutex);
	running = false;
	mutex_unlock(&cost_mutex);
	cancel_delayed_work_sync(&calibrate_work);
	cancel_delayed_work_sync(&estimate_work);
	debugfs_remove(debugfs);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a wakeup from halt costs: measured, kept fresh, and turned into a price.
 *
 * There are two sources. halt_cost.c measures the machine: when the module is
 * loaded, twice more in the first minute, when a loading machine has come to
 * rest, and then every ten minutes, for 0.3 s each, because frequencies, hosts and
 * neighbours change. The median of the latest five results is used, so one bad
 * minute decides nothing. wake_cost.c measures the programs on each CPU that
 * polls; once a second its evidence is evaluated here. Where it has an answer,
 * that answer counts on this CPU; where it has none, or no fresh one, the
 * machine's figure does.
 *
 * Where polling does harm, the CPU does not poll for ten seconds. Without polls
 * there is no new evidence, so it then tries again, and waits twice as long each
 * time the answer is the same, up to ten minutes.
 *
 * A machine that is busy while the module is loaded cannot be measured. A cost of 0
 * would then keep the CPUs from polling, and a CPU that never polls learns nothing from its
 * programs. So after a failed measurement ASSUMED_COST_NS is used until there is a
 * figure: times the default weight, it makes a missed wakeup as dear as 100 us of
 * polling, which is how long the first proposal for arm64 polled. If the first
 * measurement says that polls make wakeups slower, the cost stays 0: somebody else wants
 * the core. Later on a failed measurement changes nothing: the programs and
 * host_contention.c notice such a host.
 *
 * The price of a missed wakeup, which poll_limit.c weighs against time polled, is
 * the cost times the parameter wait_weight, which says how many microseconds of idle
 * CPU time a microsecond of waiting is worth. The price follows the cost only where that
 * changed by more than an eighth: each change makes the policy begin a new account.
 *
 * Context: all but lightsleep_halt_cost_ns() in process context, serialised by cost_mutex.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include "lightsleep.h"

#define CALIBRATE_RETRY_MIN	(1UL * HZ)
#define CALIBRATE_SOON		(20UL * HZ)
#define CALIBRATE_AGAIN		(600UL * HZ)
#define CALIBRATE_RETRY_MAX	(60UL * HZ)
#define CALIBRATE_SOON_TIMES	3

#define ASSUMED_COST_NS		(25 * NSEC_PER_USEC)

#define ESTIMATE_PERIOD		HZ
#define ESTIMATE_PERIOD_AT_REST	(4 * HZ)
#define FEW_POLLS		100
#define EVIDENCE_PER_MINUTE	(WAKE_COST_SAMPLES / 4)
#define HARM_WAIT_MIN		(10UL * HZ)
#define HARM_WAIT_MAX		(600UL * HZ)

#define RESULTS			5
#define NEXT_TO_NOTHING_NS	2000

/* Guards all below, and the measurement. */
static DEFINE_MUTEX(cost_mutex);
static bool running;
static struct halt_cost costs[HALT_COST_SLEEPS];
static u64 results_ns[RESULTS];
static u64 worst_results_ns[RESULTS];
static unsigned int results;
static unsigned long calibrate_wait;
/* The median of the latest results, or what is assumed; read without the mutex. */
static u64 machine_cost_ns;
static struct dentry *debugfs;

static void force_wait(unsigned int cpu, enum idle_wait how)
{
	WRITE_ONCE(per_cpu_ptr(lightsleep, cpu)->forced, how);
}

static u64 count_waits(unsigned int cpu, enum idle_wait how)
{
	const struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

	return how == WAIT_HALT ? READ_ONCE(ls->halts) : READ_ONCE(ls->hits);
}

static const struct halt_cost_ops halt_cost_ops = {
	.force = force_wait,
	.waits = count_waits,
};

/* What was measured, 0 if nothing was. */
u64 lightsleep_machine_cost_ns(void)
{
	return READ_ONCE(results) ? READ_ONCE(machine_cost_ns) : 0;
}

/**
 * lightsleep_halt_cost_ns - what a wakeup from halt costs on one CPU
 * @ls: the CPU
 *
 * Context: any; single words are read, which an update may change one by one.
 *
 * Return: what it costs the programs there, in ns; where these cannot tell, what it costs
 * on this machine, or is assumed to cost; 0 before the first measurement, or if polling
 * does harm.
 */
u64 lightsleep_halt_cost_ns(const struct lightsleep *ls)
{
	s64 cost_ns;

	if (!READ_ONCE(ls->estimated))
		return READ_ONCE(machine_cost_ns);
	cost_ns = READ_ONCE(ls->estimate.cost_ns);
	return cost_ns > 0 ? cost_ns : 0;
}

static void update_price(struct lightsleep *ls)
{
	u64 new_ns = lightsleep_halt_cost_ns(ls) * lightsleep_wait_weight();
	u64 old_ns = ls->price_ns;
	u64 apart_ns = new_ns > old_ns ? new_ns - old_ns : old_ns - new_ns;

	if (!new_ns || apart_ns > old_ns / 8)
		WRITE_ONCE(ls->price_ns, new_ns);
}

static void forget(struct lightsleep *ls, u32 count)
{
	WRITE_ONCE(ls->wake_cost.fresh_from, count);
	WRITE_ONCE(ls->estimated, false);
}

/* A ring that fills too slowly mixes evidence from different times. */
static void forget_old_evidence(struct lightsleep *ls, u32 count)
{
	if (time_before(jiffies, ls->minute_jiffies + 60 * HZ))
		return;
	if (count - ls->minute_count < EVIDENCE_PER_MINUTE)
		forget(ls, count);
	ls->minute_jiffies = jiffies;
	ls->minute_count = count;
}

static void decide(struct lightsleep *ls, const struct wake_cost_estimate *new, bool tells)
{
	ls->estimate = *new;
	if (new->upper_ns < 0) {
		ls->harm_wait = clamp(2 * ls->harm_wait, HARM_WAIT_MIN, HARM_WAIT_MAX);
		/* 0 means that no wait is on. */
		ls->harm_until = (jiffies + ls->harm_wait) ?: 1;
	} else {
		ls->harm_wait = 0;
	}
	WRITE_ONCE(ls->estimated, tells);
}

/*
 * The programs' answer. The CPU goes on idling meanwhile: a ring that is copied may hold a
 * cycle more or less of the old ones.
 */
static void update_estimate(struct lightsleep *ls)
{
	u32 halted_ns[WAKE_COST_SAMPLES], polled_ns[WAKE_COST_SAMPLES];
	u32 count = READ_ONCE(ls->wake_cost.count[WAKE_COST_HALTED]);
	u64 polls = READ_ONCE(ls->polls) - ls->seen_polls;
	u64 hits = READ_ONCE(ls->hits) - ls->seen_hits;
	struct wake_cost_estimate new;

	ls->seen_polls += polls;
	ls->seen_hits += hits;

	if (ls->harm_until) {
		if (time_before(jiffies, ls->harm_until))
			return;
		/* Evidence from before the wait must not decide the next one. */
		ls->harm_until = 0;
		forget(ls, count);
	}
	forget_old_evidence(ls, count);
	if (count == ls->estimate_count || !wake_cost_known(&ls->wake_cost))
		return;

	memcpy(halted_ns, ls->wake_cost.cycle_ns[WAKE_COST_HALTED], sizeof(halted_ns));
	memcpy(polled_ns, ls->wake_cost.cycle_ns[WAKE_COST_POLLED], sizeof(polled_ns));
	wake_cost_compare(&new, halted_ns, polled_ns);
	ls->estimate_count = count;
	ls->estimate_jiffies = jiffies;
	decide(ls, &new, wake_cost_tells(&new, polls, hits));
}

static void update_prices(void)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		update_price(per_cpu_ptr(lightsleep, cpu));
}

static void estimate_costs(struct work_struct *work);
static DECLARE_DELAYED_WORK(estimate_work, estimate_costs);

/* Once a second while CPUs poll; a machine at rest is not woken as often for it. */
static void estimate_costs(struct work_struct *work)
{
	static u64 polls_before;
	u64 polls = 0;
	unsigned int cpu;

	/* In the order of lightsleep_calibrate(). */
	mutex_lock(&cost_mutex);
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

		WRITE_ONCE(ls->left_alone, !halt_cost_may_use(cpu));
		update_estimate(ls);
		polls += READ_ONCE(ls->polls);
	}
	update_prices();
	cpus_read_unlock();
	mutex_unlock(&cost_mutex);

	schedule_delayed_work(&estimate_work, polls - polls_before > FEW_POLLS ?
			      ESTIMATE_PERIOD : round_jiffies_relative(ESTIMATE_PERIOD_AT_REST));
	polls_before = polls;
}

static u64 median(const u64 values[RESULTS])
{
	unsigned int n = min_t(unsigned int, results, RESULTS), i, j;
	u64 sorted[RESULTS];

	for (i = 0; i < n; i++) {
		for (j = i; j > 0 && sorted[j - 1] > values[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = values[i];
	}
	return sorted[(n - 1) / 2];
}

/* Does the interval say that halting costs something, or that it costs next to nothing? */
static bool conclusive(const struct wake_cost_estimate *estimate)
{
	const s64 nothing_ns = NEXT_TO_NOTHING_NS;

	return estimate->lower_ns > 0 ||
	       (estimate->lower_ns > -nothing_ns && estimate->upper_ns < nothing_ns);
}

/*
 * The one figure that stands for all: that of sleeps of 100 us, about where polling and
 * halting compete. Where noise drowned it, one of the others is better than none.
 */
static const struct halt_cost *typical(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	static const unsigned int preferred[HALT_COST_SLEEPS] = { 1, 0, 2 };
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (conclusive(&measured[preferred[n]].estimate))
			return &measured[preferred[n]];
	return NULL;
}

/* Did polls make wakeups slower, beyond doubt? */
static bool harmful(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (measured[n].estimate.upper_ns < -NEXT_TO_NOTHING_NS)
			return true;
	return false;
}

static void set_machine_cost(u64 cost_ns)
{
	WRITE_ONCE(machine_cost_ns, cost_ns);
	cpus_read_lock();
	update_prices();
	cpus_read_unlock();
}

static void use_measured(const struct halt_cost measured[HALT_COST_SLEEPS], s64 cost_ns)
{
	u64 worst_ns = 0;
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (conclusive(&measured[n].estimate))
			worst_ns = max(worst_ns, measured[n].worst_ns);
	memcpy(costs, measured, sizeof(costs));
	results_ns[results % RESULTS] = max(cost_ns, 0LL);
	worst_results_ns[results % RESULTS] = worst_ns;
	WRITE_ONCE(results, results + 1);
	lightsleep_set_exit_latency(median(worst_results_ns));
	set_machine_cost(median(results_ns));
}

/**
 * lightsleep_calibrate - measure the machine now
 * @quiet: a result is nothing new
 *
 * Return: 0; -ENODEV if the driver is not running; -EPERM if a latency limit forbids to halt;
 * -EAGAIN if other work on the machine or its host drowns the difference; -EBUSY if polls make
 * wakeups slower; otherwise what halt_cost_measure() returns.
 */
int lightsleep_calibrate(bool quiet)
{
	struct halt_cost measured[HALT_COST_SLEEPS];
	const struct halt_cost *found;
	int ret;

	mutex_lock(&cost_mutex);
	ret = running ? halt_cost_measure(&halt_cost_ops, measured) : -ENODEV;
	if (!ret) {
		found = typical(measured);
		if (found)
			use_measured(measured, found->estimate.cost_ns);
		else
			ret = harmful(measured) ? -EBUSY : -EAGAIN;
	} else if (ret == -EAGAIN && lightsleep_halt_forbidden()) {
		ret = -EPERM;
	}
	if (ret && running && !results)
		set_machine_cost(ret == -EBUSY ? 0 : ASSUMED_COST_NS);
	if (!ret && !quiet)
		pr_info("a wakeup from halt costs %llu ns more than one from polling (this time: %lld)\n",
			machine_cost_ns, found->estimate.cost_ns);
	mutex_unlock(&cost_mutex);
	return ret;
}

static const char *reason(int error)
{
	switch (error) {
	case -EBUSY:
		return "polls make wakeups slower";
	case -EPERM:
		return "a latency limit forbids to halt";
	default:
		return "the machine is busy";
	}
}

static void calibrate_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(calibrate_work, calibrate_again);

/* A machine that stays busy is tried every minute, and the log says so once. */
static void calibrate_and_schedule(void)
{
	static int reported;
	int ret = lightsleep_calibrate(results >= CALIBRATE_SOON_TIMES);

	if (ret == -ENODEV)
		return;
	if (!ret)
		calibrate_wait = results < CALIBRATE_SOON_TIMES ? CALIBRATE_SOON : CALIBRATE_AGAIN;
	else
		calibrate_wait = clamp(2 * calibrate_wait, CALIBRATE_RETRY_MIN,
				       results ? CALIBRATE_AGAIN : CALIBRATE_RETRY_MAX);
	if (!results && ret != reported) {
		reported = ret;
		pr_warn("cannot measure the halt cost (error %d: %s), will try again in %lu s; %llu ns is assumed until then\n",
			ret, reason(ret), calibrate_wait / HZ, machine_cost_ns);
	}
	schedule_delayed_work(&calibrate_work, calibrate_wait);
}

/* A measurement polls. In MODE_OFF the one at load is the only one. */
static void calibrate_again(struct work_struct *work)
{
	if (lightsleep_mode() == MODE_OFF)
		schedule_delayed_work(&calibrate_work, round_jiffies_relative(calibrate_wait));
	else
		calibrate_and_schedule();
}

/* debugfs: what the last measurement found, by length of sleep. */
static int halt_cost_show(struct seq_file *file, void *unused)
{
	unsigned int n;

	seq_puts(file, "slept_ns cost_ns lower_ns upper_ns worst_ns\n");
	mutex_lock(&cost_mutex);
	for (n = 0; results && n < HALT_COST_SLEEPS; n++)
		seq_printf(file, "%llu %lld %lld %lld %llu\n", costs[n].slept_ns,
			   costs[n].estimate.cost_ns, costs[n].estimate.lower_ns,
			   costs[n].estimate.upper_ns, costs[n].worst_ns);
	mutex_unlock(&cost_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(halt_cost);

/**
 * lightsleep_init_cost - a CPU comes online
 * @ls: the CPU, all zero
 *
 * Context: on that CPU, before it idles with the driver.
 */
void lightsleep_init_cost(struct lightsleep *ls)
{
	wake_cost_init(&ls->wake_cost, raw_smp_processor_id());
	ls->price_ns = READ_ONCE(machine_cost_ns) * lightsleep_wait_weight();
}

/* Nothing is polled before the first measurement: the price of all CPUs is 0 till then. */
void lightsleep_start_costs(void)
{
	debugfs = debugfs_create_dir("lightsleep", NULL);
	debugfs_create_file("halt_cost", 0400, debugfs, NULL, &halt_cost_fops);

	/* Parameters can be written before, and until the module is gone. */
	mutex_lock(&cost_mutex);
	running = true;
	mutex_unlock(&cost_mutex);
	calibrate_and_schedule();
	estimate_costs(NULL);
}

void lightsleep_stop_costs(void)
{
	mutex_lock(&cost_mutex);
	running = false;
	mutex_unlock(&cost_mutex);
	cancel_delayed_work_sync(&calibrate_work);
	cancel_delayed_work_sync(&estimate_work);
	debugfs_remove(debugfs);
}

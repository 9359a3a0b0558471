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
 * The price of a missed wakeup, which poll_limit.c weighs against time polled, is
 * the cost times the parameter wait_weight: so many microseconds of otherwise idle
 * CPU time is a microsecond of waiting worth. The price follows the cost only where that
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
#define CALIBRATE_SOON_TIMES	3

#define ESTIMATE_PERIOD		HZ
#define ESTIMATE_MAX_AGE	(60 * HZ)
#define HARM_WAIT_MIN		(10UL * HZ)
#define HARM_WAIT_MAX		(600UL * HZ)

#define RESULTS			5
#define NEXT_TO_NOTHING_NS	2000

/* Guards all below, and the measurement. */
static DEFINE_MUTEX(cost_mutex);
static bool running;
static struct halt_cost costs[HALT_COST_SLEEPS];
static u64 results_ns[RESULTS];
static unsigned int results;
static unsigned long calibrate_wait;
/* The median of the latest results; read without the mutex. */
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

u64 lightsleep_machine_cost_ns(void)
{
	return READ_ONCE(machine_cost_ns);
}

/**
 * lightsleep_halt_cost_ns - what a wakeup from halt costs on one CPU
 * @ls: the CPU
 *
 * Context: any; single words are read, which an update may change one by one.
 *
 * Return: what it costs the programs there, in ns; where these cannot tell, what it costs
 * on this machine; 0 if that is not known yet, or if polling does harm.
 */
u64 lightsleep_halt_cost_ns(const struct lightsleep *ls)
{
	s64 cost_ns;

	if (!READ_ONCE(ls->estimated))
		return lightsleep_machine_cost_ns();
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

/*
 * The programs' answer. The CPU goes on idling meanwhile: a ring that is copied may hold a
 * cycle more or less of the old ones. @fresh_from keeps evidence from before a wait out.
 */
static void update_estimate(struct lightsleep *ls)
{
	u32 halted_ns[WAKE_COST_SAMPLES], polled_ns[WAKE_COST_SAMPLES];
	u32 count = READ_ONCE(ls->wake_cost.count[WAKE_COST_HALTED]);
	struct wake_cost_estimate new;

	if (ls->harm_until) {
		if (time_before(jiffies, ls->harm_until))
			return;
		ls->harm_until = 0;
		ls->fresh_from = count;
		WRITE_ONCE(ls->estimated, false);
	}

	if (count == ls->estimate_count || count - ls->fresh_from < WAKE_COST_SAMPLES) {
		if (time_after(jiffies, ls->estimate_jiffies + ESTIMATE_MAX_AGE))
			WRITE_ONCE(ls->estimated, false);
		return;
	}

	memcpy(halted_ns, ls->wake_cost.cycle_ns[WAKE_COST_HALTED], sizeof(halted_ns));
	memcpy(polled_ns, ls->wake_cost.cycle_ns[WAKE_COST_POLLED], sizeof(polled_ns));
	wake_cost_compare(&new, halted_ns, polled_ns);
	ls->estimate_count = count;
	ls->estimate_jiffies = jiffies;
	ls->estimate = new;

	if (new.upper_ns < 0) {
		ls->harm_wait = clamp(2 * ls->harm_wait, HARM_WAIT_MIN, HARM_WAIT_MAX);
		/* 0 means that no wait is on. */
		ls->harm_until = (jiffies + ls->harm_wait) ?: 1;
	} else if (new.lower_ns > 0) {
		ls->harm_wait = 0;
	}
	WRITE_ONCE(ls->estimated, new.upper_ns < 0 || new.lower_ns > 0);
}

static void estimate_costs(struct work_struct *work);
static DECLARE_DEFERRABLE_WORK(estimate_work, estimate_costs);

/* Deferrable: a CPU that sleeps is not woken to be asked about its wakeups. */
static void estimate_costs(struct work_struct *work)
{
	unsigned int cpu;

	/* In the order of lightsleep_calibrate(). */
	mutex_lock(&cost_mutex);
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

		update_estimate(ls);
		update_price(ls);
	}
	cpus_read_unlock();
	mutex_unlock(&cost_mutex);
	schedule_delayed_work(&estimate_work, ESTIMATE_PERIOD);
}

static u64 median_result(void)
{
	u64 sorted_ns[RESULTS];
	unsigned int n = min_t(unsigned int, results, RESULTS), i, j;

	for (i = 0; i < n; i++) {
		for (j = i; j > 0 && sorted_ns[j - 1] > results_ns[i]; j--)
			sorted_ns[j] = sorted_ns[j - 1];
		sorted_ns[j] = results_ns[i];
	}
	return sorted_ns[(n - 1) / 2];
}

/* Does the interval say that halting costs something, or that it costs next to nothing? */
static bool conclusive(const struct wake_cost_estimate *estimate)
{
	const s64 nothing_ns = NEXT_TO_NOTHING_NS;

	return estimate->lower_ns > 0 ||
	       (estimate->lower_ns > -nothing_ns && estimate->upper_ns < nothing_ns);
}

static void use_measured(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	u64 worst_ns = 0;
	unsigned int n;

	memcpy(costs, measured, sizeof(costs));
	results_ns[results++ % RESULTS] = halt_cost_typical(measured);
	WRITE_ONCE(machine_cost_ns, median_result());
	for (n = 0; n < HALT_COST_SLEEPS; n++)
		worst_ns = max(worst_ns, measured[n].worst_ns);
	lightsleep_set_exit_latency(worst_ns);
	pr_info("a wakeup from halt costs %llu ns more than one from polling (this time: %llu)\n",
		machine_cost_ns, halt_cost_typical(measured));
}

/**
 * lightsleep_calibrate - measure the machine now
 *
 * Return: 0; -ENODEV if the driver is not running; -EAGAIN if other work on the machine or its
 * host drowns the difference; otherwise what halt_cost_measure() returns.
 */
int lightsleep_calibrate(void)
{
	struct halt_cost measured[HALT_COST_SLEEPS];
	int ret;

	mutex_lock(&cost_mutex);
	ret = running ? halt_cost_measure(&halt_cost_ops, measured) : -ENODEV;
	if (!ret && !conclusive(&measured[HALT_COST_TYPICAL].estimate))
		ret = -EAGAIN;
	if (!ret)
		use_measured(measured);
	mutex_unlock(&cost_mutex);
	return ret;
}

static void calibrate_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(calibrate_work, calibrate_again);

static void calibrate_and_schedule(void)
{
	int ret = lightsleep_calibrate();

	if (ret == -ENODEV)
		return;
	if (!ret)
		calibrate_wait = results < CALIBRATE_SOON_TIMES ? CALIBRATE_SOON : CALIBRATE_AGAIN;
	else
		calibrate_wait = clamp(2 * calibrate_wait, CALIBRATE_RETRY_MIN, CALIBRATE_AGAIN);
	if (!results)
		pr_warn("cannot measure the halt cost on so busy a machine (error %d), will try again in %lu s\n",
			ret, calibrate_wait / HZ);
	schedule_delayed_work(&calibrate_work, calibrate_wait);
}

static void calibrate_again(struct work_struct *work)
{
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
	ls->price_ns = lightsleep_machine_cost_ns() * lightsleep_wait_weight();
}

/* Nothing is polled before the cost is known: the price of all CPUs is 0 till then. */
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

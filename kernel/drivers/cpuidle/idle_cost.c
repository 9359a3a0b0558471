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
 * wake_cost.c measures the programs on each CPU that polls; program_cost.c knows what they say,
 * and is asked once a second.
 *
 * The price of a missed wakeup, which poll_limit.c weighs against time polled, is
 * the cost times the weight of waiting, which says how many microseconds of idle
 * CPU time a microsecond of waiting is worth. The price follows the cost only where that
 * changed by more than an eighth: each change makes the policy begin a new account.
 *
 * Context: process context, serialised by cost_mutex, but for idle_cost_ns(),
 * idle_cost_wakeup_ns() and idle_cost_machine_ns().
 */
#ifdef LIGHTSLEEP_MODULE
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#else
#define pr_fmt(fmt) "idle_poll: " fmt
#endif

#include <linux/bits.h>
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/errno.h>
#include <linux/idle_poll/idle_cost.h>
#include <linux/idle_poll/machine_cost.h>
#include <linux/idle_poll/program_cost.h>
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
#define PROBE_PRICE_MAX_NS	(TICK_NSEC / 2ULL)

#define CANNOT_TELL		"cannot tell it from 0; at most "
#define WAS_HARMFUL		", as polls made wakeups slower before"

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
/* Why there is no result, as the log said since the last one: reason_bit(). Without the mutex. */
static unsigned long reported;
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
 * Return: what it costs there, by its programs and the machine, in ns; 0 before the
 * first measurement, or if polling does harm.
 */
u64 idle_cost_ns(const struct idle_cost *ic)
{
	return program_cost_ns(&ic->programs, READ_ONCE(machine.cost_ns));
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
	WRITE_ONCE(ic->programs.wake_cost.halt_cost_ns, min_t(u64, cost_ns, U32_MAX));
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
	u64 new_ns = ic->programs.probe.on ? raised_for_probe(cost_ns * weight) : cost_ns * weight;
	u64 old_ns = ic->miss_cost_ns;
	u64 apart_ns = new_ns > old_ns ? new_ns - old_ns : old_ns - new_ns;

	tell_experiment(ic, cost_ns);
	/* A cost that differs a little is another sample of the same. Weights differ on purpose. */
	if (!new_ns || weight != ic->weight || apart_ns > old_ns / 8)
		WRITE_ONCE(ic->miss_cost_ns, new_ns);
	ic->weight = weight;
}

static void update_prices(void)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		update_price(ops->of(cpu));
}

/* True if the CPU is to be asked again soon. */
static bool hear_programs(struct idle_cost *ic, unsigned int cpu)
{
	struct program_cost_input in = {
		.now = jiffies,
		.now_ns = ktime_get_ns(),
		.machine_ns = machine.cost_ns,
		.polls = READ_ONCE(ic->polls),
		.hits = READ_ONCE(ic->hits),
		.learns = !READ_ONCE(ic->isolated) && ops->learns(cpu),
	};
	bool heard = program_cost_heard(&ic->programs);
	bool probes = program_cost_update(&ic->programs, &in);

	/* Where they fell silent, it may poll in vain until it hears them again. */
	return probes || (heard && !program_cost_heard(&ic->programs));
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

	/* In the order of calibrate(). */
	mutex_lock(&cost_mutex);
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct idle_cost *ic = ops->of(cpu);

		WRITE_ONCE(ic->isolated, !halt_cost_may_use(cpu));
		soon |= hear_programs(ic, cpu);
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
	bool was_harmful = machine.harmful;
	int ret = machine_cost_add(&machine, measured);

	memcpy(costs, measured, sizeof(costs));
	costs_jiffies = jiffies;
	publish();
	/* What the log said before is no longer so. */
	if (!ret || (was_harmful && !machine.harmful))
		WRITE_ONCE(reported, 0);
	if (ret)
		return ret;
	if (!quiet)
		log_result(measured);
	return 0;
}

/*
 * Measures the machine now; where @quiet, a result is nothing new. The caller holds cost_mutex.
 *
 * Returns 0; -ENODEV before idle_cost_start() and after idle_cost_stop(); -ENODATA if noise hides
 * the cost; -EBUSY if polls make wakeups slower; otherwise what halt_cost_measure() returns.
 */
static int calibrate(bool quiet)
{
	struct halt_cost measured[HALT_COST_SLEEPS];
	int ret = running ? halt_cost_measure(&halt_cost_ops, measured) : -ENODEV;

	if (!ret) {
		ret = judge(measured, quiet);
	} else if (running) {
		machine_cost_assume(&machine);
		publish();
	}
	return ret;
}

#ifdef LIGHTSLEEP_MODULE
/**
 * idle_cost_calibrate - measure the machine now
 * @quiet: a result is nothing new
 *
 * A measurement takes seconds where CPUs are busy. Of those who ask meanwhile, one measures next,
 * and all have its answer, as it began after they had asked. A signal ends the wait for it. One
 * that kills who measures may end the measurement, which then answers nobody else.
 *
 * Return: 0; -ENODEV before idle_cost_start() and after idle_cost_stop(); -EAGAIN if
 * other work on the machine or its host drowns the difference; -EBUSY if polls make wakeups slower;
 * -ERESTARTSYS if a signal came; otherwise what halt_cost_measure() returns.
 */
int idle_cost_calibrate(bool quiet)
{
	/* What those who ask began, and how the last one ended. */
	static unsigned int begun;
	static int result;
	/* Without the mutex: where the read comes after the lock, we measure. */
	unsigned int begun_before = READ_ONCE(begun);
	int ret;

	if (mutex_lock_interruptible(&cost_mutex))
		return -ERESTARTSYS;
	if (begun == begun_before || result == -EINTR) {
		WRITE_ONCE(begun, begun + 1);
		result = calibrate(quiet);
	}
	ret = result;
	mutex_unlock(&cost_mutex);
	return ret == -ENODATA ? -EAGAIN : ret;
}
#endif

static const char *reason(int error)
{
	switch (error) {
	case -EBUSY:
		return "polls make wakeups slower";
	case -EPERM:
#ifdef LIGHTSLEEP_MODULE
		return "no usable CPU: isolation, disabled state, latency limit, or no idle device";
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

/* A bit for each reason that the log knows; two errors are one reason. */
static unsigned long reason_bit(int error)
{
	switch (error) {
	case -ENODATA:
		return BIT(0);
	case -EBUSY:
		return BIT(1);
	case -EPERM:
		return BIT(2);
	case -EAGAIN:
	case -ETIMEDOUT:
		return BIT(3);
	default:
		return BIT(4);
	}
}

/*
 * Is it no load, but the idle loop that keeps CPUs from halting? As all of them spin then, a host
 * that is short of cores may delay them so much that the measurement times out.
 */
static bool polls_anyway(int error)
{
#ifdef LIGHTSLEEP_MODULE
	return false; /* A module cannot tell. */
#else
	return (error == -EAGAIN || error == -ETIMEDOUT) && ops->polling_stopped();
#endif
}

/* Until there is a result, the log has each reason once. */
static void report(int error)
{
	bool anyway = polls_anyway(error);
	unsigned long bit = anyway ? BIT(5) : reason_bit(error);
	char at_most[64];

	if (READ_ONCE(reported) & bit)
		return;
	WRITE_ONCE(reported, READ_ONCE(reported) | bit);
	if (anyway) {
		pr_info("nothing is measured while the idle loop polls anyway, as with idle=poll\n");
		return;
	}
	scnprintf(at_most, sizeof(at_most), CANNOT_TELL "%llu ns", READ_ONCE(machine.bound_ns));
	pr_warn("cannot measure the halt cost: %s (error %d); the next attempt is in %lu s, and %llu ns is assumed until then%s\n",
		error == -ENODATA ? at_most : reason(error), error == -ENODATA ? -EAGAIN : error,
		calibrate_wait / HZ, READ_ONCE(machine.cost_ns),
		error != -EBUSY && READ_ONCE(machine.harmful) ? WAS_HARMFUL : "");
}

static void calibrate_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(calibrate_work, calibrate_again);

/* A machine that stays busy is tried every minute. */
static void calibrate_and_schedule(void)
{
	unsigned int results;
	int ret;

	mutex_lock(&cost_mutex);
	ret = calibrate(machine.results >= CALIBRATE_SOON_TIMES);
	results = machine.results;
	mutex_unlock(&cost_mutex);

	if (ret == -ENODEV)
		return;
	if (!ret)
		calibrate_wait = results < CALIBRATE_SOON_TIMES ? CALIBRATE_SOON : CALIBRATE_AGAIN;
	else
		calibrate_wait = clamp(2 * calibrate_wait, CALIBRATE_RETRY_MIN,
				       results ? CALIBRATE_AGAIN : CALIBRATE_RETRY_MAX);
	if (!results)
		report(ret);
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
		seq_printf(file, "%s%llu ns%s\n", is_bound ? CANNOT_TELL : "", cost_ns,
			   machine.harmful ? "; 0 ns is assumed" WAS_HARMFUL : "");
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
	program_cost_init(&ic->programs, cpu, jiffies);
	tell_experiment(ic, cost_ns);
	ic->isolated = !halt_cost_may_use(cpu);
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
 * What is learned polls nothing before the first measurement of all: the price of all CPUs is 0
 * until then. Where polling was on before, the old prices count meanwhile.
 */
void idle_cost_start(const struct idle_cost_ops *user)
{
	ops = user;
	debugfs = debugfs_create_dir(ops->name, NULL);
	debugfs_create_file("halt_cost", 0400, debugfs, NULL, &halt_cost_fops);

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

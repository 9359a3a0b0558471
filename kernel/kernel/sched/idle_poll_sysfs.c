// SPDX-License-Identifier: GPL-2.0-only
/*
 * The interface of idle_poll.c: its switch, its parameters and its statistics.
 *
 * The switch is a plain flag, read once per pass through the idle loop. A static branch would
 * save a load from a line that no CPU writes, and would patch the text of the idle loop
 * while all idle CPUs are in it, which sends an interrupt to each. (Whether there are
 * poll sources is a static branch: it is patched when the first driver registers one and the
 * last one goes.)
 *
 * Parameters are in /sys/module/idle_poll/parameters/, statistics in
 * /sys/devices/system/cpu/cpuN/idle_poll/, one decimal number each.
 *
 * Everything here runs in process context. switch_mutex serialises the switch.
 */
#define pr_fmt(fmt) "idle_poll: " fmt

#include <linux/cleanup.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/device.h>
#include <linux/idle_poll.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/lockdep.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>
#include <linux/thread_info.h>
#include <linux/workqueue.h>

#include "idle_poll.h"

/* The parameters are those of idle_poll, whatever this file is called. */
#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "idle_poll."

#define WAIT_WEIGHT_DEFAULT	4
#define WAIT_WEIGHT_MAX		100

static unsigned int wait_weight = WAIT_WEIGHT_DEFAULT;

static struct idle_cost *cost_of(unsigned int cpu)
{
	return &per_cpu(idle_polls, cpu).cost;
}

static unsigned int idle_poll_wait_weight(void)
{
	return READ_ONCE(wait_weight);
}

/* Where the idle loop polls anyway, nothing halts. */
static bool polling_stopped(void)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		if (READ_ONCE(per_cpu(idle_polls, cpu).polls_anyway))
			return true;
	return false;
}

/* A measurement polls, too: not while the host is short of cores. */
static bool polling_paused(void)
{
	u64 now_ns = idle_poll_clock_ns();
	unsigned int cpu, contended = 0;

	for_each_online_cpu(cpu)
		contended += host_contended(&per_cpu(idle_polls, cpu).contention, now_ns);
	return host_contention_is_general(contended, num_online_cpus());
}

static bool learns(unsigned int cpu)
{
	const struct idle_poll *ip = &per_cpu(idle_polls, cpu);

	return idle_poll_is_on() && !READ_ONCE(ip->polls_anyway) &&
	       !host_contended(&ip->contention, idle_poll_clock_ns());
}

static struct idle_cost_ops cost_ops = {
	.name = "idle_poll",
	.of = cost_of,
	.wait_weight = idle_poll_wait_weight,
	.learns = learns,
	.polling_stopped = polling_stopped,
	.polling_paused = polling_paused,
};

/*
 * The switch. Whoever turns it does not wait for the measurement, which takes a second and
 * more: a worker does that later.
 */
static DEFINE_MUTEX(switch_mutex);
static bool wanted;
static bool can_run;	/* threads can be made, and CPUs are known */
static int init_error;	/* they never will */

/* Starts and stops the measurements. A work item never runs twice at a time. */
static void apply_switch(struct work_struct *work)
{
	static bool measures;
	bool on = READ_ONCE(idle_poll_enabled);

	if (on == measures)
		return;
	measures = on;
	if (on)
		idle_cost_start(&cost_ops);
	else
		idle_cost_stop();
}

static DECLARE_WORK(switch_work, apply_switch);

static void turn_switch(void)
{
	lockdep_assert_held(&switch_mutex);
	if (!can_run || wanted == idle_poll_enabled)
		return;
	if (wanted)
		WRITE_ONCE(idle_poll_epoch, idle_poll_epoch + 1);
	/* Whoever sees the switch on also sees the new epoch; see idle_poll(). */
	smp_store_release(&idle_poll_enabled, wanted);
	if (!wanted)
		idle_poll_release_all_sources();
	queue_work(cost_ops.workers, &switch_work);
}

static int enabled_set(const char *text, const struct kernel_param *kp)
{
	bool yes;
	int ret = kstrtobool(text, &yes);

	if (ret) {
		pr_err("enabled: must be 0 or 1\n");
		return ret;
	}
	guard(mutex)(&switch_mutex);
	if (init_error)
		return init_error;
	WRITE_ONCE(wanted, yes);
	turn_switch();
	return 0;
}

static int enabled_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%d\n", READ_ONCE(wanted));
}

static const struct kernel_param_ops enabled_ops = {
	.set = enabled_set,
	.get = enabled_get,
};
module_param_cb(enabled, &enabled_ops, NULL, 0644);
MODULE_PARM_DESC(enabled, "whether idle CPUs poll before they halt (default 0)");

static int wait_weight_set(const char *text, const struct kernel_param *kp)
{
	int ret = param_set_uint_minmax(text, kp, 1, WAIT_WEIGHT_MAX);

	if (ret)
		pr_err("wait_weight: must be a number from 1 to %u\n", WAIT_WEIGHT_MAX);
	return ret;
}

static const struct kernel_param_ops wait_weight_ops = {
	.set = wait_weight_set,
	.get = param_get_uint,
};
module_param_cb(wait_weight, &wait_weight_ops, &wait_weight, 0644);
MODULE_PARM_DESC(wait_weight, "us of idle CPU time that 1 us of waiting is worth (1 to 100, default 4)");

/* The kernel command line calls this whatever the file mode says. */
static int refuse_set(const char *text, const struct kernel_param *kp)
{
	pr_err("%s: cannot be set\n", kp->name);
	return -EPERM;
}

static int halt_cost_ns_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%llu\n", idle_cost_machine_ns());
}

static const struct kernel_param_ops halt_cost_ns_ops = {
	.set = refuse_set,
	.get = halt_cost_ns_get,
};
module_param_cb(halt_cost_ns, &halt_cost_ns_ops, NULL, 0444);
MODULE_PARM_DESC(halt_cost_ns, "measured: what a wakeup from halt costs more than one from polling (ns; 0: not known)");

static int polling_flag_get(char *text, const struct kernel_param *kp)
{
#ifdef TIF_POLLING_NRFLAG
	return sysfs_emit(text, "Y\n");
#else
	return sysfs_emit(text, "N\n");
#endif
}

static const struct kernel_param_ops polling_flag_ops = {
	.set = refuse_set,
	.get = polling_flag_get,
};
module_param_cb(polling_flag, &polling_flag_ops, NULL, 0444);
MODULE_PARM_DESC(polling_flag, "whether the architecture has TIF_POLLING_NRFLAG, so that a CPU that polls is woken without an interrupt");

#define STATISTIC(_name, _value)						\
static ssize_t _name##_show(struct device *dev, struct device_attribute *attr,	\
			    char *text)						\
{										\
	const struct idle_poll *ip = per_cpu_ptr(&idle_polls, dev->id);		\
										\
	return sysfs_emit(text, "%llu\n", _value);				\
}										\
static DEVICE_ATTR_RO(_name)

STATISTIC(polls, READ_ONCE(ip->cost.polls));
STATISTIC(hits, READ_ONCE(ip->cost.hits));
STATISTIC(halts, READ_ONCE(ip->cost.halts));
STATISTIC(deliberate_halts, READ_ONCE(ip->deliberate_halts));
STATISTIC(polled_ns, READ_ONCE(ip->polled_ns));
STATISTIC(wasted_ns, READ_ONCE(ip->wasted_ns));
STATISTIC(limit_ns, idle_poll_is_on() && !READ_ONCE(ip->polls_anyway) ?
	  idle_poll_own_limit_ns(ip, idle_poll_clock_ns()) : 0);
STATISTIC(halt_cost_ns, idle_cost_ns(&ip->cost));
STATISTIC(probes, READ_ONCE(ip->cost.programs.probe.count));
STATISTIC(contended, (u64)host_contended(&ip->contention, idle_poll_clock_ns()));
STATISTIC(contention_pauses, READ_ONCE(ip->contention.pauses));

static struct attribute *statistics_attrs[] = {
	&dev_attr_polls.attr,
	&dev_attr_hits.attr,
	&dev_attr_halts.attr,
	&dev_attr_deliberate_halts.attr,
	&dev_attr_polled_ns.attr,
	&dev_attr_wasted_ns.attr,
	&dev_attr_limit_ns.attr,
	&dev_attr_halt_cost_ns.attr,
	&dev_attr_probes.attr,
	&dev_attr_contended.attr,
	&dev_attr_contention_pauses.attr,
	NULL,
};

static const struct attribute_group statistics = {
	.name = "idle_poll",
	.attrs = statistics_attrs,
};

static int add_statistics(struct device *dev, struct subsys_interface *sif)
{
	return sysfs_create_group(&dev->kobj, &statistics);
}

static void remove_statistics(struct device *dev, struct subsys_interface *sif)
{
	sysfs_remove_group(&dev->kobj, &statistics);
}

static struct subsys_interface statistics_interface = {
	.name = "idle_poll",
	.subsys = &cpu_subsys,
	.add_dev = add_statistics,
	.remove_dev = remove_statistics,
};

/* Runs while the CPU is still offline, which it was for long, maybe. */
static int prepare_cpu(unsigned int cpu)
{
	per_cpu(idle_polls, cpu).epoch = 0;
	return 0;
}

static int __init prepare_polls(void)
{
	struct poll_limit_params p = { .ceiling_ns = POLL_MAX_NS };
	unsigned int cpu;
	int ret;

	for_each_possible_cpu(cpu) {
		struct idle_poll *ip = &per_cpu(idle_polls, cpu);

		idle_cost_init(&ip->cost, cpu);
		poll_limit_init(&ip->policy, &p);
	}

	cost_ops.workers = alloc_workqueue("idle_poll", WQ_UNBOUND | WQ_FREEZABLE, 0);
	if (!cost_ops.workers)
		return -ENOMEM;

	ret = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "sched/idle_poll:prepare",
					prepare_cpu, NULL);
	if (ret < 0) {
		destroy_workqueue(cost_ops.workers);
		return ret;
	}

	ret = subsys_interface_register(&statistics_interface);
	if (ret)
		pr_warn("no statistics in sysfs: error %d\n", ret);
	return 0;
}

static int __init idle_poll_init(void)
{
	int ret = prepare_polls();

	guard(mutex)(&switch_mutex);
	if (ret) {
		pr_err("no polling: error %d\n", ret);
		init_error = ret;
		WRITE_ONCE(wanted, false);
		return ret;
	}
	can_run = true;
	turn_switch();
	return 0;
}
late_initcall(idle_poll_init);

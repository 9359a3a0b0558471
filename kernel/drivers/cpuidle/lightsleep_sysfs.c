// SPDX-License-Identifier: GPL-2.0-only
/*
 * Parameters and statistics of cpuidle-lightsleep.
 *
 * Parameters are in /sys/module/cpuidle_lightsleep/parameters/; a write that is refused
 * changes nothing and says in the log what would have been accepted. Statistics are in
 * /sys/devices/system/cpu/cpuN/lightsleep/, one decimal number each, but for stat, which
 * has several.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/math.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "lightsleep.h"
#include "ranged_param.h"

#define WAIT_WEIGHT_DEFAULT	4
#define WAIT_WEIGHT_MAX		100

static enum lightsleep_mode mode = MODE_ADAPTIVE;
static unsigned int poll_limit_us;
static unsigned int wait_weight = WAIT_WEIGHT_DEFAULT;

static const char * const mode_names[] = {
	[MODE_ADAPTIVE]	= "adaptive",
	[MODE_FIXED]	= "fixed",
	[MODE_OFF]	= "off",
};

enum lightsleep_mode lightsleep_mode(void)
{
	return READ_ONCE(mode);
}

unsigned int lightsleep_wait_weight(void)
{
	return READ_ONCE(wait_weight);
}

/* The longest poll that the user allows, in ns. */
u64 lightsleep_ceiling_ns(void)
{
	unsigned int limit_us = READ_ONCE(poll_limit_us);

	return (u64)(limit_us ?: POLL_LIMIT_US_MAX) * NSEC_PER_USEC;
}

/* How long every poll is in MODE_FIXED: the price of a missed wakeup, if the user does not say. */
u64 lightsleep_fixed_ns(const struct lightsleep *ls)
{
	if (READ_ONCE(poll_limit_us))
		return lightsleep_ceiling_ns();
	return min(READ_ONCE(ls->cost.miss_cost_ns), lightsleep_ceiling_ns());
}

static int mode_set(const char *text, const struct kernel_param *kp)
{
	int found = sysfs_match_string(mode_names, text);

	if (found < 0) {
		pr_err("mode: must be adaptive, fixed or off\n");
		return found;
	}
	WRITE_ONCE(mode, found);
	return 0;
}

static int mode_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%s\n", mode_names[lightsleep_mode()]);
}

static const struct kernel_param_ops mode_ops = {
	.set = mode_set,
	.get = mode_get,
};
module_param_cb(mode, &mode_ops, NULL, 0644);
MODULE_PARM_DESC(mode, "adaptive: learn the poll limit (default); fixed: always poll for poll_limit_us; off: halt at once");

static int poll_limit_us_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, 0, POLL_LIMIT_US_MAX);
}

static const struct kernel_param_ops poll_limit_us_ops = {
	.set = poll_limit_us_set,
	.get = param_get_uint,
};
module_param_cb(poll_limit_us, &poll_limit_us_ops, &poll_limit_us, 0644);
MODULE_PARM_DESC(poll_limit_us, "longest poll (us, 0 to 10000); 0: the limit follows from what a wakeup costs (default)");

static int wait_weight_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, 1, WAIT_WEIGHT_MAX);
}

static const struct kernel_param_ops wait_weight_ops = {
	.set = wait_weight_set,
	.get = param_get_uint,
};
module_param_cb(wait_weight, &wait_weight_ops, &wait_weight, 0644);
MODULE_PARM_DESC(wait_weight, "us of idle CPU time that 1 us of waiting is worth (1 to 100, default 4)");

/* insmod calls this whatever the file mode says, and does not look for NULL. */
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
MODULE_PARM_DESC(halt_cost_ns, "read-only: how much longer a wakeup from halt takes than one from polling (ns; 0: not known, or nothing)");

static int host_is_short_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%d\n", host_is_short(&lightsleep_host, lightsleep_clock_ns()));
}

static const struct kernel_param_ops host_is_short_ops = {
	.set = refuse_set,
	.get = host_is_short_get,
};
module_param_cb(host_is_short, &host_is_short_ops, NULL, 0444);
MODULE_PARM_DESC(host_is_short, "read-only: 1 while no CPU heeds a latency request, because the host is short of cores");

static int calibrate_set(const char *text, const struct kernel_param *kp)
{
	bool yes;
	int ret = kstrtobool(text, &yes);

	if (ret || !yes) {
		pr_err("calibrate: write 1 to measure the halt cost again\n");
		return -EINVAL;
	}
	/* It takes seconds where CPUs are busy: others may read and set parameters meanwhile. */
	kernel_param_unlock(THIS_MODULE);
	ret = idle_cost_calibrate(false);
	kernel_param_lock(THIS_MODULE);
	if (ret == -ENODEV) {
		pr_err("calibrate: write 1 while the driver runs; at load, it measures anyway\n");
		return -EINVAL;
	}
	return ret;
}

static const struct kernel_param_ops calibrate_ops = {
	.set = calibrate_set,
};
module_param_cb(calibrate, &calibrate_ops, NULL, 0200);
MODULE_PARM_DESC(calibrate, "write 1 to measure halt_cost_ns again; refused at load, when the driver measures anyway");

#define STATISTIC(_name, _value)						\
static ssize_t _name##_show(struct device *dev, struct device_attribute *attr,	\
			    char *text)						\
{										\
	const struct lightsleep *ls = per_cpu_ptr(lightsleep, dev->id);		\
										\
	return sysfs_emit(text, "%lld\n", (long long)(_value));			\
}										\
static DEVICE_ATTR_RO(_name)

STATISTIC(polls, lightsleep_polls(ls));
STATISTIC(hits, lightsleep_hits(ls));
STATISTIC(halts, READ_ONCE(ls->cost.halts));
STATISTIC(deliberate_halts, READ_ONCE(ls->deliberate_halts));
STATISTIC(polled_ns, READ_ONCE(ls->polled_ns));
STATISTIC(wasted_ns, READ_ONCE(ls->wasted_ns));
STATISTIC(limit_ns, lightsleep_limit_ns(ls, lightsleep_clock_ns()));
STATISTIC(halt_cost_ns, idle_cost_ns(&ls->cost));

/* The time of the estimate is read first, as a new one may be made meanwhile. */
static unsigned int age_ms(const struct program_cost *pc)
{
	unsigned long made = READ_ONCE(pc->estimate_jiffies);

	barrier();
	return jiffies_to_msecs(jiffies - made);
}

/* The programs' own answer, 0 where they cannot tell. */
STATISTIC(program_cost_ns, program_cost_answered(&ls->cost.programs) ?
	  READ_ONCE(ls->cost.programs.estimate.cost_ns) : 0);
STATISTIC(program_cost_lower_ns, program_cost_answered(&ls->cost.programs) ?
	  READ_ONCE(ls->cost.programs.estimate.lower_ns) : 0);
STATISTIC(program_cost_upper_ns, program_cost_answered(&ls->cost.programs) ?
	  READ_ONCE(ls->cost.programs.estimate.upper_ns) : 0);
STATISTIC(program_cost_age_ms, program_cost_answered(&ls->cost.programs) ?
	  age_ms(&ls->cost.programs) : 0);
STATISTIC(probes, READ_ONCE(ls->cost.programs.probe.count));
STATISTIC(contention_pauses, READ_ONCE(ls->contention.pauses));
STATISTIC(contended, host_contended(&ls->contention, lightsleep_clock_ns()));
STATISTIC(paused_ns, READ_ONCE(ls->contention.paused_ns));

/* Rounded up: 0 only where no pause is on. */
static u64 left_ms(const struct host_contention *hc)
{
	return DIV_ROUND_UP_ULL(host_contention_left_ns(hc, lightsleep_clock_ns()), NSEC_PER_MSEC);
}

STATISTIC(pause_left_ms, left_ms(&ls->contention));

/*
 * All that changes all the time, in one line, as in the stat file of a disk: who reads
 * hundreds of CPUs again and again opens one file for each. More is added at the end only.
 */
static ssize_t stat_show(struct device *dev, struct device_attribute *attr, char *text)
{
	const struct lightsleep *ls = per_cpu_ptr(lightsleep, dev->id);
	const struct cpuidle_state_usage *poll = &ls->dev.states_usage[POLL_INDEX];
	const struct cpuidle_state_usage *halt = &ls->dev.states_usage[HALT_INDEX];

	return sysfs_emit(text,
			  "%llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu\n",
			  lightsleep_polls(ls), lightsleep_hits(ls), READ_ONCE(ls->cost.halts),
			  READ_ONCE(ls->polled_ns), READ_ONCE(ls->wasted_ns),
			  lightsleep_limit_ns(ls, lightsleep_clock_ns()),
			  idle_cost_ns(&ls->cost),
			  READ_ONCE(poll->usage), div_u64(READ_ONCE(poll->time_ns), NSEC_PER_USEC),
			  READ_ONCE(halt->usage), div_u64(READ_ONCE(halt->time_ns), NSEC_PER_USEC),
			  READ_ONCE(ls->contention.paused_ns), left_ms(&ls->contention));
}
static DEVICE_ATTR_RO(stat);

static struct attribute *statistics_attrs[] = {
	&dev_attr_polls.attr,
	&dev_attr_hits.attr,
	&dev_attr_halts.attr,
	&dev_attr_deliberate_halts.attr,
	&dev_attr_polled_ns.attr,
	&dev_attr_wasted_ns.attr,
	&dev_attr_limit_ns.attr,
	&dev_attr_halt_cost_ns.attr,
	&dev_attr_program_cost_ns.attr,
	&dev_attr_program_cost_lower_ns.attr,
	&dev_attr_program_cost_upper_ns.attr,
	&dev_attr_program_cost_age_ms.attr,
	&dev_attr_probes.attr,
	&dev_attr_contended.attr,
	&dev_attr_contention_pauses.attr,
	&dev_attr_paused_ns.attr,
	&dev_attr_pause_left_ms.attr,
	&dev_attr_stat.attr,
	NULL,
};

const struct attribute_group lightsleep_statistics = {
	.name = "lightsleep",
	.attrs = statistics_attrs,
};

// SPDX-License-Identifier: GPL-2.0-only
/*
 * cpuidle-lightsleep: poll for as long as it pays, then halt.
 *
 * A cpuidle driver for machines that have none, which is most guests. It has
 * two states, POLL and HALT. HALT polls first, for the limit that poll_limit.c
 * has learned for this CPU, and halts when nothing came: the decision between
 * the two is made here, from what a wake costs on this machine, so it is the
 * same under every governor but haltpoll, which chooses POLL by a rule of its
 * own. What is left to the others is the tick, and to choose POLL where a
 * latency QoS request forbids to halt at all; POLL polls for up to the ceiling
 * then, in every mode.
 *
 * A poll takes interrupts, and one of them may arm a timer that only the idle
 * loop can notice. So a poll never goes on to halt by itself. It returns to the
 * idle loop, which comes back, finds the limit of this idle period used up, and
 * halts, with interrupts off all the way. An *idle period* therefore may span
 * several calls; it ends with a wake, or with the interrupt that ends the halt.
 * A poll is booked to the POLL state, whichever state it was entered from, so
 * residencies in sysfs are true.
 *
 * Nothing on the way from a poll to the task that was woken reads a clock or
 * takes a decision. The period is settled when the CPU enters idle the next time,
 * when nobody waits for it, from the residency that the cpuidle core has measured
 * anyway.
 *
 * Context of both enter functions: idle task of the CPU that owns @dev, called
 * and left with interrupts off and preemption disabled. RCU is watching
 * (CPUIDLE_FLAG_RCU_IDLE) except within idle_driver_halt() and, for a moment,
 * idle_driver_pass_quiescent_state(). While a poll runs, interrupts are on.
 * Everything in struct lightsleep is written by its own CPU alone, but for
 * @forced; others only read single words, so there is nothing to lock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpuidle.h>
#include <linux/device.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/poll_source.h>
#include <linux/sched.h>
#include <linux/sched/idle.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>

#include "halt_cost.h"
#include "idle_driver.h"
#include "poll_limit.h"
#include "poll_source.h"
#include "poll_wait.h"
#include "ranged_param.h"

#define POLL_INDEX		0
#define HALT_INDEX		1

/* How long a poll that the measurement asked for may last. */
#define FORCED_POLL_NS		(10 * NSEC_PER_MSEC)

#define POLL_LIMIT_US_DEFAULT	200
#define POLL_LIMIT_US_MAX	10000

#define CALIBRATE_RETRY		(10 * HZ)
#define CALIBRATE_AGAIN		(60 * HZ)

enum mode {
	MODE_ADAPTIVE,
	MODE_FIXED,
	MODE_OFF,
};

static const char * const mode_names[] = {
	[MODE_ADAPTIVE]	= "adaptive",
	[MODE_FIXED]	= "fixed",
	[MODE_OFF]	= "off",
};

/**
 * enum outcome - how the last call of an enter function ended
 * @IDLE_SETTLED: there was none, or it is accounted for
 * @IDLE_WOKEN: a wake came, before the CPU halted
 * @IDLE_EXPIRED: the poll reached its limit; the idle period goes on
 * @IDLE_HALTED: the CPU halted, and an interrupt ended that
 */
enum outcome {
	IDLE_SETTLED,
	IDLE_WOKEN,
	IDLE_EXPIRED,
	IDLE_HALTED,
};

/**
 * struct lightsleep - one CPU
 * @dev: the cpuidle device
 * @policy: what this CPU learned about its idle periods
 * @outcome: how the last call ended
 * @ordered: the last call was POLL, by order of the governor
 * @period_ns: time polled so far in the idle period that is open
 * @seen_ns: residency that is accounted for already
 * @switches: context switches of the idle task when the last poll expired
 * @shown: its statistics are in sysfs
 * @forced: wait like this, by order of the measurement
 * @last: how this CPU waited last
 * @waiting: it does so now
 * @polls: polls begun
 * @hits: polls that ended with a wake
 * @halts: times halted
 * @polled_ns: time polled
 * @wasted_ns: of that, time that ended with a halt all the same
 */
struct lightsleep {
	struct cpuidle_device dev;
	struct poll_limit policy;
	enum outcome outcome;
	bool ordered;
	u64 period_ns;
	u64 seen_ns;
	unsigned long switches;
	bool shown;
	enum idle_wait forced;
	enum idle_wait last;
	bool waiting;
	u64 polls;
	u64 hits;
	u64 halts;
	u64 polled_ns;
	u64 wasted_ns;
};

static struct lightsleep __percpu *lightsleep;
static enum cpuhp_state hotplug_state;

static enum mode mode = MODE_ADAPTIVE;
static unsigned int poll_limit_us = POLL_LIMIT_US_DEFAULT;
static u64 halt_cost_ns;

/* Guards the measurement, and @running against the end of the module. */
static DEFINE_MUTEX(calibrate_mutex);
static bool running;
static bool measured;

static struct poll_limit_params lightsleep_params(void)
{
	return (struct poll_limit_params) {
		.halt_cost_ns = READ_ONCE(halt_cost_ns),
		.ceiling_ns = (u64)READ_ONCE(poll_limit_us) * NSEC_PER_USEC,
	};
}

/* How long may this CPU poll before it halts? */
static u64 lightsleep_limit_ns(const struct lightsleep *ls)
{
	switch (READ_ONCE(ls->forced)) {
	case WAIT_HALT:
		return 0;
	case WAIT_POLL:
		return FORCED_POLL_NS;
	case WAIT_FREE:
		break;
	}

	/* Who disables POLL does not want HALT to poll, either. */
	if (ls->dev.states_usage[POLL_INDEX].disable)
		return 0;

	switch (READ_ONCE(mode)) {
	case MODE_ADAPTIVE:
		return min(READ_ONCE(ls->policy.limit_ns), lightsleep_params().ceiling_ns);
	case MODE_FIXED:
		return lightsleep_params().ceiling_ns;
	case MODE_OFF:
		break;
	}
	return 0;
}

static unsigned long idle_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

static void lightsleep_learn(struct lightsleep *ls, u64 idle_ns)
{
	struct poll_limit_params p = lightsleep_params();

	/* What was not our own choice teaches nothing. */
	if (!ls->ordered && READ_ONCE(ls->forced) == WAIT_FREE)
		poll_limit_update(&ls->policy, &p, idle_ns);
}

/*
 * Accounts for the previous call; true if the idle period that it was part of
 * still goes on.
 */
static bool lightsleep_settle(struct lightsleep *ls)
{
	const struct cpuidle_state_usage *usage = ls->dev.states_usage;
	u64 total_ns = usage[POLL_INDEX].time_ns + usage[HALT_INDEX].time_ns;
	u64 residency_ns = total_ns - ls->seen_ns;
	u64 cost_ns = READ_ONCE(halt_cost_ns);

	ls->seen_ns = total_ns;

	switch (ls->outcome) {
	case IDLE_SETTLED:
		return false;
	case IDLE_EXPIRED:
		ls->polled_ns += residency_ns;
		ls->period_ns += residency_ns;
		if (ls->switches == idle_switches())
			return true;
		/* The wake came on the way back to idle: almost caught. */
		lightsleep_learn(ls, ls->period_ns);
		break;
	case IDLE_WOKEN:
		ls->polled_ns += residency_ns;
		lightsleep_learn(ls, ls->period_ns + residency_ns);
		break;
	case IDLE_HALTED:
		ls->wasted_ns += ls->period_ns;
		/* The residency includes the wake itself; what ended it does not. */
		if (residency_ns > cost_ns)
			ls->period_ns += residency_ns - cost_ns;
		lightsleep_learn(ls, ls->period_ns);
		break;
	}

	ls->outcome = IDLE_SETTLED;
	ls->period_ns = 0;
	return false;
}

static void begin_wait(struct lightsleep *ls, enum idle_wait how)
{
	WRITE_ONCE(ls->last, how);
	WRITE_ONCE(ls->waiting, true);
}

static void end_wait(struct lightsleep *ls)
{
	WRITE_ONCE(ls->waiting, false);
}

/*
 * Polls until a wake or @for_ns from now. Interrupts are on meanwhile, as a CPU
 * that polls has to serve them; an interrupt without a wake does not end it.
 * The polling flag stays set, so wakers need not send an interrupt. A device
 * that has work is a wake, too; its handler runs when the CPU has left idle.
 *
 * The clock is one that never stands still. Where the TSC is not stable, local_clock()
 * may do so from one period of the tick after the last interrupt on, and a CPU without
 * the tick would go on polling.
 */
static enum outcome lightsleep_poll(struct lightsleep *ls, u64 for_ns)
{
	enum outcome outcome = IDLE_EXPIRED;
	unsigned int looks = 0;
	u64 start_ns, spent_ns = 0;

	ls->polls++;
	begin_wait(ls, WAIT_POLL);
	start_ns = ktime_get_mono_fast_ns();
	poll_sources_start();
	local_irq_enable();

	if (current_set_polling_and_test())
		outcome = IDLE_WOKEN;
	while (outcome == IDLE_EXPIRED) {
		poll_wait(for_ns - spent_ns);
		if (need_resched() || poll_sources_peek()) {
			outcome = IDLE_WOKEN;
		} else if (++looks == LOOKS_PER_CLOCK) {
			looks = 0;
			spent_ns = ktime_get_mono_fast_ns() - start_ns;
			if (spent_ns >= for_ns)
				break;
		}
	}

	local_irq_disable();
	if (poll_sources_stop())
		outcome = IDLE_WOKEN;
	end_wait(ls);
	if (outcome == IDLE_WOKEN)
		ls->hits++;
	else
		ls->switches = idle_switches();
	return outcome;
}

/*
 * Leaves an enter function without a halt. RCU takes a halt and a context switch
 * for quiescent states. A CPU that only serves devices which it polls, or that must
 * not halt, has neither, maybe for long.
 */
static int leave_awake(struct lightsleep *ls)
{
	ls->dev.poll_time_limit = ls->outcome == IDLE_EXPIRED;
	if (!need_resched())
		idle_driver_pass_quiescent_state();
	return POLL_INDEX;
}

/* By order of the governor: the CPU must not halt. */
static int lightsleep_enter_poll(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	struct lightsleep *ls = container_of(dev, struct lightsleep, dev);

	lightsleep_settle(ls);
	ls->ordered = true;
	ls->outcome = lightsleep_poll(ls, lightsleep_params().ceiling_ns);
	return leave_awake(ls);
}

static int lightsleep_enter_halt(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	struct lightsleep *ls = container_of(dev, struct lightsleep, dev);
	bool goes_on = lightsleep_settle(ls);
	u64 for_ns = lightsleep_limit_ns(ls);

	ls->ordered = false;
	if (for_ns > 0 && (!goes_on || READ_ONCE(ls->forced) == WAIT_POLL)) {
		ls->outcome = lightsleep_poll(ls, for_ns);
		return leave_awake(ls);
	}

	ls->outcome = IDLE_WOKEN;
	if (poll_sources_rest() || current_clr_polling_and_test())
		return leave_awake(ls);

	ls->halts++;
	begin_wait(ls, WAIT_HALT);
	idle_driver_halt();
	end_wait(ls);
	ls->outcome = IDLE_HALTED;
	dev->poll_time_limit = false;
	return HALT_INDEX;
}

/*
 * HALT decides by itself how long to poll first, so no idle period is too short
 * for it: its target residency is the least there is. Its exit latency is the
 * measured halt cost, set by lightsleep_calibrate(), for latency QoS to compare with.
 * (The price: beside a polling state, teo of v6.12 never stops the tick for a state
 * with a residency below 15 us. menu does.)
 *
 * .owner stays unset: every registered device would hold a reference, and the
 * module could never be unloaded.
 */
static struct cpuidle_driver driver = {
	.name = "lightsleep",
	.states = {
		[POLL_INDEX] = {
			.enter = lightsleep_enter_poll,
			.flags = CPUIDLE_FLAG_POLLING | CPUIDLE_FLAG_RCU_IDLE,
			.name = "POLL",
			.desc = "polls for a wake",
		},
		[HALT_INDEX] = {
			.enter = lightsleep_enter_halt,
			.flags = CPUIDLE_FLAG_RCU_IDLE,
			.exit_latency = 1,
			.target_residency = 1,
			.name = "HALT",
			.desc = "polls while it pays, then halts",
		},
	},
	.state_count = 2,
};

/* What the measurement of the halt cost needs. */

static void lightsleep_force(unsigned int cpu, enum idle_wait how)
{
	WRITE_ONCE(per_cpu_ptr(lightsleep, cpu)->forced, how);
}

static enum idle_wait lightsleep_last(unsigned int cpu)
{
	return READ_ONCE(per_cpu_ptr(lightsleep, cpu)->last);
}

static bool lightsleep_waits(unsigned int cpu)
{
	return READ_ONCE(per_cpu_ptr(lightsleep, cpu)->waiting);
}

static const struct halt_cost_ops halt_cost_ops = {
	.force = lightsleep_force,
	.last = lightsleep_last,
	.waits = lightsleep_waits,
};

/* Measures the halt cost and puts it to use, only if it is lower if @lower. */
static int lightsleep_calibrate(bool lower)
{
	struct cpuidle_state *state = &driver.states[HALT_INDEX];
	u64 cost_ns;
	int ret;

	mutex_lock(&calibrate_mutex);
	ret = running ? halt_cost_measure(&halt_cost_ops, &cost_ns) : -ENODEV;
	if (!ret && !(lower && measured && cost_ns >= halt_cost_ns)) {
		measured = true;
		WRITE_ONCE(halt_cost_ns, cost_ns);
		/* Governors read the latency while they select: stop them. */
		cpuidle_pause_and_lock();
		state->exit_latency_ns = max_t(u64, cost_ns, NSEC_PER_USEC);
		state->exit_latency = div_u64(state->exit_latency_ns, NSEC_PER_USEC);
		cpuidle_resume_and_unlock();
		pr_info("a wake from halt costs %llu ns more than a wake from polling\n", cost_ns);
	}
	mutex_unlock(&calibrate_mutex);
	return ret;
}

/* Parameters can be written before init has begun, and until the module is gone. */
static void allow_calibration(bool yes)
{
	mutex_lock(&calibrate_mutex);
	running = yes;
	mutex_unlock(&calibrate_mutex);
}

static void calibrate_later(struct work_struct *work);
static DECLARE_DELAYED_WORK(calibrate_work, calibrate_later);

/*
 * A machine on which a module is being loaded is often busy, with its boot for
 * example, and other work only ever adds to what is measured. So it is measured
 * once more when that is over, and the lower result stays.
 */
static void calibrate_later(struct work_struct *work)
{
	if (lightsleep_calibrate(true))
		schedule_delayed_work(&calibrate_work, CALIBRATE_RETRY);
}

/* Module parameters. A write that is refused changes nothing. */

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
	return sysfs_emit(text, "%s\n", mode_names[READ_ONCE(mode)]);
}

static const struct kernel_param_ops mode_ops = {
	.set = mode_set,
	.get = mode_get,
};
module_param_cb(mode, &mode_ops, NULL, 0644);
MODULE_PARM_DESC(mode, "adaptive: learn the poll limit (default), fixed: poll_limit_us, off: halt at once");

static int poll_limit_us_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, 1, POLL_LIMIT_US_MAX);
}

static const struct kernel_param_ops poll_limit_us_ops = {
	.set = poll_limit_us_set,
	.get = param_get_uint,
};
module_param_cb(poll_limit_us, &poll_limit_us_ops, &poll_limit_us, 0644);
MODULE_PARM_DESC(poll_limit_us, "ceiling of the poll limit, or the limit itself if mode is fixed (us, default 200)");

static int halt_cost_ns_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%llu\n", READ_ONCE(halt_cost_ns));
}

/* insmod calls this whatever the file mode says, and does not look for NULL. */
static int halt_cost_ns_set(const char *text, const struct kernel_param *kp)
{
	pr_err("halt_cost_ns is measured, it cannot be set\n");
	return -EPERM;
}

static const struct kernel_param_ops halt_cost_ns_ops = {
	.set = halt_cost_ns_set,
	.get = halt_cost_ns_get,
};
module_param_cb(halt_cost_ns, &halt_cost_ns_ops, NULL, 0444);
MODULE_PARM_DESC(halt_cost_ns, "measured: what a wake from halt costs more than one from polling (ns; 0: not known)");

static int calibrate_set(const char *text, const struct kernel_param *kp)
{
	bool yes;
	int ret = kstrtobool(text, &yes);

	if (ret || !yes) {
		pr_err("calibrate: write 1 to measure the halt cost again\n");
		return -EINVAL;
	}
	return lightsleep_calibrate(false);
}

static const struct kernel_param_ops calibrate_ops = {
	.set = calibrate_set,
};
module_param_cb(calibrate, &calibrate_ops, NULL, 0200);
MODULE_PARM_DESC(calibrate, "write 1 to measure halt_cost_ns again");

/* Statistics: /sys/devices/system/cpu/cpuN/lightsleep/, one decimal number each. */

#define STATISTIC(_name, _value)						\
static ssize_t _name##_show(struct device *dev, struct device_attribute *attr,	\
			    char *text)						\
{										\
	const struct lightsleep *ls = per_cpu_ptr(lightsleep, dev->id);		\
										\
	return sysfs_emit(text, "%llu\n", _value);				\
}										\
static DEVICE_ATTR_RO(_name)

STATISTIC(polls, READ_ONCE(ls->polls));
STATISTIC(hits, READ_ONCE(ls->hits));
STATISTIC(halts, READ_ONCE(ls->halts));
STATISTIC(polled_ns, READ_ONCE(ls->polled_ns));
STATISTIC(wasted_ns, READ_ONCE(ls->wasted_ns));
STATISTIC(limit_ns, lightsleep_limit_ns(ls));

static struct attribute *statistics_attrs[] = {
	&dev_attr_polls.attr,
	&dev_attr_hits.attr,
	&dev_attr_halts.attr,
	&dev_attr_polled_ns.attr,
	&dev_attr_wasted_ns.attr,
	&dev_attr_limit_ns.attr,
	NULL,
};

static const struct attribute_group statistics = {
	.name = "lightsleep",
	.attrs = statistics_attrs,
};

/* CPU hotplug. Runs on the CPU itself; statistics start anew with the CPU. */

static int lightsleep_cpu_online(unsigned int cpu)
{
	struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);
	struct poll_limit_params p = lightsleep_params();
	int ret;

	memset(ls, 0, sizeof(*ls));
	poll_limit_init(&ls->policy, &p);
	ls->dev.cpu = cpu;
	ret = cpuidle_register_device(&ls->dev);
	if (!ret)
		ret = sysfs_create_group(&get_cpu_device(cpu)->kobj, &statistics);
	ls->shown = !ret;
	/* A CPU without us idles as before; that is no reason to keep it offline. */
	if (ret)
		pr_warn("CPU %u: no polling or no statistics: error %d\n", cpu, ret);
	return 0;
}

static int lightsleep_cpu_offline(unsigned int cpu)
{
	struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

	local_irq_disable();
	poll_sources_rest();
	local_irq_enable();
	if (ls->shown)
		sysfs_remove_group(&get_cpu_device(cpu)->kobj, &statistics);
	cpuidle_unregister_device(&ls->dev);
	return 0;
}

/*
 * Whatever was set up, in reverse. No CPU is left in our code: each has taken
 * back its own device, in a thread, so it had switched away from its idle task.
 */
static void lightsleep_tear_down(void)
{
	if (hotplug_state > 0)
		cpuhp_remove_state(hotplug_state);
	cpuidle_unregister_driver(&driver);
	poll_source_exit();
	free_percpu(lightsleep);
}

static int __init lightsleep_init(void)
{
	int ret;

	ret = idle_driver_register(&driver);
	if (ret)
		return ret;

	poll_source_init();
	lightsleep = alloc_percpu(struct lightsleep);
	if (!lightsleep) {
		poll_source_exit();
		cpuidle_unregister_driver(&driver);
		return -ENOMEM;
	}

	ret = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "cpuidle/lightsleep:online",
				lightsleep_cpu_online, lightsleep_cpu_offline);
	if (ret < 0) {
		lightsleep_tear_down();
		return ret;
	}
	hotplug_state = ret;
	allow_calibration(true);

	/* Nothing is polled before the cost is known. */
	ret = lightsleep_calibrate(false);
	if (ret)
		pr_warn("cannot measure the halt cost now (error %d), will try again\n", ret);
	schedule_delayed_work(&calibrate_work, ret ? CALIBRATE_RETRY : CALIBRATE_AGAIN);
	return 0;
}

static void __exit lightsleep_exit(void)
{
	allow_calibration(false);
	cancel_delayed_work_sync(&calibrate_work);
	lightsleep_tear_down();
}

module_init(lightsleep_init);
module_exit(lightsleep_exit);
MODULE_DESCRIPTION("cpuidle driver that polls for as long as it pays, then halts");
MODULE_LICENSE("GPL");

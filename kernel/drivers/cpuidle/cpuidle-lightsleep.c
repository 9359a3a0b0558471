// SPDX-License-Identifier: GPL-2.0-only
/*
 * cpuidle-lightsleep: poll for as long as it pays, then halt.
 *
 * A cpuidle driver for machines that have none, which is most guests. It has
 * two states, POLL and HALT, with one enter function. It polls first, for the
 * limit that poll_limit.c has learned for this CPU, and halts when nothing came.
 * The decision between the two is made here, from what a wakeup costs on this
 * machine, so it is the same under every governor. A governor that chooses POLL
 * only guesses that the CPU is woken soon (menu of v6.1 where it predicts
 * less than the exit latency, haltpoll by a constant). What is left to governors
 * is the tick.
 *
 * A latency QoS request may forbid halting at all. It is honoured while the host
 * grants it: the CPU polls again and again, and never halts. Where the host runs
 * something else in a quarter of that time (host_contention.c), the guest cannot
 * keep the promise by polling: it would only take the core from others, its own
 * CPUs among them. It halts then. Where enough of its CPUs find that at a time
 * (host_short.c), no CPU of the guest honours such a request for a while.
 *
 * A poll takes interrupts, and one of them may arm a timer that only the idle
 * loop can notice. So a poll never goes on to halt by itself. It returns to the
 * idle loop, which comes back, finds the limit of this idle period used up, and
 * halts, with interrupts off all the way. An *idle period* therefore may span
 * several calls: it lasts until a task runs, or a device that joins the poll has work. Other
 * interrupts end halts, not periods, and so do function calls with polls: what is left of the
 * limit is polled after them.
 * Where the tick is stopped, a timer of the timer wheel that is armed meanwhile waits
 * for the end of the poll, as in poll_idle(). A timeout of one tick lasts a whole tick
 * at least, so a poll shorter than that delays only timers that are due already. One
 * that is longer may delay others, too, by up to its limit. Limits are twice the price of
 * a missed wakeup at most, so one of a tick takes a halt that costs an eighth of a tick, by
 * the default wait_weight; or the mode "fixed".
 *
 * A poll is booked to the POLL state and a halt to HALT, whichever state was
 * chosen, so residencies in sysfs are true. (The price: the cpuidle core counts each
 * poll as "below", a state that turned out too shallow. The event cpu_idle is fired
 * before the driver decides, and names the state that the governor chose.)
 *
 * The polling flag is set first of all, so that a waker need not send an
 * interrupt while the previous period is accounted for and the next limit is
 * chosen. Nothing on the way from a poll to the task that was woken takes a
 * decision, nor asks whether it is one: that waits until the CPU is idle again. (The flag stays
 * set while softirqs run on top of a poll, as in poll_idle(): a call that waits for this CPU then
 * waits for them. The series has a patch for that, of the softirq code; a module has none.)
 *
 * Context of the enter function: idle task of the CPU that owns @dev, called
 * and left with interrupts off and preemption disabled. RCU is watching
 * (CPUIDLE_FLAG_RCU_IDLE) except within idle_driver_halt() and, for a moment,
 * idle_driver_pass_quiescent_state(). While a poll runs, interrupts are on.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpuidle.h>
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/kernel_stat.h>
#include <linux/limits.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/pm_qos.h>
#include <linux/poll_source.h>
#include <linux/sched.h>
#include <linux/sched/idle.h>
#include <linux/suspend.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "idle_driver.h"
#include "latency_qos.h"
#include "lightsleep.h"

/*
 * How long a poll that the measurement asked for may last: it delays no timer that is not due
 * already. The idle loop comes back for the rest.
 */
#define FORCED_POLL_NS		((u64)TICK_NSEC)

/* How long a CPU that must not halt polls before the idle loop has its turn. */
#define REQUIRED_POLL_NS	(200 * NSEC_PER_USEC)

struct lightsleep __percpu *lightsleep;
static enum cpuhp_state hotplug_state;

static struct pm_qos_request latency_onlooker;

/* What all CPUs together found out about their host. */
struct host_short lightsleep_host;

/* How long would this CPU poll, if nobody measures? Asked by anybody, for sysfs. */
u64 lightsleep_limit_ns(const struct lightsleep *ls, u64 now_ns)
{
	/* Who disables POLL does not want HALT to poll, either, nor a measurement. */
	if (READ_ONCE(ls->dev.states_usage[POLL_INDEX].disable))
		return 0;

	switch (lightsleep_mode()) {
	case MODE_ADAPTIVE:
		if (host_contended(&ls->contention, now_ns))
			return 0;
		return min(READ_ONCE(ls->policy.limit_ns), lightsleep_ceiling_ns());
	case MODE_FIXED:
		return lightsleep_fixed_ns(ls);
	case MODE_OFF:
		break;
	}
	return 0;
}

/* How long may it poll now? Its own CPU, in idle. */
static u64 limit_now_ns(const struct lightsleep *ls, u64 now_ns)
{
	switch (READ_ONCE(ls->cost.forced)) {
	case WAIT_HALT:
		return 0;
	case WAIT_POLL:
		return READ_ONCE(ls->dev.states_usage[POLL_INDEX].disable) ? 0 : FORCED_POLL_NS;
	case WAIT_FREE:
		break;
	}
	return lightsleep_limit_ns(ls, now_ns);
}

static unsigned long idle_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

static bool is_free(const struct lightsleep *ls)
{
	return READ_ONCE(ls->cost.forced) == WAIT_FREE;
}

/* Does this CPU choose its limits by itself? What it did not choose teaches nothing. */
static bool is_adaptive(const struct lightsleep *ls)
{
	return is_free(ls) && lightsleep_mode() == MODE_ADAPTIVE &&
	       !READ_ONCE(ls->dev.states_usage[POLL_INDEX].disable);
}

/*
 * The CPU waited like @how. What a measurement chose is no part of the statistics, which say
 * what polling is worth to the programs.
 */
static void count_wait(struct lightsleep *ls, enum idle_wait how, u64 *statistic)
{
	if (!ls->forced)
		(*statistic)++;
	else if (READ_ONCE(ls->cost.forced) == how)
		ls->cost.forced_waits++;
}

/* How many CPUs find their host short of cores now? Any context; single words are read. */
static unsigned int contended_cpus(u64 now_ns)
{
	unsigned int cpu, contended = 0;

	for_each_online_cpu(cpu)
		contended += host_contended(&per_cpu_ptr(lightsleep, cpu)->contention, now_ns);
	return contended;
}

/*
 * A CPU has found its host short of cores, and does not poll for a second or more. How many
 * have? Idle, interrupts off; rare, so reading all CPUs' words costs little.
 */
static void judge_host(u64 now_ns)
{
	if (host_is_short(&lightsleep_host, now_ns))
		return;
	host_short_judge(&lightsleep_host, now_ns, contended_cpus(now_ns), num_online_cpus());
}

/* An idle period of @idle_ns is over; the last call was @residency_ns of it. */
static void learn(struct lightsleep *ls, u64 idle_ns, u64 residency_ns)
{
	struct poll_limit_params p = {
		.halt_cost_ns = READ_ONCE(ls->cost.miss_cost_ns),
		.ceiling_ns = lightsleep_ceiling_ns(),
	};

	/* After a halt, @idle_ns includes the wakeup, which is no part of what ended the period. */
	if (ls->outcome == IDLE_HALTED)
		idle_ns -= min(residency_ns, idle_cost_wakeup_ns(&ls->cost));
	if (!ls->forced && !ls->required && !ls->must_not_poll && !ls->deliberate && !ls->paused &&
	    is_adaptive(ls))
		poll_limit_update(&ls->policy, &p, idle_ns);
}

/*
 * Accounts for the previous call; true if the idle period that it was part of
 * still goes on: it ends where a task ran. An interrupt that wakes nobody ends a halt, and a
 * function call that wakes nobody ends a poll. A CPU that took the next one for a wakeup to
 * poll for would do so in vain. A device that may join the polls of the CPU ends a period by its
 * work, whether that wakes a task of this CPU or not: its next work may come as soon.
 */
static bool account_residency(struct lightsleep *ls, u64 now_ns)
{
	const struct cpuidle_state_usage *usage = ls->dev.states_usage;
	u64 total_ns = usage[POLL_INDEX].time_ns + usage[HALT_INDEX].time_ns;
	u64 residency_ns = total_ns - ls->seen_ns;
	bool polled = ls->outcome == IDLE_EXPIRED || ls->outcome == IDLE_WOKEN;
	u64 pauses = ls->contention.pauses;
	u64 polled_ns = 0;

	ls->seen_ns = total_ns;
	/* Neither what the host took nor long softirqs were polled. */
	if (polled && !ls->forced)
		polled_ns = residency_ns - poll_gaps_ns(&ls->gaps, residency_ns);
	ls->polled_ns += polled_ns;
	poll_gaps_account(&ls->gaps, &ls->contention, now_ns, polled ? residency_ns : 0);
	if (ls->contention.pauses != pauses)
		judge_host(now_ns);

	if (ls->outcome == IDLE_NONE)
		return false;
	ls->period_ns += residency_ns;
	ls->period_counted_ns += polled_ns;
	if (ls->outcome == IDLE_HALTED) {
		/* A measurement may have begun or ended between the poll and the halt. */
		ls->wasted_ns += ls->period_counted_ns;
		ls->period_counted_ns = 0;
	}
	if (ls->switches == idle_switches() && ls->devices_work == poll_sources_work())
		return true;

	if (ls->outcome == IDLE_WOKEN)
		count_wait(ls, WAIT_POLL, ls->required ? &ls->required_hits : &ls->cost.hits);
	learn(ls, ls->period_ns, residency_ns);
	ls->outcome = IDLE_NONE;
	ls->period_polled = false;
	ls->period_ns = 0;
	ls->period_counted_ns = 0;
	return false;
}

/*
 * A cycle ends where a task ran; what a device had for the last poll does not count.
 * A new one begins with an idle period, and may be a deliberate halt. The old one counts only if
 * its wait was @free: what a measurement, a latency request or idle injection demands says nothing
 * of the programs.
 */
static void update_cycle(struct lightsleep *ls, u64 now_ns, bool free)
{
	unsigned long switches = idle_switches();
	bool polls = !ls->required && !ls->must_not_poll && !READ_ONCE(ls->cost.isolated) &&
		     is_adaptive(ls) && lightsleep_limit_ns(ls, now_ns) > 0;

	ls->deliberate = false;
	if (ls->cycle_start_ns && ls->cycle_switches == switches)
		return;
	if (!ls->deliberately_halted)
		wake_cost_halt_aborted(&ls->cost.programs.wake_cost);
	if (free)
		wake_cost_end(&ls->cost.programs.wake_cost, now_ns - ls->cycle_start_ns);
	ls->deliberately_halted = false;
	ls->cycle_start_ns = now_ns;
	ls->cycle_switches = switches;
	ls->deliberate = wake_cost_begin(&ls->cost.programs.wake_cost, now_ns, polls);
}

/*
 * Polls until a wakeup or @for_ns from @start_ns. Interrupts are on meanwhile, as a CPU
 * that polls has to serve them; an interrupt without a wakeup does not end it.
 * The polling flag is set, so wakers need not send an interrupt. A device that
 * has work is a wakeup, too; its handler runs when the CPU has left idle.
 */
static enum idle_outcome poll_until(struct lightsleep *ls, u64 start_ns, u64 for_ns)
{
	bool woken;

	if (!ls->forced && !ls->period_polled) {
		ls->period_polled = true;
		/* A poll that cannot expire for good is nearly always a hit: it says nothing. */
		if (ls->required)
			ls->required_polls++;
		else
			ls->cost.polls++;
	}
	poll_gaps_begin(&ls->gaps, start_ns);
	poll_sources_start();
	local_irq_enable();

	woken = poll_for_wakeup(&ls->gaps, &ls->short_waits, start_ns + for_ns, lightsleep_clock_ns,
				poll_sources_here, poll_sources_peek);

	local_irq_disable();
	/* Until the idle state is left, all time is idle time: interrupts, and handlers, wait. */
	woken |= poll_sources_stop();
	woken |= need_resched();
	/* What the poll did not look at did not end it; what it found is served later. */
	ls->devices_work = poll_sources_work();
	poll_gaps_end(&ls->gaps);
	return woken ? IDLE_WOKEN : IDLE_EXPIRED;
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

static int leave_polled(struct lightsleep *ls, u64 now_ns, u64 for_ns)
{
	ls->outcome = poll_until(ls, now_ns, for_ns);
	return leave_awake(ls);
}

/* A period may halt again and again. What is deliberate is the first time, or none. */
static int leave_halted(struct lightsleep *ls)
{
	ls->outcome = IDLE_ABORTED;
	ls->gaps = (struct poll_gaps) { };
	if (poll_sources_release(true) || current_clr_polling_and_test())
		return leave_awake(ls);

	count_wait(ls, WAIT_HALT, &ls->cost.halts);
	if (ls->deliberate && !ls->deliberately_halted) {
		ls->deliberately_halted = true;
		ls->deliberate_halts++;
	}
	idle_driver_halt();
	ls->outcome = IDLE_HALTED;
	ls->dev.poll_time_limit = false;
	return HALT_INDEX;
}

/*
 * Is this CPU told to be idle, for suspend to idle or by idle injection? What it has to do then
 * has nothing to do with its load.
 */
static bool must_not_poll(const struct lightsleep *ls)
{
	/* The first is set long before CPUs idle for it; a constant without CONFIG_SUSPEND. */
	return data_race(pm_suspend_target_state) == PM_SUSPEND_TO_IDLE ||
	       ls->dev.forced_idle_latency_limit_ns;
}

/*
 * Is a halt forbidden, by the user or by a request that the host lets us honour? Suspend to
 * idle and idle injection ask no governor, so no request counts there. Both may have a latency
 * limit of their own, by which the core has chosen @index. Switched off, the driver heeds requests
 * no more than a machine without an idle driver does.
 */
static bool must_poll(const struct lightsleep *ls, const struct cpuidle_state *halt, int index,
		      u64 now_ns)
{
	if (READ_ONCE(ls->dev.states_usage[HALT_INDEX].disable))
		return true;
	if (ls->must_not_poll)
		return index == POLL_INDEX;
	/* Where POLL is disabled, no request makes it poll; a governor without a choice does. */
	if (READ_ONCE(ls->dev.states_usage[POLL_INDEX].disable) && index != POLL_INDEX)
		return false;
	if (latency_qos_limit_ns(&latency_onlooker, ls->dev.cpu) >= (s64)halt->exit_latency_ns)
		return false;
	if (!is_free(ls))
		return true;
	return lightsleep_mode() != MODE_OFF && !host_contended(&ls->contention, now_ns) &&
	       !host_is_short(&lightsleep_host, now_ns);
}

static int lightsleep_enter(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	struct lightsleep *ls = container_of(dev, struct lightsleep, dev);
	bool was_free = !ls->forced && !ls->required && !ls->must_not_poll;
	bool same_period;
	u64 now_ns, for_ns;

	__current_set_polling();
	now_ns = lightsleep_clock_ns();
	same_period = account_residency(ls, now_ns);
	ls->switches = idle_switches();
	ls->devices_work = poll_sources_work();
	ls->forced = !is_free(ls);
	ls->must_not_poll = must_not_poll(ls);
	ls->required = must_poll(ls, &drv->states[HALT_INDEX], index, now_ns);
	if (!same_period) {
		ls->paused = host_contended(&ls->contention, now_ns);
		update_cycle(ls, now_ns, was_free);
	}
	if (ls->required)
		return leave_polled(ls, now_ns, REQUIRED_POLL_NS);

	if (ls->must_not_poll || (ls->deliberate && is_free(ls)))
		for_ns = 0;
	else
		for_ns = limit_now_ns(ls, now_ns);
	/* A period has one limit. A function call that woke no task leaves the rest of it. */
	if (same_period && READ_ONCE(ls->cost.forced) != WAIT_POLL)
		for_ns -= ls->outcome == IDLE_WOKEN ? min(for_ns, ls->period_ns) : for_ns;
	if (for_ns > 0)
		return leave_polled(ls, now_ns, for_ns);
	return leave_halted(ls);
}

/*
 * HALT decides by itself how long to poll first, so no idle period is too short
 * for it: its target residency is the least there is. Its exit latency is what nine
 * of ten measured wakeups do not exceed, and a margin, for latency QoS to compare with. It is
 * higher than the residency as soon as it is measured. The core warns of that where a driver is
 * registered; menu, teo and ladder of v6.12 and v7.3 never compare one with the other.
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
			.enter = lightsleep_enter,
			.flags = CPUIDLE_FLAG_POLLING | CPUIDLE_FLAG_RCU_IDLE,
			.name = "POLL",
			.desc = "polls for a wakeup",
		},
		[HALT_INDEX] = {
			.enter = lightsleep_enter,
			.flags = CPUIDLE_FLAG_RCU_IDLE,
			.exit_latency = 1,
			.target_residency = 1,
			.name = "HALT",
			.desc = "polls while it pays, then halts",
		},
	},
	.state_count = 2,
};

/* The lowest latency limit that allows HALT, of any CPU. */
static u64 lowest_allowing_ns(void)
{
	u64 lowest_ns = U64_MAX;
	unsigned int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		s64 limit_ns = latency_qos_limit_ns(&latency_onlooker, cpu);

		if (limit_ns >= (s64)driver.states[HALT_INDEX].exit_latency_ns)
			lowest_ns = min(lowest_ns, (u64)limit_ns);
	}
	cpus_read_unlock();
	return lowest_ns;
}

/*
 * Tells governors what latency QoS has to be compared with: @latency_ns, and a quarter more, as
 * another measurement gives another figure. What sysfs shows may come back as a limit that is
 * meant to allow HALT, for good (force_latency= of tuned). So it is whole microseconds, and
 * changes only where it is too low, or twice as high as it should be. And it does not rise past a
 * limit that allows HALT. All CPUs under that limit would poll from then on, and no later result
 * could end it, as where HALT is forbidden, nothing is measured.
 * Where such a limit is too low for a result, the log says so, once.
 *
 * Context: process context, one call at a time.
 */
static void set_exit_latency(u64 latency_ns)
{
	static bool is_advertised;
	struct cpuidle_state *state = &driver.states[HALT_INDEX];
	u64 with_margin_us = DIV_ROUND_UP_ULL(latency_ns + latency_ns / 4, NSEC_PER_USEC);
	u64 most_us = is_advertised ? lowest_allowing_ns() / NSEC_PER_USEC : U32_MAX;
	unsigned int latency_us = clamp(with_margin_us, 1ULL, most_us);

	if (latency_ns > most_us * NSEC_PER_USEC)
		pr_warn_once("HALT takes %llu us now; a latency limit of %llu us allows it all the same, as it did before\n",
			     DIV_ROUND_UP_ULL(latency_ns, NSEC_PER_USEC), most_us);
	if (latency_us == state->exit_latency ||
	    (latency_ns <= state->exit_latency_ns && latency_ns >= state->exit_latency_ns / 2))
		return;
	is_advertised = true;
	/* Governors read it while they select: stop them. */
	cpuidle_pause_and_lock();
	state->exit_latency = latency_us;
	state->exit_latency_ns = (u64)latency_us * NSEC_PER_USEC;
	cpuidle_resume_and_unlock();
}

/*
 * Is it forbidden to poll, or to halt? Or does it idle without us, as its device could not be
 * registered? The caller holds the hotplug lock.
 */
static bool wait_forbidden(unsigned int cpu)
{
	const struct cpuidle_device *dev = &per_cpu_ptr(lightsleep, cpu)->dev;
	const struct cpuidle_state_usage *usage = dev->states_usage;

	/* It changes in hotplug only, but shares a word with a bit that the CPU writes in idle. */
	return data_race(!dev->registered) ||
	       READ_ONCE(usage[POLL_INDEX].disable) || READ_ONCE(usage[HALT_INDEX].disable) ||
	       latency_qos_limit_ns(&latency_onlooker, cpu) <
	       (s64)driver.states[HALT_INDEX].exit_latency_ns;
}

static struct idle_cost *cost_of(unsigned int cpu)
{
	return &per_cpu_ptr(lightsleep, cpu)->cost;
}

static bool learns(unsigned int cpu)
{
	const struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

	return is_adaptive(ls) && !host_contended(&ls->contention, lightsleep_clock_ns());
}

static bool polling_stopped(void)
{
	return lightsleep_mode() == MODE_OFF;
}

/*
 * A measurement polls, too: not while the host is short of cores, nor while enough pauses go on
 * after the time for which that counts. A single CPU that finds so decides nothing for the
 * others, and is measured. Mode fixed heeds no host.
 */
static bool polling_paused(void)
{
	u64 now_ns = lightsleep_clock_ns();

	return lightsleep_mode() == MODE_ADAPTIVE &&
	       (host_is_short(&lightsleep_host, now_ns) ||
		host_contention_is_general(contended_cpus(now_ns), num_online_cpus()));
}

static struct idle_cost_ops cost_ops = {
	.name = "lightsleep",
	.of = cost_of,
	.wait_weight = lightsleep_wait_weight,
	.learns = learns,
	.polling_stopped = polling_stopped,
	.polling_paused = polling_paused,
	.wait_forbidden = wait_forbidden,
	.set_exit_latency = set_exit_latency,
};

/* CPU hotplug. Runs on the CPU itself; statistics start anew with the CPU. */

static int lightsleep_cpu_online(unsigned int cpu)
{
	struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);
	struct poll_limit_params p = { .ceiling_ns = lightsleep_ceiling_ns() };
	int ret;

	/* A measurement may look on; it notices that its thread had to leave this CPU. */
	data_race(memset(ls, 0, sizeof(*ls)));
	idle_cost_init(&ls->cost, cpu);
	p.halt_cost_ns = ls->cost.miss_cost_ns;
	poll_limit_init(&ls->policy, &p);
	ls->contention.steal_clock_ns = poll_gaps_steal_clock_ns();
	ls->dev.cpu = cpu;
	/* A CPU without us idles as before; that is no reason to keep it offline. */
	ret = cpuidle_register_device(&ls->dev);
	if (ret) {
		pr_warn("CPU %u does not poll: its idle device cannot be registered: error %d\n",
			cpu, ret);
		return 0;
	}
	ret = sysfs_create_group(&get_cpu_device(cpu)->kobj, &lightsleep_statistics);
	ls->shown = !ret;
	if (ret)
		pr_warn("CPU %u polls, but has no statistics in sysfs: error %d\n", cpu, ret);
	return 0;
}

static int lightsleep_cpu_offline(unsigned int cpu)
{
	struct lightsleep *ls = per_cpu_ptr(lightsleep, cpu);

	local_irq_disable();
	poll_sources_release(false);
	local_irq_enable();
	if (ls->shown)
		sysfs_remove_group(&get_cpu_device(cpu)->kobj, &lightsleep_statistics);
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
	if (cost_ops.workers)
		destroy_workqueue(cost_ops.workers);
	latency_qos_unwatch(&latency_onlooker);
}

static int __init lightsleep_init(void)
{
	int ret;

	ret = idle_driver_register(&driver);
	if (ret)
		return ret;

	poll_source_init();
	latency_qos_watch(&latency_onlooker);
	lightsleep = alloc_percpu(struct lightsleep);
	cost_ops.workers = alloc_workqueue("lightsleep", WQ_UNBOUND | WQ_FREEZABLE, 0);
	if (!lightsleep || !cost_ops.workers) {
		lightsleep_tear_down();
		return -ENOMEM;
	}

	ret = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "cpuidle/lightsleep:online",
				lightsleep_cpu_online, lightsleep_cpu_offline);
	if (ret < 0) {
		lightsleep_tear_down();
		return ret;
	}
	hotplug_state = ret;
	idle_cost_start(&cost_ops);
	return 0;
}

static void __exit lightsleep_exit(void)
{
	idle_cost_stop();
	lightsleep_tear_down();
}

module_init(lightsleep_init);
module_exit(lightsleep_exit);
MODULE_DESCRIPTION("cpuidle driver that polls for as long as it pays, then halts");
MODULE_LICENSE("GPL");

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Promotion out of shallow idle states. When, and where to: promote_policy.c.
 *
 * One timer per CPU ends a sleep in a shallow state that turns out to be long.
 * The CPU does not leave the idle loop for that. It comes around to
 * cpuidle_select(), and there the next deeper state is the answer, without the
 * governor being asked:
 *
 *	select		the governor: shallow
 *	enter		timer armed ... it expires
 *	reflect		withheld
 *	select		not the governor: the next deeper state
 *	enter		... some real wake
 *	reflect		the governor: the state it chose, the whole time slept
 *
 * So a governor sees one idle period where there was one. It learns what it would
 * have learned had the CPU stayed where the governor had sent it, and nothing
 * from the timer, whose period says nothing about the workload.
 *
 * Nor is the tick touched: a governor that kept it will learn from it. teo and
 * menu take a tick that ends a sleep for the proof of a long one, and change
 * their minds after some of those. Stop the tick, and they hear of one long
 * sleep where there were many ticks; teo then chooses other states than without
 * promotion. So a tick ends the sleep, the governor is told, and asked again. What
 * it does not get back is the depth: the CPU has been idle all the time, so the
 * state that it was promoted to is the least that it goes back to,
 *
 *	reflect		the governor: the state it chose, the time slept, a tick
 *	select		the governor: shallow; raised to where the CPU was
 *	enter		...
 *
 * until something else than the clock ends a sleep, or a task runs.
 *
 * Armed only in states that the driver asks to leave (CPUIDLE_FLAG_PROMOTE): the
 * timer costs something wherever it does not expire, and whether that pays depends on
 * what the state holds back.
 *
 * Not armed in states that poll (they have a limit of their own), that stop the
 * CPU's timer, or that CPUs enter together, nor for suspend to idle or injected
 * idle time, which do not ask the governor. Nor on CPUs that are isolated: their
 * user has asked for no timers at all. That is looked at each time, for partitions of
 * cpusets come and go unannounced.
 *
 * Context: all but the settings is used by the CPU's own idle task, and by the
 * timer, which expires on that CPU, in hard interrupt context (also on
 * PREEMPT_RT). The idle task arms it with interrupts off and cancels it, with
 * interrupts on, before it does anything else. Hence:
 *
 *   - it is never armed outside of cpuidle_enter(), so nothing is left to
 *     migrate when the CPU goes offline;
 *   - where it was what ended the sleep, its handler has run by the time of
 *     disarm: interrupts that woke the CPU are served as soon as they are
 *     enabled. Should one be late, it finds no timer, and the governor is told
 *     of a wake: nothing else is lost;
 *   - the reverse does not hold: another interrupt that ends the sleep, and its softirqs,
 *     are served before disarm, too, and the timer may expire meanwhile. So may the
 *     clock's next event come. promote_ended() tells, of both;
 *   - what it writes needs no lock.
 *
 * Settings change under promote_lock, on any CPU; promote_policy.c says what
 * the idle task may see of it meanwhile.
 */
#include <linux/cpu.h>
#include <linux/cpuidle.h>
#include <linux/hrtimer.h>
#include <linux/init.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/spinlock.h>
#include <linux/suspend.h>
#include <linux/tick.h>

#include "cpuidle.h"
#include "promote.h"
#include "promote_policy.h"

#define CREATE_TRACE_POINTS
#include <trace/events/cpuidle_promote.h>

/**
 * struct promote_cpu - what one CPU needs
 * @expired: the timer has expired since the state that is being left was entered
 * @chosen: the state that the governor chose for the idle period that a promotion
 *	has prolonged; PROMOTE_NONE outside of one
 * @index: the state that the timer was armed for
 * @timeout_ns: after how many ns it was to expire
 * @reached: the state that the CPU had been promoted to when @event ended a sleep,
 *	without work; PROMOTE_NONE otherwise
 * @switches: how often the idle task had been switched when it was last in one
 * @slept_ns: how long it slept before that, since the governor was asked
 * @event: the clock's next event as its state was chosen; the tick, if that was still
 *	running, though it may have been stopped since
 * @event_ns: after how many ns it was to come, from then on
 * @timer: ends a sleep
 * @states: the plan
 */
struct promote_cpu {
	bool expired;
	int chosen;
	int index;
	int reached;
	unsigned long switches;
	u64 timeout_ns;
	u64 slept_ns;
	u64 event_ns;
	ktime_t event;
	struct hrtimer timer;
	struct promote_state states[CPUIDLE_STATE_MAX];
};

static DEFINE_PER_CPU(struct promote_cpu, promote_cpus) = {
	.chosen = PROMOTE_NONE,
	.reached = PROMOTE_NONE,
};

static DEFINE_SPINLOCK(promote_lock);

static bool promote = true;

static enum hrtimer_restart promote_expire(struct hrtimer *timer)
{
	container_of(timer, struct promote_cpu, timer)->expired = true;
	return HRTIMER_NORESTART;
}

/* The idle task was switched out if this has changed: the idle period is over. */
static unsigned long switches(void)
{
	return current->nvcsw + current->nivcsw;
}

static void note_event(struct promote_cpu *pc)
{
	pc->event = tick_nohz_get_next_hrtimer();
	pc->event_ns = max_t(s64, ktime_sub(pc->event, ktime_get()), 0);
}

static noinline int promoted_select(struct promote_cpu *pc, struct cpuidle_device *dev,
				    bool *stop_tick)
{
	int floor = promote_floor(pc->states, pc->index, cpuidle_governor_latency_req(dev->cpu));

	/*
	 * A task may have come and gone between reflect and select; a limit or a
	 * setting may have changed. Then the governor starts anew, and never
	 * hears of this period.
	 */
	if (floor == PROMOTE_NONE || pc->switches != switches()) {
		WRITE_ONCE(pc->chosen, PROMOTE_NONE);
		return -1;
	}
	dev->states_usage[pc->index].promoted++;
	trace_cpu_idle_promote(dev->cpu, pc->index, floor, pc->slept_ns);
	note_event(pc);
	*stop_tick = false;
	return floor;
}

/**
 * cpuidle_promote_select - the state that a promotion leads to
 * @dev: the device of this CPU
 * @stop_tick: cleared, where there is one: the tick is as the governor left it
 *
 * Return: its index, or -1: ask the governor.
 */
int cpuidle_promote_select(struct cpuidle_device *dev, bool *stop_tick)
{
	struct promote_cpu *pc = this_cpu_ptr(&promote_cpus);

	if (likely(READ_ONCE(pc->chosen) == PROMOTE_NONE))
		return -1;
	return promoted_select(pc, dev, stop_tick);
}

static noinline int raise(struct promote_cpu *pc, struct cpuidle_device *dev, int index)
{
	int reached = READ_ONCE(pc->reached);

	WRITE_ONCE(pc->reached, PROMOTE_NONE);
	if (index >= reached || pc->switches != switches())
		return index;
	note_event(pc);
	if (!promote_returns(pc->states, index, reached, cpuidle_governor_latency_req(dev->cpu),
			     pc->event_ns))
		return index;

	WRITE_ONCE(pc->chosen, index);
	pc->slept_ns = 0;
	return reached;
}

/**
 * cpuidle_promote_raise - the state for a CPU that was idle already
 * @dev: the device of this CPU
 * @index: what the governor chose
 *
 * Return: the state that the CPU had been promoted to, where it slept until the clock's
 * next event or longer, no work ended that, and nothing else speaks against it; else
 * @index.
 */
int cpuidle_promote_raise(struct cpuidle_device *dev, int index)
{
	struct promote_cpu *pc = this_cpu_ptr(&promote_cpus);

	if (likely(READ_ONCE(pc->reached) == PROMOTE_NONE))
		return index;
	return raise(pc, dev, index);
}

/*
 * Somebody wants no noise on this CPU, not even that of a timer. The masks may be
 * freed, after a grace period, when partitions of cpusets change. Interrupts are
 * off, and RCU watches: that ends only as the CPU enters its state.
 */
static bool is_quiet(int cpu)
{
	return cpu_is_isolated(cpu) || !housekeeping_cpu(cpu, HK_TYPE_TICK);
}

static noinline bool arm(struct promote_cpu *pc, struct cpuidle_device *dev, int index)
{
	ktime_t now, event;
	u64 timeout_ns;

	/* Neither was decided by a governor. */
	if (dev->forced_idle_latency_limit_ns || idle_should_enter_s2idle())
		return false;
	/* Timers in ticks are too coarse. */
	if (hrtimer_resolution > 1)
		return false;
	if (is_quiet(dev->cpu))
		return false;

	now = ktime_get();
	event = ktime_sub(dev->next_hrtimer, now);
	timeout_ns = promote_timeout(pc->states, index, max_t(s64, event, 0));
	if (!timeout_ns)
		return false;
	if (promote_floor(pc->states, index, cpuidle_governor_latency_req(dev->cpu)) < 0)
		return false;

	pc->index = index;
	pc->timeout_ns = timeout_ns;
	pc->expired = false;
	hrtimer_start(&pc->timer, ktime_add_ns(now, timeout_ns), HRTIMER_MODE_ABS_PINNED_HARD);
	return true;
}

/**
 * cpuidle_promote_arm - do not let this CPU sleep in a shallow state for long
 * @dev: the device of this CPU; its next_hrtimer is the next event of the clock
 * @index: the state it is about to enter
 *
 * Context: the idle task, with interrupts off, while RCU still watches.
 * Return: whether there is something to disarm afterwards.
 */
bool cpuidle_promote_arm(struct cpuidle_device *dev, int index)
{
	struct promote_cpu *pc = this_cpu_ptr(&promote_cpus);

	if (likely(!READ_ONCE(pc->states[index].timeout_ns)))
		return false;
	return arm(pc, dev, index);
}

/**
 * cpuidle_promote_disarm - the CPU has left the state that the timer was armed for
 */
void cpuidle_promote_disarm(void)
{
	hrtimer_try_to_cancel(this_cpu_ptr(&promote_cpus.timer));
}

static noinline int promoted_reflect(struct promote_cpu *pc, struct cpuidle_device *dev, int index)
{
	const struct promote_state *states = pc->states;
	bool promoted = pc->expired && index >= 0 && !need_resched() &&
			promote_ended(pc->timeout_ns, dev->last_residency_ns);
	int chosen = READ_ONCE(pc->chosen);
	u64 more_ns;

	pc->expired = false;
	if (promoted) {
		if (chosen == PROMOTE_NONE) {
			WRITE_ONCE(pc->chosen, index);
			pc->slept_ns = 0;
		}
		pc->slept_ns += dev->last_residency_ns;
		pc->switches = switches();
		/* One that came with the timer ended no sleep that the governor will hear of. */
		tick_nohz_idle_got_tick();
		return -1;
	}
	if (chosen == PROMOTE_NONE)
		return index;
	/* Raised, and woken before it slept: there is nothing to tell. */
	if (index < 0 && !pc->slept_ns) {
		WRITE_ONCE(pc->chosen, PROMOTE_NONE);
		return index;
	}

	if (index >= 0 && !need_resched() && ktime_get() >= pc->event &&
	    promote_ended(pc->event_ns, dev->last_residency_ns)) {
		WRITE_ONCE(pc->reached, index);
		pc->switches = switches();
	}

	/*
	 * The whole period, as if in the chosen state: the governor will deduct
	 * the exit latency of that one, so what the last one took longer is
	 * deducted here.
	 */
	dev->last_residency_ns += pc->slept_ns;
	if (index >= 0 && states[index].latency_ns > states[chosen].latency_ns) {
		more_ns = states[index].latency_ns - states[chosen].latency_ns;
		dev->last_residency_ns -= min(more_ns, dev->last_residency_ns);
	}
	WRITE_ONCE(pc->chosen, PROMOTE_NONE);
	return chosen;
}

/**
 * cpuidle_promote_reflect - what the governor is told of a sleep
 * @dev: the device of this CPU; its last_residency_ns becomes that of the whole
 *	idle period where promotions were part of it
 * @index: the state that was entered, or an error
 *
 * Return: the state to tell the governor of; negative: nothing.
 */
int cpuidle_promote_reflect(struct cpuidle_device *dev, int index)
{
	struct promote_cpu *pc = this_cpu_ptr(&promote_cpus);

	if (likely(!pc->expired && READ_ONCE(pc->chosen) == PROMOTE_NONE))
		return index;
	return promoted_reflect(pc, dev, index);
}

/**
 * cpuidle_promote_update - take note of what may be entered and left
 * @dev: a device whose states were enabled, disabled, or are new
 */
void cpuidle_promote_update(struct cpuidle_device *dev)
{
	struct promote_cpu *pc = per_cpu_ptr(&promote_cpus, dev->cpu);
	struct cpuidle_driver *drv = cpuidle_get_cpu_driver(dev);

	if (!drv)
		return;

	spin_lock(&promote_lock);
	/* What is left of another driver. Its CPU may be on its way out of it still. */
	if (!dev->enabled) {
		WRITE_ONCE(pc->chosen, PROMOTE_NONE);
		WRITE_ONCE(pc->reached, PROMOTE_NONE);
	}
	for (int i = 0; i < drv->state_count; i++) {
		const struct cpuidle_state_usage *usage = &dev->states_usage[i];
		const struct cpuidle_state *state = &drv->states[i];

		/* A change of what is disabled writes these as they are. */
		pc->states[i].residency_ns = state->target_residency_ns;
		pc->states[i].latency_ns = state->exit_latency_ns;
		WRITE_ONCE(pc->states[i].allowed,
			   !usage->disable && !(state->flags & CPUIDLE_FLAG_COUPLED));
		pc->states[i].leavable = promote && cpuidle_promote_leaves(state);
	}
	promote_plan(pc->states, drv->state_count);
	spin_unlock(&promote_lock);
}

static int set_and_update(const char *text, const struct kernel_param *kp)
{
	int ret = param_set_bool(text, kp);
	int cpu;

	if (ret)
		return ret;
	mutex_lock(&cpuidle_lock);
	for_each_possible_cpu(cpu) {
		struct cpuidle_device *dev = per_cpu(cpuidle_devices, cpu);

		if (dev)
			cpuidle_promote_update(dev);
	}
	mutex_unlock(&cpuidle_lock);
	return 0;
}

static const struct kernel_param_ops update_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = set_and_update,
	.get = param_get_bool,
};

/* Next to cpuidle.off and cpuidle.governor. */
#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "cpuidle."
module_param_cb(promote, &update_ops, &promote, 0644);
MODULE_PARM_DESC(promote, "CPUs leave idle states that last too long, where the driver asks for it (default: on)");

static int __init promote_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_setup(&per_cpu(promote_cpus, cpu).timer, promote_expire, CLOCK_MONOTONIC,
			      HRTIMER_MODE_ABS_PINNED_HARD);
	return 0;
}
core_initcall(promote_init);

// SPDX-License-Identifier: GPL-2.0-only
/*
 * poll_source: let devices join the poll of an idle CPU.
 *
 * While an idle CPU polls for work, a device still interrupts it to announce what
 * the CPU could read from memory. A driver whose device leaves a trace in memory
 * registers a source, for the CPU that the device interrupts. When that CPU polls,
 * it
 *
 *  1. starts its sources: each has its device suppress notifications;
 *  2. peeks at each in turn: is there work? A look at memory is all that driver
 *     code does in idle;
 *  3. ends the poll at the first hit, and stops the sources without one. stop()
 *     enables notifications and then looks once more. What came in between is a
 *     hit, too, so no event is lost;
 *  4. raises an interrupt at itself for each hit. The handler runs in the interrupt: with
 *     the rules and the accounting of the one that it replaces, and followed by the same
 *     softirqs;
 *  5. holds back further notifications of that source until its next poll, if the driver
 *     allows that. Work for a device often leads to more of it, and the device may complete
 *     that before the CPU is idle again. Such a *hold* follows a notification as well as a hit.
 *
 * When a hold ends. The next poll ends it, and so does anything else that comes
 * first: a halt without a poll, CPU offline, polls that are switched off, or a timer. During a
 * poll no hold begins: it would suppress the notifications of a source that this poll does not
 * look at. A CPU that turns busy notices work as late as the timer is: for how long it runs,
 * and what follows from such a mistake, says linux/idle_poll/poll_hold.h. A CPU whose last
 * idle entry did not poll holds nothing back.
 * The timer is not left pending when a poll ends without a hit, as a governor would take it for
 * an event that limits the sleep.
 *
 * A notification may come in spite of a hold, as when the device had sent it just before. Its
 * driver may turn notifications on, so the source is started once more, for the rest of the hold.
 * (In a poll, nothing is done about it: the next one starts all sources.)
 *
 * The budget. A pass that starts sources, or looks at them, begins no further call of
 * driver code once peek_budget_ns are over. The next pass goes on with the source that is
 * next. So interrupts are off for the budget and one call, however many sources there are.
 * (The end of a poll stops all that takes part in it, in one go: notifications have to be
 * on before the CPU leaves idle.)
 * What becomes of a source that takes longer by itself: see poll_source_budget.c.
 *
 * Why an interrupt to itself (irq_work)? Inside the poll, the handler's time
 * would be idle time. After it, the idle loop calls nobody. A thread has a priority
 * of its own, and costs a context switch. What makes a device's interrupt expensive
 * is its way through the interrupt controller or the hypervisor to a CPU that has to
 * be brought back. An interrupt to itself is a register write. (Without virtual
 * interrupt delivery it is an exit as well, and the gain is smaller.)
 *
 * Context. __poll_sources_start(), _stop() and _release(): idle task, interrupts off,
 * RCU watching; _release() also in an interrupt and in the hotplug thread.
 * __poll_sources_peek(): idle task, interrupts on. poll_source_handle() and the timer: hard
 * interrupt of the CPU. A source is stopped in any of these, and where it is unregistered.
 *
 * Locking. The list of a CPU, and the state of its sources, are touched by that
 * CPU alone, with interrupts off: so an interrupt that adds or removes a source
 * comes before or after a pass, never within. Others send the CPU a request
 * (smp_call_function_single()). Where the CPU is offline, nobody looks, and
 * cpus_read_lock() keeps it offline. @poll_source_mutex serialises registrations, and
 * guards the registry, @has_poller and the verdict about sources that are off.
 *
 * On PREEMPT_RT interrupt handlers are threads, with priorities that the
 * administrator gives them. Calling them from elsewhere would bypass that: there
 * are no sources on it, and POLL_SOURCE excludes it.
 */
#ifdef LIGHTSLEEP_MODULE
/*
 * In a module, the poll is a part of an idle state, so interrupts stay off until the CPU has left
 * that (step 4). A CPU that halts while cpuidle is paused, as for a change of governors, tells
 * nobody: the timer is what is left then to end a hold.
 */
#endif
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/init.h>
#include <linux/irq_work.h>
#include <linux/irqflags.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/poll_source.h>
#include <linux/sched/clock.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/time64.h>

#include "poll_source.h"
#include "ranged_param.h"

#define HOLD_US_DEFAULT		2000
#define HOLD_US_MAX		(10 * USEC_PER_SEC)

DEFINE_STATIC_KEY_FALSE(poll_sources_registered);

/* Some source of this CPU takes part in its poll. Stale, but harmless, after it. */
DEFINE_PER_CPU(bool, poll_sources_started);

#ifdef LIGHTSLEEP_MODULE
/* How often some source of this CPU had work; in the series, nobody asks. */
DEFINE_PER_CPU(unsigned long, poll_sources_served);

/**
 * poll_source_worked - a source has had work: an idle period of its CPU is over
 * @source: as for poll_source_notified(), which does the same
 *
 * Context: interrupt, or interrupts off.
 */
void poll_source_worked(const struct poll_source *source)
{
	if (READ_ONCE(source->cpu) == smp_processor_id())
		this_cpu_inc(poll_sources_served);
}
EXPORT_SYMBOL_GPL(poll_source_worked);
#endif

/**
 * struct source_cpu - one CPU
 * @sources: its sources
 * @hold_timer: ends holds that no poll has ended
 * @polls: its last entry into idle polled
 * @polling: it polls now
 */
struct source_cpu {
	struct list_head sources;
	struct hrtimer hold_timer;
	bool polls;
	bool polling;
};

static DEFINE_PER_CPU(struct source_cpu, source_cpus);

/* All sources, and the verdict about those that are off. */
DEFINE_MUTEX(poll_source_mutex);
LIST_HEAD(poll_source_registry);
static bool has_poller;

void poll_source_call(struct poll_source *source, smp_call_func_t func)
{
	cpus_read_lock();
	if (smp_call_function_single(source->cpu, func, source, true))
		func(source); /* It is offline. */
	cpus_read_unlock();
}

static int hold_us_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, 0, HOLD_US_MAX);
}

static const struct kernel_param_ops hold_us_ops = {
	.set = hold_us_set,
	.get = param_get_uint,
};

static unsigned int hold_us = HOLD_US_DEFAULT;
module_param_cb(hold_us, &hold_us_ops, &hold_us, 0644);
MODULE_PARM_DESC(hold_us, "how long a source may hold back its notifications after work (us, 0 to 10000000, default 2000; 0: never)");

void __poll_sources_start(void)
{
	struct source_cpu *this = this_cpu_ptr(&source_cpus);
	u64 begin_ns = local_clock(), now_ns = begin_ns;
	struct poll_source *source, *left = NULL;
	bool started = false;

	lockdep_assert_irqs_disabled();
	this->polls = true;
	this->polling = true;
	list_for_each_entry(source, &this->sources, node) {
		if (source->off)
			continue;
		if (source->state == POLL_SOURCE_HELD) {
			/* Nothing is left to do for this poll. */
			poll_hold_ended(&source->hold, now_ns - source->held_since_ns, true);
		} else if (now_ns - begin_ns > READ_ONCE(poll_source_budget_ns)) {
			left = left ?: source;
			continue;
		} else {
			bool takes_part = source->ops->start(source);

			now_ns = poll_source_charge(source, now_ns);
			if (!takes_part)
				continue;
		}
		source->state = POLL_SOURCE_POLLED;
		source->stats.polls++;
		started = true;
	}
	if (left)
		list_rotate_to_front(&left->node, &this->sources);
	this_cpu_write(poll_sources_started, started);
}

bool __poll_sources_peek(void)
{
	struct source_cpu *this = this_cpu_ptr(&source_cpus);
	struct poll_source *source;
	u64 begin_ns, now_ns;
	bool hit = false;

	if (!this_cpu_read(poll_sources_started))
		return false;
	local_irq_disable();
	begin_ns = local_clock();
	now_ns = begin_ns;
	list_for_each_entry(source, &this->sources, node) {
		if (source->state != POLL_SOURCE_POLLED)
			continue;
		/* It was switched off: only the end of the poll has it notify again. */
		if (source->off) {
			hit = true;
			continue;
		}
		if (now_ns - begin_ns > READ_ONCE(poll_source_budget_ns)) {
			list_rotate_to_front(&source->node, &this->sources);
			break;
		}
		if (source->ops->peek(source)) {
			source->state = POLL_SOURCE_HIT;
			hit = true;
		}
		source->stats.peeks++;
		now_ns = poll_source_charge(source, now_ns);
	}
	local_irq_enable();
	return hit;
}

/* True if there is work; its interrupt is raised then. */
static bool poll_source_stop(struct poll_source *source)
{
	bool polled = source->state == POLL_SOURCE_HIT || source->state == POLL_SOURCE_POLLED;
	bool hit = source->state == POLL_SOURCE_HIT;

	if (source->state == POLL_SOURCE_POLLED || source->state == POLL_SOURCE_HELD) {
		u64 start_ns = local_clock();

		hit = source->ops->stop(source);
		poll_source_charge(source, start_ns);
	}
	source->state = POLL_SOURCE_NOTIFIES;
	/* What came while notifications were held back is no hit: no poll has looked. */
	source->stats.hits += hit && polled;
	if (hit)
		irq_work_queue(&source->work);
	return hit;
}

/* True if any has work; @switched_off is set if that took one too long. */
static bool poll_sources_stop_all(struct source_cpu *this, bool halts, bool *switched_off)
{
	struct poll_source *source;
	bool hit = false;

	list_for_each_entry(source, &this->sources, node) {
		bool was_off = source->off;

		/*
		 * A CPU that halts without a poll finds the work as early as one that polls. But
		 * when somebody takes it offline, or switches polls off, has nothing to do with
		 * what is usual.
		 */
		if (halts && source->state == POLL_SOURCE_HELD)
			poll_hold_ended(&source->hold, local_clock() - source->held_since_ns, true);
		hit |= poll_source_stop(source);
		if (switched_off)
			*switched_off |= source->off && !was_off;
	}
	return hit;
}

bool __poll_sources_stop(void)
{
	struct source_cpu *this = this_cpu_ptr(&source_cpus);
	bool hit;

	lockdep_assert_irqs_disabled();
	this->polling = false;
	hit = poll_sources_stop_all(this, false, NULL); /* In a poll, nothing is held. */
	/* After a hit, the next hold is about to need it, and to set it costs time. */
	if (!hit && hrtimer_active(&this->hold_timer))
		hrtimer_try_to_cancel(&this->hold_timer);
	return hit;
}

bool __poll_sources_release(bool halts)
{
	struct source_cpu *this = this_cpu_ptr(&source_cpus);
	bool hit, switched_off = false;

	lockdep_assert_irqs_disabled();
	this->polls = false;
	this->polling = false;
	hrtimer_try_to_cancel(&this->hold_timer);
	hit = poll_sources_stop_all(this, halts, &switched_off);
	/* The verdict about it has a timer on this CPU, which the idle loop does not know of. */
	return hit || switched_off;
}

/* No poll came in time. */
static void poll_source_expire(struct poll_source *source)
{
	source->stats.expired++;
	poll_hold_ended(&source->hold, local_clock() - source->held_since_ns, false);
	poll_source_stop(source);
}

/*
 * One timer for all sources of a CPU. It is not moved with each hold, as that
 * would cost what holds save: it looks for what is due, and when the next will be.
 */
static enum hrtimer_restart poll_sources_hold_over(struct hrtimer *timer)
{
	struct source_cpu *this = this_cpu_ptr(&source_cpus);
	ktime_t now = ktime_get(), next = KTIME_MAX;
	struct poll_source *source;

	/* It was moved here from a CPU that went offline, where nothing is held back. */
	if (timer != &this->hold_timer)
		return HRTIMER_NORESTART;
	list_for_each_entry(source, &this->sources, node) {
		if (source->state != POLL_SOURCE_HELD)
			continue;
		if (source->held_until > now) {
			next = min(next, source->held_until);
			continue;
		}
		poll_source_expire(source);
	}
	if (next == KTIME_MAX)
		return HRTIMER_NORESTART;
	hrtimer_set_expires(timer, next);
	return HRTIMER_RESTART;
}

/* May this CPU be expected to poll soon? Not if it goes offline, or halts at once. */
static bool poll_source_may_hold(const struct poll_source *source)
{
	return source->state == POLL_SOURCE_NOTIFIES && !source->off &&
	       !list_empty(&source->node) && source->ops->holds && READ_ONCE(hold_us) &&
	       this_cpu_read(source_cpus.polls) && !this_cpu_read(source_cpus.polling) &&
	       cpu_active(source->cpu);
}

/*
 * Work came in spite of a hold, and its driver may have turned notifications on: not if
 * ops->handle() found nothing, as an interrupt had taken it. So a source that refuses is stopped.
 */
static void poll_source_hold_again(struct poll_source *source)
{
	u64 start_ns = local_clock();
	bool starts = source->ops->start(source);

	poll_source_charge(source, start_ns);
	if (!starts || source->off)
		poll_source_stop(source);
}

static void poll_source_hold(struct poll_source *source)
{
	struct hrtimer *timer = this_cpu_ptr(&source_cpus.hold_timer);
	u64 start_ns, most_ns = (u64)READ_ONCE(hold_us) * NSEC_PER_USEC;
	bool starts;

	if (source->state == POLL_SOURCE_HELD) {
		poll_source_hold_again(source);
		return;
	}
	if (!poll_source_may_hold(source))
		return;
	if (poll_hold_skip(&source->hold))
		return;
	start_ns = local_clock();
	starts = source->ops->start(source);
	source->held_since_ns = poll_source_charge(source, start_ns);
	if (!starts)
		return;
	source->state = POLL_SOURCE_HELD;
	/* That took too long. A poll would leave it out, so nobody would look. */
	if (source->off) {
		poll_source_stop(source);
		return;
	}
	source->stats.holds++;
	source->held_until = ktime_add_ns(ktime_get(), poll_hold_ns(&source->hold, most_ns));
	/* It may have been set for a hold that was longer. */
	if (!hrtimer_active(timer) || hrtimer_get_expires(timer) > source->held_until)
		hrtimer_start(timer, source->held_until, HRTIMER_MODE_ABS_PINNED_HARD);
}

static void poll_source_handle(struct irq_work *work)
{
	struct poll_source *source = container_of(work, struct poll_source, work);
	u64 start_ns = local_clock();

	source->ops->handle(source);
#ifdef LIGHTSLEEP_MODULE
	poll_source_worked(source);
#endif
	source->stats.handled++;
	source->stats.handle_ns += local_clock() - start_ns;
	poll_source_hold(source);
}

/**
 * poll_source_notified - a driver has served a notification of its source
 * @source: a source that is registered, or was, or whose @node is an empty list
 *
 * More work may be about to follow: further notifications may be held back until
 * the CPU polls. On another CPU than the source's, this does nothing.
 *
 * Context: interrupt, or interrupts off.
 */
void poll_source_notified(struct poll_source *source)
{
	lockdep_assert_irqs_disabled();
#ifdef LIGHTSLEEP_MODULE
	poll_source_worked(source);
#endif
	if (READ_ONCE(source->cpu) == smp_processor_id())
		poll_source_hold(source);
}
EXPORT_SYMBOL_GPL(poll_source_notified);

static void poll_source_attach(void *info)
{
	struct poll_source *source = info;
	struct source_cpu *this = per_cpu_ptr(&source_cpus, source->cpu);

	/* What was noted when the CPU last had sources: it may have stopped polling since. */
	if (list_empty(&this->sources)) {
		this->polls = false;
		this->polling = false;
	}
	list_add_tail(&source->node, &this->sources);
}

static void poll_source_detach(void *info)
{
	struct poll_source *source = info;

	struct source_cpu *this = per_cpu_ptr(&source_cpus, source->cpu);

	list_del_init(&source->node);
	poll_source_stop(source);
	/* No poll would cancel it, and where the CPU goes offline, another one would have it. */
	if (list_empty(&this->sources))
		hrtimer_try_to_cancel(&this->hold_timer);
}

/**
 * poll_source_register - have a CPU look at a source whenever it polls
 * @source: with ops, name and cpu filled in, and all else zero or as
 *	poll_source_unregister() left it; it must stay until it is unregistered
 *
 * The CPU may be offline, and may go offline and come back.
 *
 * Context: may sleep.
 *
 * Return: 0, or -EINVAL where there is no such CPU, or -EOPNOTSUPP where this
 * kernel cannot handle a source outside of idle at once, or -ENODEV where nobody
 * polls, or not yet.
 */
int poll_source_register(struct poll_source *source)
{
	if (source->cpu >= nr_cpu_ids || !cpu_possible(source->cpu))
		return -EINVAL;
#ifdef LIGHTSLEEP_MODULE
	/* In a kernel of the series, the option excludes it. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return -EOPNOTSUPP;
#endif
	if (!arch_irq_work_has_interrupt())
		return -EOPNOTSUPP;

	init_irq_work(&source->work, poll_source_handle);
	poll_hold_init(&source->hold);
	source->retry_delay = 0;
	source->reported = false;
	source->off = false;
	source->excess_ns = 0;
	mutex_lock(&poll_source_mutex);
	if (!has_poller) {
		mutex_unlock(&poll_source_mutex);
		return -ENODEV;
	}
	/* Before a poll can start it: a poll that ends while this is off would not stop it. */
	static_branch_inc(&poll_sources_registered);
	list_add_tail(&source->all, &poll_source_registry);
	poll_source_call(source, poll_source_attach);
	mutex_unlock(&poll_source_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(poll_source_register);

/**
 * poll_source_unregister - undo poll_source_register()
 * @source: a registered source
 *
 * When this returns, none of the source's functions runs or will run, its
 * notifications are not suppressed, and what came while they were is handled.
 *
 * Context: may sleep. Must not hold what handle() waits for.
 */
void poll_source_unregister(struct poll_source *source)
{
	mutex_lock(&poll_source_mutex);
	poll_source_call(source, poll_source_detach);
	list_del(&source->all);
	mutex_unlock(&poll_source_mutex);
	static_branch_dec(&poll_sources_registered);
	irq_work_sync(&source->work);
}
EXPORT_SYMBOL_GPL(poll_source_unregister);

static void poll_source_nothing(void *unused)
{
}

/**
 * poll_source_move - have another CPU look at a source
 * @source: a registered source
 * @cpu: the CPU that its notifications interrupt now; it may be offline
 *
 * Nothing is lost meanwhile: notifications arrive until the new CPU polls.
 *
 * Context: may sleep. Must not hold what handle() waits for.
 *
 * Return: 0, or -EINVAL where there is no such CPU.
 */
int poll_source_move(struct poll_source *source, unsigned int cpu)
{
	unsigned int old;

	if (cpu >= nr_cpu_ids || !cpu_possible(cpu))
		return -EINVAL;
	mutex_lock(&poll_source_mutex);
	old = source->cpu;
	poll_source_call(source, poll_source_detach);
	irq_work_sync(&source->work);
	WRITE_ONCE(source->cpu, cpu);
	/*
	 * poll_source_notified() may have read the old CPU there: wait until it has found the
	 * source on no list. Where that CPU is offline, nothing runs.
	 */
	smp_call_function_single(old, poll_source_nothing, NULL, true);
	/* What was seen of the other CPU says little about this one. */
	poll_hold_moved(&source->hold);
	source->excess_ns = 0;
	poll_source_call(source, poll_source_attach);
	mutex_unlock(&poll_source_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(poll_source_move);

/* Statistics: a table, a line for each source. */
static int poll_source_show(struct seq_file *seq, void *unused)
{
	const struct poll_source *source;

	seq_puts(seq, "cpu name state polls hits misses peeks peek_ns overruns handled handle_ns holds expired\n");
	mutex_lock(&poll_source_mutex);
	list_for_each_entry(source, &poll_source_registry, all) {
		const struct poll_source_stats *stats = &source->stats;
		u64 polls = READ_ONCE(stats->polls);
		u64 hits = min(READ_ONCE(stats->hits), polls);

		seq_printf(seq, "%u %s %s %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu\n",
			   source->cpu, source->name, READ_ONCE(source->off) ? "off" : "on",
			   polls, hits, polls - hits,
			   READ_ONCE(stats->peeks), READ_ONCE(stats->peek_ns),
			   READ_ONCE(stats->overruns),
			   READ_ONCE(stats->handled), READ_ONCE(stats->handle_ns),
			   READ_ONCE(stats->holds), READ_ONCE(stats->expired));
	}
	mutex_unlock(&poll_source_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(poll_source);

static void allow_registration(bool yes)
{
	mutex_lock(&poll_source_mutex);
	has_poller = yes;
	mutex_unlock(&poll_source_mutex);
}

/* Before the first CPU polls. Without statistics, sources work all the same. */
void __init poll_source_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct source_cpu *of_cpu = per_cpu_ptr(&source_cpus, cpu);

		INIT_LIST_HEAD(&of_cpu->sources);
		hrtimer_setup(&of_cpu->hold_timer, poll_sources_hold_over,
			      CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
	}
	debugfs_create_file("poll_source", 0444, NULL, NULL, &poll_source_fops);
	allow_registration(true);
}

#ifdef LIGHTSLEEP_MODULE
/*
 * After the last. Whoever has sources holds a reference to this module, or, where
 * both are built in, comes later than this can.
 */
void poll_source_exit(void)
{
	unsigned int cpu;

	allow_registration(false);
	for_each_possible_cpu(cpu)
		hrtimer_cancel(&per_cpu_ptr(&source_cpus, cpu)->hold_timer);
	debugfs_lookup_and_remove("poll_source", NULL);
	poll_source_budget_exit();
}
#endif

// SPDX-License-Identifier: GPL-2.0-only
/*
 * poll_source: let devices join the poll of an idle CPU.
 *
 * While an idle CPU polls for work, a device still interrupts it to say what
 * the CPU could have read from memory. A driver whose device leaves a trace in
 * memory registers a source for the CPU that the device would interrupt. When
 * that CPU polls, it
 *
 *  1. starts its sources: each has its device suppress notifications;
 *  2. peeks at each, over and over: is there anything for us? To look at memory
 *     is all that driver code does in idle;
 *  3. ends the poll at the first hit, and stops the sources that had none. To
 *     stop is to let notifications arrive again, and then to look once more:
 *     what came in between is a hit, too. So nothing is ever lost;
 *  4. raises an interrupt at itself for each hit. Interrupts are off until the
 *     cpuidle core has taken the time and has left idle; only then the handler
 *     runs, in an interrupt: with the same rules, accounted in the same way,
 *     and followed by the same softirqs as the one that it replaces;
 *  5. expects to be idle again soon, as work for a device often leads to more of
 *     it: the source is started again at once, and *lingers* until the next poll.
 *     Else a device that answers before its CPU is idle interrupts it every time.
 *     Therefore a source lingers after a notification as well as after a hit.
 *     Whatever else comes first stops it, as in 3: the CPU halts without a poll, it
 *     goes offline, or linger_us are over. So a CPU that turns out to be busy may
 *     notice work late, by linger_us at most. It does not try again for LINGER_NOT
 *     times, and for twice as many each time that it was wrong again.
 *
 * Each call of driver code in idle is measured, every time. A source that takes
 * longer than peek_budget_ns again and again (in more than one call in STRIKE)
 * is switched off, and named in the log. Its notifications interrupt again.
 *
 * Why an interrupt to itself (irq_work), when saving interrupts is the point?
 * Because there is nowhere else to go. Within the idle state, the handler's time
 * would be idle time. After it, the idle loop calls nobody. A thread has a priority
 * of its own, and costs a context switch: twice as much as the interrupt, measured
 * on a CPU that is emulated. And what an interrupt from a device costs is not its
 * entry, but its way: through the interrupt controller or the hypervisor to a CPU
 * that has to be brought back for it. One from a CPU to itself is a register write.
 * (Under a hypervisor without virtual interrupt delivery it is an exit as well, and
 * the gain is smaller.)
 *
 * Locking. The list of a CPU, and the state of its sources, are touched by that
 * CPU alone, with interrupts off: so an interrupt that adds or removes a source
 * comes before or after a look at all of them, never within. Others send it one
 * (smp_call_function_single()). Where the CPU is offline, nobody looks, and
 * with cpus_read_lock() it stays so. A CPU that goes offline has left its poll,
 * as it does so in a thread, and takes no notice of its sources until it is
 * back. @registry_mutex serialises registrations, and guards @registry, which
 * only the statistics and the log read, and @has_poller.
 *
 * On PREEMPT_RT interrupt handlers are threads, with priorities that the
 * administrator gives them. Calling them from elsewhere takes that away: there
 * are no sources on it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
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
#include <linux/workqueue.h>

#include "poll_source.h"
#include "ranged_param.h"

/* A call that overruns counts as much as this many that do not. */
#define STRIKE			16
/*
 * So many in a row are too many. Some are not: the first calls find cold caches,
 * and a hypervisor may stop the CPU in any.
 */
#define STRIKES_MAX		(64 * STRIKE)

#define PEEK_BUDGET_NS_DEFAULT	5000
/* Less than any clock can tell would switch off all sources. */
#define PEEK_BUDGET_NS_MIN	100
#define PEEK_BUDGET_NS_MAX	NSEC_PER_MSEC

/* Ten requests of an emulated CPU: it is idle again by then, and the timer is rare. */
#define LINGER_US_DEFAULT	2000
#define LINGER_US_MAX		(10 * USEC_PER_SEC)
/* So many times without, after no poll came in time; at most, if that goes on. */
#define LINGER_NOT		8
#define LINGER_NOT_MAX		1024

static int peek_budget_ns_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, PEEK_BUDGET_NS_MIN, PEEK_BUDGET_NS_MAX);
}

static const struct kernel_param_ops peek_budget_ns_ops = {
	.set = peek_budget_ns_set,
	.get = param_get_uint,
};

static unsigned int peek_budget_ns = PEEK_BUDGET_NS_DEFAULT;
module_param_cb(peek_budget_ns, &peek_budget_ns_ops, &peek_budget_ns, 0644);
MODULE_PARM_DESC(peek_budget_ns, "how long a call of a poll source in idle may take (ns, default 5000)");

static int linger_us_set(const char *text, const struct kernel_param *kp)
{
	return ranged_param_set(text, kp, 0, LINGER_US_MAX);
}

static const struct kernel_param_ops linger_us_ops = {
	.set = linger_us_set,
	.get = param_get_uint,
};

static unsigned int linger_us = LINGER_US_DEFAULT;
module_param_cb(linger_us, &linger_us_ops, &linger_us, 0644);
MODULE_PARM_DESC(linger_us, "how long notifications may stay suppressed after a hit, until the next poll (us, default 2000, 0: not at all)");

DEFINE_STATIC_KEY_FALSE(poll_sources_registered);

static DEFINE_PER_CPU(struct list_head, poll_sources);
static DEFINE_PER_CPU(struct hrtimer, linger_timers);

static DEFINE_MUTEX(registry_mutex);
static LIST_HEAD(registry);
static bool has_poller;

static struct dentry *statistics;

/* Runs in a thread: a console may be slow. */
static void tell_who_is_off(struct work_struct *work)
{
	struct poll_source *source;

	mutex_lock(&registry_mutex);
	list_for_each_entry(source, &registry, all) {
		if (!READ_ONCE(source->off) || source->told)
			continue;
		source->told = true;
		pr_warn("poll source %s of CPU %u is switched off: it takes more than %u ns in idle\n",
			source->name, source->cpu, READ_ONCE(peek_budget_ns));
	}
	mutex_unlock(&registry_mutex);
}

static DECLARE_WORK(tell_work, tell_who_is_off);

/* A call in idle has ended, which began at @start_ns. Return: the time. */
static u64 poll_source_charge(struct poll_source *source, u64 start_ns)
{
	u64 now_ns = local_clock();

	source->stats.peek_ns += now_ns - start_ns;
	if (now_ns - start_ns <= READ_ONCE(peek_budget_ns)) {
		if (source->strikes)
			source->strikes--;
		return now_ns;
	}
	source->stats.overruns++;
	source->strikes += STRIKE;
	if (source->strikes >= STRIKES_MAX && !source->off) {
		WRITE_ONCE(source->off, true);
		schedule_work(&tell_work);
	}
	return now_ns;
}

void __poll_sources_start(void)
{
	u64 now_ns = local_clock();
	struct poll_source *source;

	lockdep_assert_irqs_disabled();
	list_for_each_entry(source, this_cpu_ptr(&poll_sources), node) {
		if (source->off)
			continue;
		if (source->state == POLL_SOURCE_LINGERS)
			source->linger_not_next = LINGER_NOT;
		else if (!source->ops->start(source))
			continue;
		source->state = POLL_SOURCE_POLLED;
		source->stats.polls++;
		now_ns = poll_source_charge(source, now_ns);
	}
}

bool __poll_sources_peek(void)
{
	struct poll_source *source;
	bool hit = false;
	u64 now_ns;

	if (list_empty(this_cpu_ptr(&poll_sources)))
		return false;
	local_irq_disable();
	now_ns = local_clock();
	list_for_each_entry(source, this_cpu_ptr(&poll_sources), node) {
		if (source->state != POLL_SOURCE_POLLED || source->off)
			continue;
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
	bool hit = source->state == POLL_SOURCE_HIT;

	if (source->state == POLL_SOURCE_LINGERS) {
		source->stats.expired++;
		source->linger_not = source->linger_not_next;
		source->linger_not_next = min(2 * source->linger_not, LINGER_NOT_MAX);
	}
	if (source->state == POLL_SOURCE_POLLED || source->state == POLL_SOURCE_LINGERS) {
		u64 start_ns = local_clock();

		hit = source->ops->stop(source);
		poll_source_charge(source, start_ns);
	}
	source->state = POLL_SOURCE_RESTS;
	if (hit) {
		source->stats.hits++;
		irq_work_queue(&source->work);
	}
	return hit;
}

bool __poll_sources_stop(void)
{
	struct poll_source *source;
	bool hit = false;

	lockdep_assert_irqs_disabled();
	list_for_each_entry(source, this_cpu_ptr(&poll_sources), node)
		hit |= poll_source_stop(source);
	return hit;
}

/*
 * One timer for all sources of a CPU. It is not moved with each hit, as that
 * would cost what it saves: it looks for what is due, and when the next will be.
 */
static enum hrtimer_restart poll_sources_lingered(struct hrtimer *timer)
{
	ktime_t now = ktime_get(), next = KTIME_MAX;
	struct poll_source *source;

	/* Its CPU went offline, with nothing that lingered. */
	if (timer != this_cpu_ptr(&linger_timers))
		return HRTIMER_NORESTART;
	list_for_each_entry(source, this_cpu_ptr(&poll_sources), node) {
		if (source->state != POLL_SOURCE_LINGERS)
			continue;
		if (source->linger_until > now) {
			next = min(next, source->linger_until);
			continue;
		}
		poll_source_stop(source);
	}
	if (next == KTIME_MAX)
		return HRTIMER_NORESTART;
	hrtimer_set_expires(timer, next);
	return HRTIMER_RESTART;
}

/* Not where no poll may come: the CPU goes offline, or the source is removed. */
static void poll_source_linger(struct poll_source *source)
{
	struct hrtimer *timer = this_cpu_ptr(&linger_timers);
	unsigned int us = READ_ONCE(linger_us);

	if (source->state != POLL_SOURCE_RESTS || !us || source->off)
		return;
	if (list_empty(&source->node) || !cpu_active(source->cpu))
		return;
	if (source->linger_not) {
		source->linger_not--;
		return;
	}
	if (!source->ops->start(source))
		return;
	source->state = POLL_SOURCE_LINGERS;
	source->stats.lingers++;
	source->linger_until = ktime_add_us(ktime_get(), us);
	/* It may have been set when linger_us was longer. */
	if (!hrtimer_active(timer) || hrtimer_get_expires(timer) > source->linger_until)
		hrtimer_start(timer, source->linger_until, HRTIMER_MODE_ABS_PINNED_HARD);
}

bool __poll_sources_rest(void)
{
	/* Nothing lingers from here on. Else it would wake the CPU for nothing. */
	hrtimer_try_to_cancel(this_cpu_ptr(&linger_timers));
	return __poll_sources_stop();
}

static void poll_source_handle(struct irq_work *work)
{
	struct poll_source *source = container_of(work, struct poll_source, work);
	u64 start_ns = local_clock();

	source->ops->handle(source);
	source->stats.handled++;
	source->stats.handle_ns += local_clock() - start_ns;
	poll_source_linger(source);
}

/**
 * poll_source_notified - a driver has served a notification of its source
 * @source: a registered source
 *
 * More work may be about to follow: notifications may stay suppressed until then.
 *
 * Context: interrupt, or interrupts off, on the CPU of the source.
 */
void poll_source_notified(struct poll_source *source)
{
	lockdep_assert_irqs_disabled();
	poll_source_linger(source);
}
EXPORT_SYMBOL_GPL(poll_source_notified);

static void poll_source_attach(void *info)
{
	struct poll_source *source = info;

	list_add_tail(&source->node, per_cpu_ptr(&poll_sources, source->cpu));
}

static void poll_source_detach(void *info)
{
	struct poll_source *source = info;

	list_del_init(&source->node);
	poll_source_stop(source);
}

static void call_on_its_cpu(struct poll_source *source, smp_call_func_t func)
{
	cpus_read_lock();
	if (smp_call_function_single(source->cpu, func, source, true))
		func(source); /* It is offline. */
	cpus_read_unlock();
}

/**
 * poll_source_register - have a CPU look at a source whenever it polls
 * @source: with ops, name and cpu filled in, and all else zero; it must stay
 *	until it is unregistered
 *
 * The CPU may be offline, and may go offline and come back.
 *
 * Context: may sleep.
 *
 * Return: 0, or -EINVAL where there is no such CPU, or -EOPNOTSUPP where this
 * kernel cannot handle a source outside of idle at once, or -ENODEV where nobody
 * polls: the idle driver is built in and does not have the CPUs, or not yet.
 */
int poll_source_register(struct poll_source *source)
{
	if (!cpu_possible(source->cpu))
		return -EINVAL;
	if (IS_ENABLED(CONFIG_PREEMPT_RT) || !arch_irq_work_has_interrupt())
		return -EOPNOTSUPP;

	init_irq_work(&source->work, poll_source_handle);
	source->linger_not_next = LINGER_NOT;
	mutex_lock(&registry_mutex);
	if (!has_poller) {
		mutex_unlock(&registry_mutex);
		return -ENODEV;
	}
	list_add_tail(&source->all, &registry);
	call_on_its_cpu(source, poll_source_attach);
	mutex_unlock(&registry_mutex);
	static_branch_inc(&poll_sources_registered);
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
	mutex_lock(&registry_mutex);
	call_on_its_cpu(source, poll_source_detach);
	list_del(&source->all);
	mutex_unlock(&registry_mutex);
	static_branch_dec(&poll_sources_registered);
	irq_work_sync(&source->work);
}
EXPORT_SYMBOL_GPL(poll_source_unregister);

/* Statistics: a table, a line for each source. */
static int poll_source_show(struct seq_file *seq, void *unused)
{
	const struct poll_source *source;

	seq_puts(seq, "cpu name state polls hits misses peeks peek_ns overruns handled handle_ns lingers expired\n");
	mutex_lock(&registry_mutex);
	list_for_each_entry(source, &registry, all) {
		const struct poll_source_stats *stats = &source->stats;
		u64 polls = READ_ONCE(stats->polls);
		u64 hits = min(READ_ONCE(stats->hits), polls);

		seq_printf(seq, "%u %s %s %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu\n",
			   source->cpu, source->name, READ_ONCE(source->off) ? "off" : "on",
			   polls, hits, polls - hits,
			   READ_ONCE(stats->peeks), READ_ONCE(stats->peek_ns),
			   READ_ONCE(stats->overruns),
			   READ_ONCE(stats->handled), READ_ONCE(stats->handle_ns),
			   READ_ONCE(stats->lingers), READ_ONCE(stats->expired));
	}
	mutex_unlock(&registry_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(poll_source);

static void allow_registration(bool yes)
{
	mutex_lock(&registry_mutex);
	has_poller = yes;
	mutex_unlock(&registry_mutex);
}

/* Before the first CPU polls. Without statistics, sources work all the same. */
void poll_source_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		INIT_LIST_HEAD(per_cpu_ptr(&poll_sources, cpu));
		hrtimer_setup(per_cpu_ptr(&linger_timers, cpu), poll_sources_lingered,
			      CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
	}
	statistics = debugfs_create_file("poll_source", 0444, NULL, NULL, &poll_source_fops);
	allow_registration(true);
}

/*
 * After the last. Whoever has sources holds a reference to this module, or, where
 * both are built in, comes later than this can.
 */
void poll_source_exit(void)
{
	unsigned int cpu;

	allow_registration(false);
	for_each_possible_cpu(cpu)
		hrtimer_cancel(per_cpu_ptr(&linger_timers, cpu));
	debugfs_remove(statistics);
	cancel_work_sync(&tell_work);
}

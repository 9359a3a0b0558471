// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long may poll sources keep interrupts off in idle, and what becomes of one that
 * takes longer?
 *
 * The CPU measures each call of driver code in idle. A call that takes longer than the
 * budget, peek_budget_ns, counts against its source: with its time, but at most
 * EXCESS_CALL budgets, as a hypervisor may stop the CPU anywhere. Each call within the
 * budget takes back a part, so that one such stop is forgotten after some microseconds of
 * polling: what a host takes switches nothing off. A source with EXCESS_MAX budgets is
 * switched off. The log names it, and it gets its next chance after RETRY_MIN, and later
 * each further time, up to RETRY_MAX. A write to peek_budget_ns switches all sources on at
 * once.
 *
 * Context. poll_source_charge(): the CPU of the source, interrupts off; in idle, or in an
 * interrupt. The rest: threads.
 *
 * Locking. A source's account is touched by its CPU alone, with interrupts off. Others
 * use poll_source_call(). poll_source_mutex guards what is known of sources that are off.
 */
#define pr_fmt(fmt) "poll_source: " fmt

#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/poll_source.h>
#include <linux/printk.h>
#include <linux/sched/clock.h>
#include <linux/time64.h>
#include <linux/workqueue.h>

#include "poll_source.h"
#include "ranged_param.h"

/* The parameter is beside those of poll_source.c. */
#ifndef LIGHTSLEEP_MODULE
#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "poll_source."
#endif

/* In budgets: what one overrun counts at most, and what switches a source off. */
#define EXCESS_CALL		16
#define EXCESS_MAX		64
/* A call within the budget takes back one part in this many of a budget. */
#define EXCESS_DECAY		4
#define RETRY_MIN		(10UL * HZ)
#define RETRY_MAX		(1280UL * HZ)
/* That many times as long on as it was off before: the next time counts as the first. */
#define RETRY_FORGET		8

#define PEEK_BUDGET_NS_DEFAULT	5000
/* Less than any clock can tell would switch off all sources. */
#define PEEK_BUDGET_NS_MIN	100
#define PEEK_BUDGET_NS_MAX	NSEC_PER_MSEC

/* On its CPU. */
static void poll_source_reset_budget(void *info)
{
	struct poll_source *source = info;

	source->excess_ns = 0;
	source->reported = false;
	WRITE_ONCE(source->off, false);
}

unsigned int poll_source_budget_ns = PEEK_BUDGET_NS_DEFAULT;

/* A write is also how an administrator switches all sources on again. */
static int peek_budget_ns_set(const char *text, const struct kernel_param *kp)
{
	int ret = ranged_param_set(text, kp, PEEK_BUDGET_NS_MIN, PEEK_BUDGET_NS_MAX);
	struct poll_source *source;

	if (ret)
		return ret;
	mutex_lock(&poll_source_mutex);
	list_for_each_entry(source, &poll_source_registry, all) {
		source->retry_delay = 0;
		poll_source_call(source, poll_source_reset_budget);
	}
	mutex_unlock(&poll_source_mutex);
	return 0;
}

static const struct kernel_param_ops peek_budget_ns_ops = {
	.set = peek_budget_ns_set,
	.get = param_get_uint,
};

module_param_cb(peek_budget_ns, &peek_budget_ns_ops, &poll_source_budget_ns, 0644);
MODULE_PARM_DESC(peek_budget_ns, "for how long poll sources may start, or be looked at, with interrupts off (ns, 100 to 1000000, default 5000)");

static void retry_sources(struct work_struct *work);
static DECLARE_DELAYED_WORK(retry_work, retry_sources);

/* Those that are off, and whose time has come. */
static void retry_sources(struct work_struct *work)
{
	unsigned long now = jiffies, wait = RETRY_MIN;
	struct poll_source *source;
	bool left = false;

	mutex_lock(&poll_source_mutex);
	list_for_each_entry(source, &poll_source_registry, all) {
		if (!source->reported)
			continue;
		if (time_after_eq(now, source->retry_at)) {
			poll_source_call(source, poll_source_reset_budget);
		} else {
			wait = min(wait, source->retry_at - now);
			left = true;
		}
	}
	if (left)
		schedule_delayed_work(&retry_work, wait);
	mutex_unlock(&poll_source_mutex);
}

static void set_retry(struct poll_source *source)
{
	unsigned long was = source->retry_delay;

	if (!was || time_after(jiffies, source->retry_at + RETRY_FORGET * was))
		source->retry_delay = RETRY_MIN;
	else
		source->retry_delay = min(2 * was, RETRY_MAX);
	source->retry_at = jiffies + source->retry_delay;
	schedule_delayed_work(&retry_work, RETRY_MIN);
}

/* Sources that have just been switched off. A thread, as a console may be slow. */
static void report_sources(struct work_struct *work)
{
	struct poll_source *source;

	mutex_lock(&poll_source_mutex);
	list_for_each_entry(source, &poll_source_registry, all) {
		if (!READ_ONCE(source->off) || source->reported)
			continue;
		source->reported = true;
		set_retry(source);
		pr_warn("poll source %s of CPU %u is switched off for %lu s: its calls take more than %u ns in idle\n",
			source->name, source->cpu, source->retry_delay / HZ,
			READ_ONCE(poll_source_budget_ns));
	}
	mutex_unlock(&poll_source_mutex);
}

static DECLARE_DELAYED_WORK(report_work, report_sources);

static void poll_source_overrun(struct poll_source *source, u64 took_ns, u64 budget_ns)
{
	source->stats.overruns++;
	source->excess_ns += min(took_ns, EXCESS_CALL * budget_ns);
	if (source->excess_ns < EXCESS_MAX * budget_ns || source->off)
		return;
	WRITE_ONCE(source->off, true);
	/* By a timer: nothing is woken in here. */
	schedule_delayed_work(&report_work, 1);
}

/* A call in idle has ended, which began at @start_ns. Return: the time. */
u64 poll_source_charge(struct poll_source *source, u64 start_ns)
{
	u64 budget_ns = READ_ONCE(poll_source_budget_ns);
	u64 now_ns = local_clock();

	source->stats.peek_ns += now_ns - start_ns;
	if (now_ns - start_ns > budget_ns)
		poll_source_overrun(source, now_ns - start_ns, budget_ns);
	else
		source->excess_ns -= min(source->excess_ns, budget_ns / EXCESS_DECAY);
	return now_ns;
}

#ifdef LIGHTSLEEP_MODULE
void poll_source_budget_exit(void)
{
	cancel_delayed_work_sync(&report_work);
	cancel_delayed_work_sync(&retry_work);
}
#endif

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A device that is a word in memory, for the tests of poll_source.
 *
 * A timer on the CPU that loads the module plays the device: it counts up
 * @produced, and interrupts the CPU of the source unless notifications are
 * suppressed. The driver counts up @consumed. What a real device does to its
 * driver must hold here as well: no event is lost, whoever notices it, and the
 * handler runs where and as an interrupt handler does. @complaints counts what
 * did not.
 *
 * peek_ns, hold_start_ns and handle_ns make the driver as slow as a test wants it, handle_ns
 * also where the event interrupts.
 *
 * @silent adds sources that never have work. They come first in the list of their
 * CPU. @most_in_a_row is the largest number of peeks between which interrupts
 * stayed off: each peek raises an interrupt at its own CPU, which counts from 0 again.
 * Where silent sources take part in polls, @notified_in_poll and @held_in_poll count
 * what happens during one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuidle.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/poll_source.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/smp.h>

static unsigned int cpu;
module_param(cpu, uint, 0444);
MODULE_PARM_DESC(cpu, "the CPU of the source");

static unsigned int period_us = 1000;
module_param(period_us, uint, 0444);
MODULE_PARM_DESC(period_us, "time between events, 0 for a device that is silent (us, default 1000)");

#define BURST_NS NSEC_PER_MSEC

static unsigned int burst = 1;
module_param(burst, uint, 0444);
MODULE_PARM_DESC(burst, "events at the end of each such time, 1 ms apart (default 1)");

static unsigned int peek_ns;
module_param(peek_ns, uint, 0444);
MODULE_PARM_DESC(peek_ns, "time that a look takes (ns)");

static unsigned int slow_every = 1;
module_param(slow_every, uint, 0444);
MODULE_PARM_DESC(slow_every, "only one look in so many does (default 1)");

#define SILENT_MAX 16

static unsigned int silent;
module_param(silent, uint, 0444);
MODULE_PARM_DESC(silent, "sources without events beside the one with events (up to 16)");

static unsigned int silent_peek_ns;
module_param(silent_peek_ns, uint, 0444);
MODULE_PARM_DESC(silent_peek_ns, "time that a look at each of them takes (ns)");

static unsigned int silent_start_ns;
module_param(silent_start_ns, uint, 0444);
MODULE_PARM_DESC(silent_start_ns, "time that each of them takes to refuse a poll (ns, 0: they take part)");

static unsigned int most_in_a_row;
module_param(most_in_a_row, uint, 0444);
MODULE_PARM_DESC(most_in_a_row, "most looks at any source without interrupts in between");

static unsigned int handle_ns;
module_param(handle_ns, uint, 0444);
MODULE_PARM_DESC(handle_ns, "time that the handler takes (ns)");

static bool refuses;
module_param(refuses, bool, 0444);
MODULE_PARM_DESC(refuses, "it can only be held back, after its interrupt");

static unsigned int hold_start_ns;
module_param(hold_start_ns, uint, 0444);
MODULE_PARM_DESC(hold_start_ns, "time that it takes to be held back (ns)");

static bool in_interrupt;

static bool wakes;
module_param(wakes, bool, 0444);
MODULE_PARM_DESC(wakes, "each event wakes a thread on the CPU of the source");

static unsigned int produced;
module_param(produced, uint, 0444);
MODULE_PARM_DESC(produced, "events so far");

static unsigned int consumed;

static unsigned int notified;
module_param(notified, uint, 0444);
MODULE_PARM_DESC(notified, "interrupts that it took");

static unsigned int notified_in_poll;
module_param(notified_in_poll, uint, 0444);
MODULE_PARM_DESC(notified_in_poll, "interrupts during a poll of a silent source");

static unsigned int held_in_poll;
module_param(held_in_poll, uint, 0444);
MODULE_PARM_DESC(held_in_poll, "how often it was to be held back during such a poll");

static unsigned int complaints;
module_param(complaints, uint, 0444);
MODULE_PARM_DESC(complaints, "calls in a wrong context");

static bool suppressed;
module_param(suppressed, bool, 0444);
MODULE_PARM_DESC(suppressed, "it does not interrupt now");

/* A silent source takes part in a poll. Only the CPU of the sources uses it. */
static bool in_poll;

static unsigned int looks;
static unsigned int in_a_row;
static struct hrtimer device;
static struct task_struct *sleeper;

static void spin_ns(u64 ns)
{
	u64 start_ns = local_clock();

	while (ns && local_clock() - start_ns < ns)
		cpu_relax();
}

static void expect(bool right)
{
	if (!right)
		complaints++;
}

static void expect_poll(void)
{
	expect(irqs_disabled() && smp_processor_id() == cpu && rcu_is_watching());
}

static bool work_left(void)
{
	return READ_ONCE(produced) != consumed;
}

static void interrupts_are_on(struct irq_work *work)
{
	in_a_row = 0;
}

static DEFINE_IRQ_WORK(row_end, interrupts_are_on);

static void count_row(void)
{
	if (!silent)
		return;
	most_in_a_row = max(most_in_a_row, ++in_a_row);
	irq_work_queue(&row_end);
}

/* In idle, or in the interrupt of a hit, to hold notifications back after it. */
static bool test_start(struct poll_source *source)
{
	expect_poll();
	expect(in_hardirq() || is_idle_task(current));
	if (refuses && !in_interrupt)
		return false;
	held_in_poll += in_interrupt && in_poll;
	if (in_hardirq())
		spin_ns(hold_start_ns);
	WRITE_ONCE(suppressed, true);
	return true;
}

static bool test_peek(struct poll_source *source)
{
	expect_poll();
	expect(is_idle_task(current) && !in_hardirq());
	count_row();
	if (++looks >= slow_every) {
		looks = 0;
		spin_ns(peek_ns);
	}
	return work_left();
}

static bool notify_again(void)
{
	WRITE_ONCE(suppressed, false);
	smp_mb(); /* pairs with device_event(): one of the two notices the event */
	return work_left();
}

static bool test_stop(struct poll_source *source)
{
	expect_poll();
	return notify_again();
}

/* A thread that sleeps whenever it runs. */
static int sleep_on(void *unused)
{
	while (!kthread_should_stop()) {
		set_current_state(TASK_INTERRUPTIBLE);
		if (!kthread_should_stop())
			schedule();
		__set_current_state(TASK_RUNNING);
	}
	return 0;
}

static void wake_sleeper(void)
{
	if (sleeper)
		wake_up_process(sleeper);
}

static void test_handle(struct poll_source *source)
{
	expect_poll();
	expect(in_hardirq());
	spin_ns(handle_ns);
	do {
		consumed = READ_ONCE(produced);
	} while (notify_again());
	wake_sleeper();
}

static const struct poll_source_ops test_ops = {
	.start = test_start,
	.peek = test_peek,
	.stop = test_stop,
	.handle = test_handle,
	.holds = true,
};

static struct poll_source source = {
	.ops = &test_ops,
	.name = "test",
};

static bool silent_start(struct poll_source *source)
{
	expect_poll();
	spin_ns(silent_start_ns);
	in_poll = !silent_start_ns;
	return in_poll;
}

static bool silent_peek(struct poll_source *source)
{
	expect_poll();
	count_row();
	spin_ns(silent_peek_ns);
	return false;
}

static bool silent_stop(struct poll_source *source)
{
	expect_poll();
	in_poll = false;
	return false;
}

static void silent_handle(struct poll_source *source)
{
	expect(false);
}

static const struct poll_source_ops silent_ops = {
	.start = silent_start,
	.peek = silent_peek,
	.stop = silent_stop,
	.handle = silent_handle,
};

static struct poll_source silent_sources[SILENT_MAX];

static void device_interrupt(void *unused)
{
	notified++;
	notified_in_poll += in_poll;
	spin_ns(handle_ns);
	consumed = READ_ONCE(produced);
	wake_sleeper();
	in_interrupt = true;
	poll_source_notified(&source);
	in_interrupt = false;
}

static call_single_data_t interrupt = CSD_INIT(device_interrupt, NULL);

static ktime_t period(void)
{
	return ns_to_ktime((u64)period_us * NSEC_PER_USEC);
}

static ktime_t until_next_event(void)
{
	return produced % burst ? ns_to_ktime(BURST_NS) : period();
}

static enum hrtimer_restart device_event(struct hrtimer *timer)
{
	WRITE_ONCE(produced, produced + 1);
	smp_mb(); /* pairs with notify_again() */
	/* An interrupt that is on its way (-EBUSY) will notice this event, too. */
	if (!READ_ONCE(suppressed))
		smp_call_function_single_async(cpu, &interrupt);
	hrtimer_forward_now(timer, until_next_event());
	return HRTIMER_RESTART;
}

static void unregister_silent(unsigned int count)
{
	while (count--)
		poll_source_unregister(&silent_sources[count]);
	irq_work_sync(&row_end);
}

static int __init register_silent(void)
{
	unsigned int i;

	if (silent > SILENT_MAX || !burst)
		return -EINVAL;
	for (i = 0; i < silent; i++) {
		int ret;

		silent_sources[i].ops = &silent_ops;
		silent_sources[i].name = "silent";
		silent_sources[i].cpu = cpu;
		ret = poll_source_register(&silent_sources[i]);
		if (ret) {
			unregister_silent(i);
			return ret;
		}
	}
	return 0;
}

static int __init start_sleeper(void)
{
	struct task_struct *task = kthread_create(sleep_on, NULL, "test_poll_source");

	if (IS_ERR(task))
		return PTR_ERR(task);
	kthread_bind(task, cpu);
	wake_up_process(task);
	sleeper = task;
	return 0;
}

static int __init test_init(void)
{
	int ret = register_silent();

	if (ret)
		return ret;
	source.cpu = cpu;
	ret = poll_source_register(&source);
	if (ret)
		goto fail;
	ret = wakes ? start_sleeper() : 0;
	if (ret) {
		poll_source_unregister(&source);
		goto fail;
	}
	hrtimer_setup(&device, device_event, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	if (period_us)
		hrtimer_start(&device, period(), HRTIMER_MODE_REL_PINNED_HARD);
	return 0;

fail:
	unregister_silent(silent);
	return ret;
}

static void test_nothing(void *unused)
{
}

/* The last interrupt is before the call in its CPU's queue: it has run then. */
static void __exit test_exit(void)
{
	hrtimer_cancel(&device);
	smp_call_function_single(cpu, test_nothing, NULL, true);
	poll_source_unregister(&source);
	unregister_silent(silent);
	if (sleeper)
		kthread_stop(sleeper);
	pr_info("%u events, %u noticed, %u complaints\n", produced, consumed, complaints);
}

module_init(test_init);
module_exit(test_exit);
MODULE_DESCRIPTION("poll source for the tests of poll sources");
MODULE_LICENSE("GPL");

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
 * peek_ns and handle_ns make the driver as slow as a test wants it, handle_ns also
 * where the event interrupts.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuidle.h>
#include <linux/hrtimer.h>
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

static unsigned int peek_ns;
module_param(peek_ns, uint, 0444);
MODULE_PARM_DESC(peek_ns, "time that a look takes (ns)");

static unsigned int slow_every = 1;
module_param(slow_every, uint, 0444);
MODULE_PARM_DESC(slow_every, "only one look in so many does (default 1)");

static unsigned int handle_ns;
module_param(handle_ns, uint, 0444);
MODULE_PARM_DESC(handle_ns, "time that the handler takes (ns)");

static unsigned int produced;
module_param(produced, uint, 0444);
MODULE_PARM_DESC(produced, "events so far");

static unsigned int consumed;
module_param(consumed, uint, 0444);
MODULE_PARM_DESC(consumed, "of those, the ones that were noticed");

static unsigned int notified;
module_param(notified, uint, 0444);
MODULE_PARM_DESC(notified, "interrupts that it took");

static unsigned int complaints;
module_param(complaints, uint, 0444);
MODULE_PARM_DESC(complaints, "calls in a wrong context");

static bool suppressed;
module_param(suppressed, bool, 0444);
MODULE_PARM_DESC(suppressed, "it does not interrupt now");

static unsigned int looks;
static struct hrtimer device;

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

/* To linger, in the interrupt of a hit. */
static bool test_start(struct poll_source *source)
{
	expect_poll();
	expect(in_hardirq() || is_idle_task(current));
	WRITE_ONCE(suppressed, true);
	return true;
}

static bool test_peek(struct poll_source *source)
{
	expect_poll();
	expect(is_idle_task(current) && !in_hardirq());
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

static void test_handle(struct poll_source *source)
{
	expect_poll();
	expect(in_hardirq());
	spin_ns(handle_ns);
	do {
		consumed = READ_ONCE(produced);
	} while (notify_again());
}

static const struct poll_source_ops test_ops = {
	.start = test_start,
	.peek = test_peek,
	.stop = test_stop,
	.handle = test_handle,
};

static struct poll_source source = {
	.ops = &test_ops,
	.name = "test",
};

static void device_interrupt(void *unused)
{
	notified++;
	spin_ns(handle_ns);
	consumed = READ_ONCE(produced);
	poll_source_notified(&source);
}

static call_single_data_t interrupt = CSD_INIT(device_interrupt, NULL);

static ktime_t period(void)
{
	return ns_to_ktime((u64)period_us * NSEC_PER_USEC);
}

static enum hrtimer_restart device_event(struct hrtimer *timer)
{
	WRITE_ONCE(produced, produced + 1);
	smp_mb(); /* pairs with notify_again() */
	/* An interrupt that is on its way (-EBUSY) will notice this event, too. */
	if (!READ_ONCE(suppressed))
		smp_call_function_single_async(cpu, &interrupt);
	hrtimer_forward_now(timer, period());
	return HRTIMER_RESTART;
}

static int __init test_init(void)
{
	int ret;

	source.cpu = cpu;
	ret = poll_source_register(&source);
	if (ret)
		return ret;
	hrtimer_setup(&device, device_event, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	if (period_us)
		hrtimer_start(&device, period(), HRTIMER_MODE_REL_PINNED_HARD);
	return 0;
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
	pr_info("%u events, %u noticed, %u complaints\n", produced, consumed, complaints);
}

module_init(test_init);
module_exit(test_exit);
MODULE_DESCRIPTION("poll source for the tests of poll sources");
MODULE_LICENSE("GPL");

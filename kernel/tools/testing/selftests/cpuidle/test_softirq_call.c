// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls a function on an idle CPU whose softirq waits for the caller.
 *
 * The caller holds a lock, with bottom halves disabled as it must, and waits
 * for the function. A softirq that interrupted the idle CPU spins on the lock.
 * An interrupt would call the function nevertheless; an idle task that is to do
 * it without one never gets there. The softirq gives up after a while, which
 * @stuck tells.
 *
 * It is all done, once, as the module is loaded.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

#define GIVE_UP_NS	(500 * NSEC_PER_MSEC)

static unsigned int cpu;
module_param(cpu, uint, 0444);
MODULE_PARM_DESC(cpu, "the CPU that is called, an idle one that polls");

static bool many;
module_param(many, bool, 0444);
MODULE_PARM_DESC(many, "call all other CPUs, not this one alone");

static bool stuck;
module_param(stuck, bool, 0444);
MODULE_PARM_DESC(stuck, "whether the softirq had to give up");

static DEFINE_SPINLOCK(lock);
static bool spinning;

static void spin(struct timer_list *unused)
{
	u64 start = ktime_get_ns();

	WRITE_ONCE(spinning, true);
	while (!spin_trylock(&lock)) {
		if (ktime_get_ns() - start > GIVE_UP_NS) {
			stuck = true;
			return;
		}
		cpu_relax();
	}
	spin_unlock(&lock);
}

static DEFINE_TIMER(timer, spin);

static void nothing(void *unused)
{
}

static int __init test_softirq_call_init(void)
{
	int ret = 0;

	if (cpu >= nr_cpu_ids || !cpu_online(cpu) || cpu == raw_smp_processor_id()) {
		pr_err("cpu: must be another one that is online\n");
		return -EINVAL;
	}

	spin_lock_bh(&lock);
	timer.expires = jiffies + 1;
	add_timer_on(&timer, cpu);
	while (!READ_ONCE(spinning))
		cpu_relax();
	if (many)
		smp_call_function(nothing, NULL, 1);
	else
		ret = smp_call_function_single(cpu, nothing, NULL, 1);
	spin_unlock_bh(&lock);

	timer_delete_sync(&timer);
	return ret;
}
module_init(test_softirq_call_init);

static void __exit test_softirq_call_exit(void)
{
}
module_exit(test_softirq_call_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Calls a function on an idle CPU whose softirq waits for the caller");

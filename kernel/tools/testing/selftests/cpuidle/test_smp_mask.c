// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a function call to several CPUs costs the one who calls.
 *
 * Write "TARGETS CALLS WAIT" to debugfs test_smp_mask/run, from the CPU that is
 * to call: it calls the first TARGETS other CPUs, CALLS times, and waits for
 * them (WAIT is 1) or not. Then read it: what each call took the caller, in ns,
 * a line for each. With TARGETS 0 nobody is called: what measuring takes.
 *
 * Only one call is under way at a time, and before the next one the CPUs have
 * @pause_us to be idle again, which is no part of the figures.
 */

#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/uaccess.h>

#define MAX_CALLS	10000

static unsigned int pause_us = 200;
module_param(pause_us, uint, 0644);
MODULE_PARM_DESC(pause_us, "least time between calls (us, default 200)");

static DEFINE_MUTEX(lock);	/* one run at a time; the results */
static u32 took_ns[MAX_CALLS];
static unsigned int nr_took;
static atomic_t not_called;
static struct dentry *dir;

static void called(void *unused)
{
	atomic_dec(&not_called);
}

/* Call and return what that took; the caller stays on its CPU. */
static u32 call(const struct cpumask *mask, bool wait)
{
	u64 start = ktime_get_ns();

	smp_call_function_many(mask, called, NULL, wait);
	return ktime_get_ns() - start;
}

/* Choose the first @targets online CPUs but this one; false where there are fewer. */
static bool choose(struct cpumask *mask, unsigned int targets)
{
	unsigned int cpu;

	cpumask_clear(mask);
	for_each_online_cpu(cpu) {
		if (cpu != smp_processor_id() && cpumask_weight(mask) < targets)
			cpumask_set_cpu(cpu, mask);
	}
	return cpumask_weight(mask) == targets;
}

static int run(struct cpumask *mask, unsigned int targets, unsigned int calls, bool wait)
{
	nr_took = 0;
	while (nr_took < calls) {
		bool enough;

		/* CPUs may go offline, and the caller migrate, between calls only. */
		preempt_disable();
		enough = choose(mask, targets);
		if (enough) {
			atomic_set(&not_called, targets);
			took_ns[nr_took++] = call(mask, wait);
		}
		preempt_enable();
		if (!enough)
			return -ENXIO;

		/* The functions have to have run before this module may go. */
		while (atomic_read(&not_called))
			cond_resched();
		fsleep(READ_ONCE(pause_us));
		if (signal_pending(current))
			return -EINTR;
	}
	return 0;
}

static ssize_t run_write(struct file *file, const char __user *from, size_t size, loff_t *pos)
{
	unsigned int targets, calls, wait;
	cpumask_var_t mask;
	char text[32];
	ssize_t ret;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = '\0';
	if (sscanf(text, "%u %u %u", &targets, &calls, &wait) != 3 || !calls ||
	    calls > MAX_CALLS || wait > 1)
		return -EINVAL;
	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return -ENOMEM;

	ret = mutex_lock_interruptible(&lock);
	if (!ret) {
		ret = run(mask, targets, calls, wait);
		mutex_unlock(&lock);
	}
	free_cpumask_var(mask);
	return ret ?: size;
}

static int run_show(struct seq_file *m, void *unused)
{
	unsigned int i;

	mutex_lock(&lock);
	for (i = 0; i < nr_took; i++)
		seq_printf(m, "%u\n", took_ns[i]);
	mutex_unlock(&lock);
	return 0;
}

static int run_open(struct inode *inode, struct file *file)
{
	return single_open(file, run_show, NULL);
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.open = run_open,
	.read = seq_read,
	.write = run_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int __init test_smp_mask_init(void)
{
	dir = debugfs_create_dir("test_smp_mask", NULL);
	debugfs_create_file("run", 0600, dir, NULL, &run_fops);
	return 0;
}
module_init(test_smp_mask_init);

static void __exit test_smp_mask_exit(void)
{
	debugfs_remove(dir);
}
module_exit(test_smp_mask_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("What a function call to several CPUs costs");

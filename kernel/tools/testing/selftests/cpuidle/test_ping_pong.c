// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two tasks that wait for each other, on CPUs 0 and 1. Each works for work_ns before it wakes
 * the other one, so that its CPU is idle for as long, and for as long as wakeups take. A shell
 * cannot work for so short a time, nor twice for the same.
 */
#include <linux/completion.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>

static unsigned int work_ns = 100000;
module_param(work_ns, uint, 0444);
MODULE_PARM_DESC(work_ns, "how long each task works before it wakes the other one, in ns");

static struct completion turns[2];
static struct task_struct *tasks[2];
static bool ended;

/* Task context, on its own CPU. */
static int play(void *number)
{
	unsigned long me = (unsigned long)number;

	/* Interruptible: a task that waits for its turn for long is no hung one. */
	while (!kthread_should_stop()) {
		u64 until_ns;

		if (wait_for_completion_interruptible(&turns[me]) || READ_ONCE(ended))
			continue;
		until_ns = ktime_get_ns() + work_ns;
		while (ktime_get_ns() < until_ns)
			cpu_relax();
		complete(&turns[!me]);
	}
	return 0;
}

static void stop(void)
{
	unsigned int i;

	WRITE_ONCE(ended, true);
	for (i = 0; i < 2; i++)
		complete_all(&turns[i]);
	for (i = 0; i < 2; i++)
		if (!IS_ERR_OR_NULL(tasks[i]))
			kthread_stop(tasks[i]);
}

static int __init ping_pong_init(void)
{
	unsigned long i;

	if (!cpu_online(1))
		return -ENODEV;
	for (i = 0; i < 2; i++)
		init_completion(&turns[i]);
	for (i = 0; i < 2; i++) {
		tasks[i] = kthread_create(play, (void *)i, "ping_pong/%lu", i);
		if (IS_ERR(tasks[i])) {
			stop();
			return PTR_ERR(tasks[i]);
		}
		kthread_bind(tasks[i], i);
		wake_up_process(tasks[i]);
	}
	complete(&turns[0]);
	return 0;
}

module_init(ping_pong_init);
module_exit(stop);
MODULE_DESCRIPTION("two tasks that wait for each other, for tests of idle CPUs");
MODULE_LICENSE("GPL");

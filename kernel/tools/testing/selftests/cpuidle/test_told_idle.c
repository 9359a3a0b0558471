// SPDX-License-Identifier: GPL-2.0-only
/*
 * A task on CPU 1 that naps for 100 us at a time, as long as the module is being loaded. With
 * inject=1, its CPU is told to be idle meanwhile, as a thermal driver would. With suspend=1, the
 * machine is, by suspend to idle, and the naps last from the suspend of devices to their return.
 * Who polls for such naps has to let them be where the CPU is told to be idle.
 *
 * User space could do neither: its tasks are frozen, and a virtual machine has no such thermal
 * driver, nor a clock that wakes it. Suspend to idle ends by itself only where timers go on, as
 * they do with every idle driver that has no states of its own for it (stateN/s2idle in sysfs).
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/suspend.h>

#define NAP_US		100
#define INJECTION_MS	10

static bool inject;
module_param(inject, bool, 0444);
MODULE_PARM_DESC(inject, "idle time is injected meanwhile");

static bool suspend;
module_param(suspend, bool, 0444);
MODULE_PARM_DESC(suspend, "the machine is suspended to idle meanwhile");

static unsigned int ms = 3000;
module_param(ms, uint, 0444);
MODULE_PARM_DESC(ms, "for how long");

static unsigned int naps;
module_param(naps, uint, 0444);
MODULE_PARM_DESC(naps, "read-only: how many there were");

/* Comes before whoever injects idle time. */
static int nap(void *unused)
{
	u64 until_ns = 0;

	sched_set_fifo(current);
	while (!kthread_should_stop()) {
		/* A constant without CONFIG_SUSPEND. */
		if (suspend && data_race(pm_suspend_target_state) != PM_SUSPEND_TO_IDLE) {
			usleep_range(1000, 2000);
			continue;
		}
		if (!until_ns)
			until_ns = ktime_get_ns() + (u64)ms * NSEC_PER_MSEC;
		usleep_range(NAP_US, NAP_US + 10);
		naps++;
		if (suspend && ktime_get_ns() > until_ns)
			pm_system_wakeup();
	}
	return 0;
}

static int inject_idle(void *unused)
{
	sched_set_fifo_low(current);
	while (!kthread_should_stop())
		play_idle_precise(INJECTION_MS * NSEC_PER_MSEC, U64_MAX);
	return 0;
}

static struct task_struct *start(int (*run)(void *), const char *name)
{
	struct task_struct *task = kthread_create(run, NULL, "told_idle/%s", name);

	if (!IS_ERR(task)) {
		kthread_bind(task, 1);
		wake_up_process(task);
	}
	return task;
}

static int __init told_idle_init(void)
{
	struct task_struct *napper, *injector = NULL;
	int ret = 0;

	if (!cpu_online(1))
		return -ENODEV;
	napper = start(nap, "nap");
	if (IS_ERR(napper))
		return PTR_ERR(napper);
	if (inject)
		injector = start(inject_idle, "inject");

	if (IS_ERR(injector))
		ret = PTR_ERR(injector);
	else if (suspend)
		ret = pm_suspend(PM_SUSPEND_TO_IDLE);
	else
		msleep(ms);

	if (!IS_ERR_OR_NULL(injector))
		kthread_stop(injector);
	kthread_stop(napper);
	return ret;
}

/* Nothing is left to undo. */
static void __exit told_idle_exit(void)
{
}

module_init(told_idle_init);
module_exit(told_idle_exit);
MODULE_DESCRIPTION("naps of a CPU that is told to be idle, for tests of idle CPUs");
MODULE_LICENSE("GPL");

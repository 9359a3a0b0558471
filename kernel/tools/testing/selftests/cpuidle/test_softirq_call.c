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
 * With @early, the function is called before the softirq begins: during the interrupt
 * that raises it. @in_hardirq tells whether the function then runs in an interrupt, as some
 * take for granted (nohz_full_kick_func() warns, from 7.3 on).
 *
 * With @entering, the softirq begins where the CPU was about to halt when it was called: the
 * idle code has cleared TIF_POLLING_NRFLAG by then, and finds out that it is not to halt.
 * Another task that wakes up on that CPU in the same microseconds looks like the call, which
 * then comes as an interrupt: @stuck is N, whatever the kernel does. Nothing here tells.
 *
 * It is all done, once, as the module is loaded.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/timer.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>

#define GIVE_UP_NS	(500 * NSEC_PER_MSEC)
/* Until when a CPU has to be about to halt, and how long it may take once it was woken. */
#define ENTER_NS	(20 * NSEC_PER_SEC)
#define WAKE_NS		(50 * NSEC_PER_MSEC)

static unsigned int cpu;
module_param(cpu, uint, 0444);
MODULE_PARM_DESC(cpu, "the CPU that is called, an idle one that polls");

static bool many;
module_param(many, bool, 0444);
MODULE_PARM_DESC(many, "call all other CPUs, not this one alone");

static bool early;
module_param(early, bool, 0444);
MODULE_PARM_DESC(early, "call during the interrupt that raises the softirq");

static bool entering;
module_param(entering, bool, 0444);
MODULE_PARM_DESC(entering, "call while the CPU is about to halt");

static bool stuck;
module_param(stuck, bool, 0444);
MODULE_PARM_DESC(stuck, "whether the softirq had to give up");

static bool in_interrupt_context;
module_param_named(in_hardirq, in_interrupt_context, bool, 0444);
MODULE_PARM_DESC(in_hardirq, "with early: whether the function ran in an interrupt");

static DEFINE_SPINLOCK(lock);
static bool spinning;
static bool interrupted, queued, called;

static void wait_for_lock(void)
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

static void spin(struct timer_list *unused)
{
	wait_for_lock();
}

static DEFINE_TIMER(timer, spin);

static void nothing(void *unused)
{
}

static void end_softirq(struct tasklet_struct *unused)
{
}

static DECLARE_TASKLET(tasklet, end_softirq);
static struct hrtimer interrupt;

/* In an interrupt of the CPU that is called, which waits here until it is. */
static enum hrtimer_restart raise_softirq_late(struct hrtimer *unused)
{
	u64 start = ktime_get_ns();

	WRITE_ONCE(interrupted, true);
	while (!READ_ONCE(queued) && ktime_get_ns() - start < GIVE_UP_NS)
		cpu_relax();
	tasklet_schedule(&tasklet);
	return HRTIMER_NORESTART;
}

static void start_interrupt(void *unused)
{
	hrtimer_start(&interrupt, ns_to_ktime(NSEC_PER_MSEC), HRTIMER_MODE_REL_PINNED_HARD);
}

static void note_context(void *unused)
{
	in_interrupt_context = in_hardirq();
	/* Paired with call_early(). */
	smp_store_release(&called, true);
}

static int call_early(void)
{
	static call_single_data_t csd = CSD_INIT(note_context, NULL);
	int ret;

	hrtimer_setup(&interrupt, raise_softirq_late, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
	ret = smp_call_function_single(cpu, start_interrupt, NULL, 1);
	if (ret)
		return ret;
	while (!READ_ONCE(interrupted))
		cpu_relax();
	ret = smp_call_function_single_async(cpu, &csd);
	WRITE_ONCE(queued, true);
	/* Paired with note_context(). */
	while (!ret && !smp_load_acquire(&called))
		cpu_relax();
	hrtimer_cancel(&interrupt);
	tasklet_kill(&tasklet);
	return ret;
}

static int armed;
static bool halts, called_in_time;

static void spin_in_tasklet(struct tasklet_struct *unused)
{
	wait_for_lock();
}

static DECLARE_TASKLET(spinning_tasklet, spin_in_tasklet);

static void raise_tasklet(struct irq_work *unused)
{
	tasklet_schedule(&spinning_tasklet);
}

static DEFINE_IRQ_WORK(raise_work, raise_tasklet);

/*
 * The idle task of the CPU that is called, about to halt: interrupts off, TIF_POLLING_NRFLAG set.
 * The interrupt that is raised here comes as soon as the idle code enables interrupts.
 */
static void about_to_halt(void *unused, int stopped, int dependency)
{
	u64 start = local_clock();

	if (raw_smp_processor_id() != cpu || !stopped || !xchg(&armed, 0))
		return;
	/* It has to run a task first, the one of comes_to_halt() for example. */
	if (need_resched()) {
		WRITE_ONCE(armed, 1);
		return;
	}
	irq_work_queue(&raise_work);
	WRITE_ONCE(halts, true);
	/* Whoever calls a CPU that polls sets TIF_NEED_RESCHED. */
	while (!need_resched() && local_clock() - start < GIVE_UP_NS)
		cpu_relax();
	WRITE_ONCE(called_in_time, need_resched());
}

static void find_tick_stop(struct tracepoint *tp, void *found)
{
	if (!strcmp(tp->name, "tick_stop"))
		*(struct tracepoint **)found = tp;
}

static void run_nothing(struct work_struct *unused)
{
}

static DECLARE_WORK(wake_work, run_nothing);

static int call_all(void)
{
	if (!many)
		return smp_call_function_single(cpu, nothing, NULL, 1);
	smp_call_function(nothing, NULL, 1);
	return 0;
}

/* Has the CPU run a task, so that it is about to halt anew. */
static bool comes_to_halt(void)
{
	u64 start = local_clock();

	schedule_work_on(cpu, &wake_work);
	/* Paired with about_to_halt(), which must not take this wakeup for the call. */
	smp_store_release(&armed, 1);
	while (!READ_ONCE(halts)) {
		/* If about_to_halt() has disarmed it, that tells in a moment what it found. */
		if (local_clock() - start > WAKE_NS && xchg(&armed, 0))
			return false;
		cpu_relax();
	}
	return true;
}

/*
 * With bottom halves disabled meanwhile, as the caller has them, no grace period of RCU ends, and
 * a CPU with callbacks of RCU keeps its tick: so this waits in short turns.
 */
static int call_halting(void)
{
	u64 start = local_clock();
	int ret;

	spin_lock_bh(&lock);
	while (!comes_to_halt()) {
		spin_unlock_bh(&lock);
		if (local_clock() - start > ENTER_NS)
			return -ETIME;
		msleep(20);
		spin_lock_bh(&lock);
	}
	ret = call_all();
	spin_unlock_bh(&lock);
	return ret;
}

static int call_entering(void)
{
	struct tracepoint *tick_stop = NULL;
	int ret;

	for_each_kernel_tracepoint(find_tick_stop, &tick_stop);
	if (!tick_stop)
		return -EOPNOTSUPP;
	ret = tracepoint_probe_register(tick_stop, about_to_halt, NULL);
	if (ret)
		return ret;

	ret = call_halting();
	/* It was called by an interrupt, or too late. */
	if (!ret && !READ_ONCE(called_in_time))
		ret = -EAGAIN;

	tracepoint_probe_unregister(tick_stop, about_to_halt, NULL);
	tracepoint_synchronize_unregister();
	irq_work_sync(&raise_work);
	tasklet_kill(&spinning_tasklet);
	flush_work(&wake_work);
	return ret;
}

static int __init test_softirq_call_init(void)
{
	int ret;

	if (cpu >= nr_cpu_ids || !cpu_online(cpu) || cpu == raw_smp_processor_id()) {
		pr_err("cpu: must be another one that is online\n");
		return -EINVAL;
	}

	if (early)
		return call_early();
	if (entering)
		return call_entering();

	spin_lock_bh(&lock);
	timer.expires = jiffies + 1;
	add_timer_on(&timer, cpu);
	while (!READ_ONCE(spinning))
		cpu_relax();
	ret = call_all();
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

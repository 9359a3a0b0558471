// SPDX-License-Identifier: GPL-2.0-only
/*
 * What does a wake from halt cost on this machine?
 *
 * The halt cost is the time from a wake-up to the woken thread running, on a
 * CPU that halts, less the same on that CPU when it polls. Whatever both have
 * in common (the wake-up itself, the context switch, reading the clock) cancels
 * out; what is left is what polling saves: the interrupt, the way out of the
 * low-power state and, in a guest, the hypervisor. Each of the two is the lower
 * quartile of its samples: other work on the machine or its host only ever adds
 * to a latency, and the result stays in use long after that work is done.
 *
 * A thread bound to the measured CPU sleeps; a worker on another CPU wakes it
 * and reads the clock on the way. A sample counts only if the measured CPU was
 * seen waiting in the intended way just before the wake-up, and halting and
 * polling samples alternate, so that a disturbance hits both alike. On a
 * machine with a single CPU nobody else can wake it: the thread sleeps on a
 * timer there, and is late by more when its CPU halted.
 *
 * Some CPUs, spread over the machine, stand for all; the result is the median
 * of theirs. Isolated CPUs, and those in nohz_full=, are left alone.
 *
 * Context: process context, may sleep; takes about 0.1 s. Callers serialise.
 */
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/tick.h>
#include <linux/topology.h>
#include <linux/workqueue.h>

#include "halt_cost.h"

#define HALT_COST_CPUS		4	/* measured at most */
#define HALT_COST_SAMPLES	25	/* of each way, on each of them */
#define HALT_COST_TRIES		4	/* attempts per sample before giving up */
#define HALT_COST_SETTLE_US	100	/* let the CPU come to rest */
#define HALT_COST_REST_TRIES	50	/* ... this often, before a try is given up */
#define HALT_COST_TIMEOUT	msecs_to_jiffies(200)

/**
 * struct probe - one CPU under measurement
 * @ops: the idle driver
 * @cpu: the measured CPU
 * @thread: sleeps on @cpu until @go
 * @go: wakes @thread
 * @done: @thread ran
 * @alone: nobody else can wake @cpu, so @thread sleeps on a timer after @go
 * @sleep_us: for so long; the CPU has to be idle by then
 * @due_ns: when the timer of @thread was due
 * @woke_ns: when @thread ran
 * @quit: @thread is to leave
 * @samples: wake latencies in ns, [0] from halt, [1] from polling
 */
struct probe {
	const struct halt_cost_ops *ops;
	unsigned int cpu;
	struct task_struct *thread;
	struct completion go;
	struct completion done;
	bool alone;
	unsigned int sleep_us;
	u64 due_ns;
	u64 woke_ns;
	bool quit;
	u64 samples[2][HALT_COST_SAMPLES];
};

static int probe_thread(void *data)
{
	struct probe *probe = data;

	for (;;) {
		wait_for_completion(&probe->go);
		if (READ_ONCE(probe->quit))
			break;
		if (probe->alone) {
			ktime_t due = ktime_add_us(ktime_get(), probe->sleep_us);

			probe->due_ns = ktime_to_ns(due);
			set_current_state(TASK_UNINTERRUPTIBLE);
			schedule_hrtimeout(&due, HRTIMER_MODE_ABS);
		}
		probe->woke_ns = ktime_get_ns();
		complete(&probe->done);
	}

	/* kthread_stop() expects to find the thread. */
	set_current_state(TASK_UNINTERRUPTIBLE);
	while (!kthread_should_stop()) {
		schedule();
		set_current_state(TASK_UNINTERRUPTIBLE);
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

static int probe_go(struct probe *probe)
{
	complete(&probe->go);
	if (!wait_for_completion_timeout(&probe->done, HALT_COST_TIMEOUT))
		return -ETIMEDOUT;
	return 0;
}

/* One sample by a wake-up from this CPU: -EAGAIN if the CPU did not come to rest. */
static int sample_wake(struct probe *probe, enum idle_wait how, u64 *latency_ns)
{
	u64 start_ns;
	int tries, ret;

	/* Once through the thread, so that its CPU enters idle anew. */
	ret = probe_go(probe);
	if (ret)
		return ret;

	for (tries = 0; tries < HALT_COST_REST_TRIES; tries++) {
		usleep_range(HALT_COST_SETTLE_US, 2 * HALT_COST_SETTLE_US);
		preempt_disable();
		if (probe->ops->waits(probe->cpu) && probe->ops->last(probe->cpu) == how)
			break;
		preempt_enable();
	}
	if (tries == HALT_COST_REST_TRIES)
		return -EAGAIN;

	/* Preemption is still off: nothing but an interrupt may come between. */
	start_ns = ktime_get_ns();
	complete(&probe->go);
	preempt_enable();

	if (!wait_for_completion_timeout(&probe->done, HALT_COST_TIMEOUT))
		return -ETIMEDOUT;
	*latency_ns = probe->woke_ns - start_ns;
	return 0;
}

/* One sample by a timer on the measured CPU itself, the only one there is. */
static int sample_timer(struct probe *probe, enum idle_wait how, u64 *latency_ns)
{
	int ret;

	ret = probe_go(probe);
	if (ret)
		return ret;
	if (probe->ops->last(probe->cpu) != how)
		return -EAGAIN;
	*latency_ns = probe->woke_ns - probe->due_ns;
	return 0;
}

static int sample(struct probe *probe, enum idle_wait how, u64 *latency_ns)
{
	int tries = HALT_COST_TRIES;
	int ret;

	probe->ops->force(probe->cpu, how);
	probe->sleep_us = 2 * HALT_COST_SETTLE_US;
	do {
		if (probe->alone)
			ret = sample_timer(probe, how, latency_ns);
		else
			ret = sample_wake(probe, how, latency_ns);
		probe->sleep_us *= 2;
	} while (ret == -EAGAIN && --tries);
	return ret;
}

/* Runs on a CPU other than the measured one, if there is one. */
static long probe_samples(void *data)
{
	struct probe *probe = data;
	int n, ret;

	for (n = 0; n < HALT_COST_SAMPLES; n++) {
		ret = sample(probe, WAIT_HALT, &probe->samples[0][n]);
		if (ret)
			return ret;
		ret = sample(probe, WAIT_POLL, &probe->samples[1][n]);
		if (ret)
			return ret;
	}
	return 0;
}

static int compare_u64(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static u64 quartile_ns(u64 *samples, unsigned int n, unsigned int quartile)
{
	sort(samples, n, sizeof(*samples), compare_u64, NULL);
	return samples[n * quartile / 4];
}

/* Holds the hotplug lock, by way of its caller. */
static int measure_cpu(const struct halt_cost_ops *ops, unsigned int waker, unsigned int cpu,
		       u64 *cost_ns)
{
	struct probe *probe;
	u64 halt_ns, poll_ns;
	int ret;

	probe = kzalloc(sizeof(*probe), GFP_KERNEL);
	if (!probe)
		return -ENOMEM;
	probe->ops = ops;
	probe->cpu = cpu;
	probe->alone = waker == cpu;
	init_completion(&probe->go);
	init_completion(&probe->done);
	probe->thread = kthread_create(probe_thread, probe, "halt_cost/%u", cpu);
	if (IS_ERR(probe->thread)) {
		ret = PTR_ERR(probe->thread);
		goto out_free;
	}
	kthread_bind(probe->thread, cpu);
	wake_up_process(probe->thread);

	ret = work_on_cpu(waker, probe_samples, probe);
	ops->force(cpu, WAIT_FREE);

	/* Wherever it can run: the CPU that it is bound to may have no time for it. */
	WRITE_ONCE(probe->quit, true);
	set_cpus_allowed_ptr(probe->thread, cpu_possible_mask);
	complete(&probe->go);
	kthread_stop(probe->thread);
	if (ret)
		goto out_free;

	halt_ns = quartile_ns(probe->samples[0], HALT_COST_SAMPLES, 1);
	poll_ns = quartile_ns(probe->samples[1], HALT_COST_SAMPLES, 1);
	*cost_ns = halt_ns > poll_ns ? halt_ns - poll_ns : 0;
out_free:
	kfree(probe);
	return ret;
}

/*
 * Somebody wanted to be left alone on the others: no probe, no waker there. 7.2
 * frees the mask, after a grace period, when isolated partitions of cpusets change.
 */
static bool may_use(unsigned int cpu)
{
	bool isolated;

	rcu_read_lock();
	isolated = !cpumask_test_cpu(cpu, housekeeping_cpumask(HK_TYPE_DOMAIN));
	rcu_read_unlock();
	return !isolated && !tick_nohz_full_cpu(cpu);
}

/* The next CPU of another core; without one, an SMT sibling; alone, @cpu itself. */
static unsigned int waker_of(unsigned int cpu)
{
	unsigned int waker = cpu, other;

	for_each_cpu_wrap(other, cpu_online_mask, cpu + 1) {
		if (other == cpu)
			break;
		if (!may_use(other))
			continue;
		waker = other;
		if (!cpumask_test_cpu(other, topology_sibling_cpumask(cpu)))
			break;
	}
	return waker;
}

/**
 * halt_cost_measure - measure what a wake from halt costs
 * @ops: the idle driver, which must be running on all online CPUs
 * @cost_ns: set to the result in ns on success; 0 is a valid one
 *
 * Waits for a CPU that wakes others for as long as it has no time to do so.
 *
 * Return: 0, -EAGAIN if no CPU came to rest for long enough, -ETIMEDOUT if one
 * was too busy to run the thread that is woken, or another negative error.
 */
int halt_cost_measure(const struct halt_cost_ops *ops, u64 *cost_ns)
{
	u64 costs[HALT_COST_CPUS];
	unsigned int stride, cpu, measured = 0, position = 0;
	int ret = -ENODEV;

	cpus_read_lock();
	stride = DIV_ROUND_UP(num_online_cpus(), HALT_COST_CPUS);
	for_each_online_cpu(cpu) {
		if (!may_use(cpu) || position++ % stride)
			continue;
		ret = measure_cpu(ops, waker_of(cpu), cpu, &costs[measured]);
		if (!ret)
			measured++;
	}
	cpus_read_unlock();

	if (!measured)
		return ret;
	*cost_ns = quartile_ns(costs, measured, 2);
	return 0;
}

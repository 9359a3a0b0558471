// SPDX-License-Identifier: GPL-2.0-only
/*
 * What does a wakeup from halt cost on this machine?
 *
 * wake_cost.c asks the programs, but programs answer only where the CPU polls
 * already. This is the figure to begin with: two threads on two CPUs answer each
 * other, as a client and its server do, first with both CPUs halting in between,
 * then with both polling. A round trip has two wakeups. Half of the difference
 * between a round trip halted and one polled is what a wakeup from halt costs:
 * the way out of the low-power state and through the hypervisor, and the interrupt
 * that the waker has to send. (Sleeps are short, so most governors keep the tick.) The threads
 * are small: what programs lose to caches gone cold is for wake_cost.c to find.
 *
 * That depends on how long a CPU had slept. So each side works for a while
 * before it answers, 30, 100 or 400 us. (Without any work, a CPU that polls would have
 * its answer before it becomes idle.) A host that polls for its
 * halted guests (halt_poll_ns of KVM, 200 us by default, 500 us on arm64) hides the cost of
 * short sleeps and not that of long ones. The measurement leaves the host as it is, so
 * a guest does not poll where its host does that already.
 *
 * Halted and polled round trips alternate in short blocks, so that a disturbance
 * hits both alike. A block counts only if whoever polls and halts says that both CPUs
 * really waited in the intended way. The estimate and its interval are those of
 * wake_cost_compare(): medians of differences, which a disturbance hardly moves.
 *
 * A machine with a single CPU has nobody to answer. There a thread sleeps on a
 * timer, for as long as it would work otherwise, and is late by more when its CPU halted.
 * (Where the timer is due before the CPU is idle, it sleeps longer.)
 *
 * Pairs of CPUs, spread over the machine, stand for all; the result is the mean
 * of theirs. The CPUs of a pair are neighbours, mostly of one node: a wakeup from farther
 * away costs more. Isolated CPUs, those in nohz_full=, and those that may not poll or halt are
 * left alone.
 *
 * Context: process context, may sleep; takes about 0.3 s, and 2 s for each pair at
 * most. Callers serialise. The hotplug lock is held only to choose CPUs. A CPU
 * that goes offline meanwhile drives its thread away, which ends the measurement of its
 * pair.
 */
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/hrtimer.h>
#include <linux/idle_poll/halt_cost.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/processor.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/tick.h>
#include <linux/topology.h>

#define HALT_COST_PAIRS		2	/* of CPUs, measured at most */
#define HALT_COST_BLOCK		8	/* round trips that follow each other */
#define HALT_COST_TRIES		4	/* per block before giving up */
#define HALT_COST_TIMEOUT	msecs_to_jiffies(200)	/* for an answer */
#define HALT_COST_PATIENCE	(2UL * HZ)	/* for all that a pair has to tell */
#define HALT_COST_ALONE_NS	(200 * NSEC_PER_USEC)	/* a sleep alone need not be longer */

static const u64 work_ns[HALT_COST_SLEEPS] = {
	30 * NSEC_PER_USEC, 100 * NSEC_PER_USEC, 400 * NSEC_PER_USEC
};

/**
 * struct probe - one pair of CPUs under measurement
 * @ops: who polls and halts
 * @cpu: the CPU of @thread
 * @peer: the CPU that measures; the same as @cpu where there is only one
 * @thread: answers on @cpu
 * @asker: asks and measures on @peer
 * @ask: wakes @thread
 * @answer: wakes the thread that measures
 * @work_ns: how long each side works before it answers; how long @thread sleeps where it is
 *	alone
 * @late_ns: by how much the timer of a thread that is alone was late
 * @measured: @asker is done
 * @result: 0, or what went wrong
 * @costs: what it found, by length of sleep
 * @moved: a CPU went offline, so one of the threads is on another
 * @quit: both threads are to leave
 * @samples: round trips in ns, by way of waiting; lateness, where @thread is alone
 */
struct probe {
	const struct halt_cost_ops *ops;
	unsigned int cpu;
	unsigned int peer;
	struct task_struct *thread;
	struct task_struct *asker;
	struct completion ask;
	struct completion answer;
	struct completion measured;
	int result;
	struct halt_cost costs[HALT_COST_SLEEPS];
	u64 work_ns;
	u64 late_ns;
	bool moved;
	bool quit;
	u32 samples[2][WAKE_COST_SAMPLES];
};

static bool alone(const struct probe *probe)
{
	return probe->cpu == probe->peer;
}

static void work_for(u64 for_ns)
{
	u64 until_ns = ktime_get_ns() + for_ns;

	while (ktime_get_ns() < until_ns)
		cpu_relax();
}

static u64 sleep_on_timer(u64 for_ns)
{
	ktime_t due = ktime_add_ns(ktime_get(), for_ns);

	set_current_state(TASK_UNINTERRUPTIBLE);
	schedule_hrtimeout(&due, HRTIMER_MODE_ABS);
	return ktime_get_ns() - ktime_to_ns(due);
}

/* A CPU that goes offline drives its threads away, for good. By one of our threads. */
static void note_move(struct probe *probe)
{
	if (!is_percpu_thread())
		WRITE_ONCE(probe->moved, true);
}

/* kthread_stop() expects to find the thread. */
static int await_stop(void)
{
	set_current_state(TASK_UNINTERRUPTIBLE);
	while (!kthread_should_stop()) {
		schedule();
		set_current_state(TASK_UNINTERRUPTIBLE);
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

static int answer_thread(void *data)
{
	struct probe *probe = data;

	for (;;) {
		wait_for_completion(&probe->ask);
		if (READ_ONCE(probe->quit))
			break;
		if (alone(probe))
			probe->late_ns = sleep_on_timer(probe->work_ns);
		else
			work_for(probe->work_ns);
		note_move(probe);
		complete(&probe->answer);
	}
	return await_stop();
}

static int round_trip(struct probe *probe, u32 *sample_ns)
{
	u64 start_ns = ktime_get_ns();

	if (READ_ONCE(probe->quit))
		return -ETIMEDOUT;
	complete(&probe->ask);
	if (!wait_for_completion_timeout(&probe->answer, HALT_COST_TIMEOUT))
		return -ETIMEDOUT;
	note_move(probe);
	if (READ_ONCE(probe->moved))
		return -EAGAIN;
	if (alone(probe)) {
		*sample_ns = min_t(u64, probe->late_ns, U32_MAX);
		return 0;
	}
	work_for(probe->work_ns);
	*sample_ns = min_t(u64, ktime_get_ns() - start_ns, U32_MAX);
	return 0;
}

static u64 waits(const struct probe *probe, unsigned int cpu)
{
	return probe->ops->waits(cpu);
}

/*
 * Did both CPUs wait as they were told, in all round trips but a few? The count may begin at 0
 * again where a CPU comes online.
 */
static bool waited(const struct probe *probe, u64 cpu_before, u64 peer_before)
{
	const u64 enough = HALT_COST_BLOCK * 3 / 4;

	return waits(probe, probe->cpu) >= cpu_before + enough &&
	       waits(probe, probe->peer) >= peer_before + enough;
}

/*
 * A slow CPU that is alone may not be idle yet when the timer of a short sleep is due. But a first
 * try in vain, where @tries is 0, may just have been disturbed.
 */
static bool sleep_longer(struct probe *probe, int tries)
{
	if (!tries || !alone(probe) || probe->work_ns >= HALT_COST_ALONE_NS)
		return false;
	probe->work_ns *= 2;
	return true;
}

static int measure_block(struct probe *probe, enum idle_wait how, u32 samples[HALT_COST_BLOCK])
{
	u64 cpu_before, peer_before;
	int tries, n, ret;

	probe->ops->force(probe->cpu, how);
	probe->ops->force(probe->peer, how);
	for (tries = 0; tries < HALT_COST_TRIES; tries += !sleep_longer(probe, tries)) {
		/* The first one brings both sides into step. */
		ret = round_trip(probe, &samples[0]);
		if (ret)
			return ret;
		cpu_before = waits(probe, probe->cpu);
		peer_before = waits(probe, probe->peer);
		for (n = 0; n < HALT_COST_BLOCK; n++) {
			ret = round_trip(probe, &samples[n]);
			if (ret)
				return ret;
		}
		if (waited(probe, cpu_before, peer_before))
			return 0;
	}
	return -EAGAIN;
}

static int measure_blocks(struct probe *probe)
{
	int n, ret;

	for (n = 0; n < WAKE_COST_SAMPLES; n += HALT_COST_BLOCK) {
		ret = measure_block(probe, WAIT_HALT, &probe->samples[0][n]);
		if (ret)
			return ret;
		ret = measure_block(probe, WAIT_POLL, &probe->samples[1][n]);
		if (ret)
			return ret;
	}
	return 0;
}

static void evaluate(struct probe *probe, struct halt_cost *cost)
{
	const unsigned int wakeups = alone(probe) ? 1 : 2;
	u32 *halted = probe->samples[0], *polled = probe->samples[1];
	u32 median_ns;

	wake_cost_compare(&cost->estimate, halted, polled);
	median_ns = polled[WAKE_COST_SAMPLES / 2];
	cost->slept_ns = alone(probe) ? probe->work_ns : median_ns / 2;
	cost->estimate.cost_ns = div_s64(cost->estimate.cost_ns, wakeups);
	cost->estimate.lower_ns = div_s64(cost->estimate.lower_ns, wakeups);
	cost->estimate.upper_ns = div_s64(cost->estimate.upper_ns, wakeups);
	cost->worst_ns = (max(halted[WAKE_COST_SAMPLES * 9 / 10], median_ns) - median_ns) / wakeups;
}

static int ask_thread(void *data)
{
	struct probe *probe = data;
	int n, ret = 0;

	for (n = 0; n < HALT_COST_SLEEPS && !ret; n++) {
		probe->work_ns = work_ns[n];
		ret = measure_blocks(probe);
		if (!ret)
			evaluate(probe, &probe->costs[n]);
	}
	probe->result = ret;
	complete(&probe->measured);
	return await_stop();
}

static struct task_struct *start_bound(int (*run)(void *), struct probe *probe, unsigned int cpu)
{
	struct task_struct *thread = kthread_create(run, probe, "halt_cost/%u", cpu);

	if (!IS_ERR(thread)) {
		kthread_bind(thread, cpu);
		wake_up_process(thread);
	}
	return thread;
}

/*
 * The CPU that the thread is bound to may have no time for it. This one has: we run on it, and
 * it does not go offline before the thread can come. A mask that holds both would leave the
 * thread where it is.
 */
static void stop_here(struct task_struct *thread)
{
	cpus_read_lock();
	set_cpus_allowed_ptr(thread, cpumask_of(raw_smp_processor_id()));
	cpus_read_unlock();
	kthread_stop(thread);
}

static int measure_pair(const struct halt_cost_ops *ops, unsigned int peer, unsigned int cpu,
			struct halt_cost costs[HALT_COST_SLEEPS])
{
	struct probe *probe;
	int ret;

	probe = kzalloc(sizeof(*probe), GFP_KERNEL);
	if (!probe)
		return -ENOMEM;
	probe->ops = ops;
	probe->cpu = cpu;
	probe->peer = peer;
	init_completion(&probe->ask);
	init_completion(&probe->answer);
	init_completion(&probe->measured);
	probe->thread = start_bound(answer_thread, probe, cpu);
	if (IS_ERR(probe->thread)) {
		ret = PTR_ERR(probe->thread);
		goto out_free;
	}
	probe->asker = start_bound(ask_thread, probe, peer);
	if (IS_ERR(probe->asker)) {
		ret = PTR_ERR(probe->asker);
		goto out_thread;
	}

	if (wait_for_completion_timeout(&probe->measured, HALT_COST_PATIENCE)) {
		ret = probe->result;
		memcpy(costs, probe->costs, sizeof(probe->costs));
	} else {
		ret = -ETIMEDOUT;
	}
	WRITE_ONCE(probe->quit, true);
	stop_here(probe->asker);
out_thread:
	WRITE_ONCE(probe->quit, true);
	complete(&probe->ask);
	stop_here(probe->thread);
	ops->force(cpu, WAIT_FREE);
	ops->force(peer, WAIT_FREE);
out_free:
	kfree(probe);
	return ret;
}

/**
 * halt_cost_may_use - may wakeups be measured on this CPU?
 * @cpu: a CPU
 *
 * Return: false where somebody wanted to be left alone: the CPU is isolated, by isolcpus= or by
 * a partition of cpusets, or in nohz_full=.
 */
bool halt_cost_may_use(unsigned int cpu)
{
	bool isolated;

	/* The mask may be freed, after a grace period, when partitions of cpusets change. */
	rcu_read_lock();
	isolated = cpu_is_isolated(cpu);
	rcu_read_unlock();
	return !isolated && !tick_nohz_full_cpu(cpu);
}

/*
 * The next CPU of another core; without one, an SMT sibling; alone, @cpu itself. The caller holds
 * the hotplug lock.
 */
static unsigned int peer_of(const struct halt_cost_ops *ops, unsigned int cpu)
{
	unsigned int peer = cpu, other;

	for_each_cpu_wrap(other, cpu_online_mask, cpu + 1) {
		if (other == cpu)
			break;
		if (!ops->usable(other))
			continue;
		peer = other;
		if (!cpumask_test_cpu(other, topology_sibling_cpumask(cpu)))
			break;
	}
	return peer;
}

/* Chooses CPUs, spread over the machine, and a peer for each; returns how many. */
static unsigned int choose_pairs(const struct halt_cost_ops *ops,
				 unsigned int pairs[HALT_COST_PAIRS][2])
{
	unsigned int stride, cpu, position = 0, chosen = 0;

	cpus_read_lock();
	/* Two CPUs make one pair. */
	stride = max(2U, DIV_ROUND_UP(num_online_cpus(), HALT_COST_PAIRS));
	for_each_online_cpu(cpu) {
		if (!ops->usable(cpu) || position++ % stride)
			continue;
		pairs[chosen][0] = peer_of(ops, cpu);
		pairs[chosen++][1] = cpu;
	}
	cpus_read_unlock();
	return chosen;
}

/* Adds what a pair showed to the sum of all pairs. */
static void add_costs(struct halt_cost sum[HALT_COST_SLEEPS],
		      const struct halt_cost costs[HALT_COST_SLEEPS])
{
	int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++) {
		sum[n].slept_ns += costs[n].slept_ns;
		sum[n].estimate.cost_ns += costs[n].estimate.cost_ns;
		sum[n].estimate.lower_ns += costs[n].estimate.lower_ns;
		sum[n].estimate.upper_ns += costs[n].estimate.upper_ns;
		sum[n].worst_ns = max(sum[n].worst_ns, costs[n].worst_ns);
	}
}

static void mean_costs(struct halt_cost costs[HALT_COST_SLEEPS], unsigned int pairs)
{
	int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++) {
		costs[n].slept_ns = div_u64(costs[n].slept_ns, pairs);
		costs[n].estimate.cost_ns = div_s64(costs[n].estimate.cost_ns, pairs);
		costs[n].estimate.lower_ns = div_s64(costs[n].estimate.lower_ns, pairs);
		costs[n].estimate.upper_ns = div_s64(costs[n].estimate.upper_ns, pairs);
	}
}

/**
 * halt_cost_measure - measure what a wakeup from halt costs
 * @ops: who polls and halts, on all online CPUs that it says are usable; it is asked about CPUs
 *	that have gone offline, too
 * @costs: on success, set to the results by length of sleep: of 30, 100 and 400 us, or 200 us and
 *	more where a CPU is alone, and too slow to be idle before
 *
 * Return: 0, -EPERM if no CPU is usable, -EAGAIN if none waited as it was told for long enough,
 * -ETIMEDOUT if one was too busy to run its thread, or another negative error.
 */
int halt_cost_measure(const struct halt_cost_ops *ops, struct halt_cost costs[HALT_COST_SLEEPS])
{
	struct halt_cost pair[HALT_COST_SLEEPS];
	unsigned int pairs[HALT_COST_PAIRS][2], chosen, n, measured = 0;
	int ret = -EPERM;

	memset(costs, 0, HALT_COST_SLEEPS * sizeof(*costs));
	chosen = choose_pairs(ops, pairs);
	for (n = 0; n < chosen; n++) {
		ret = measure_pair(ops, pairs[n][0], pairs[n][1], pair);
		if (ret)
			continue;
		add_costs(costs, pair);
		measured++;
	}

	if (!measured)
		return ret;
	mean_costs(costs, measured);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * One batch of wakeups of one CPU, and which of them count.
 *
 * A chain of hard interrupts takes the samples, so that nothing but the measured
 * wakeups disturbs the measured CPU. A pinned timer on the waking CPU, the pacer,
 * sends a wakeup. The woken CPU records when it ran and what it had been doing.
 * The pacer checks for that record, at growing intervals. Then it arms itself for
 * the next wakeup, at a random distance: a fixed one could lock to the tick, or
 * to what the CPU does after a wakeup. The task that requested the batch sleeps
 * meanwhile.
 *
 * A sample counts only if the CPU was in the requested state at the launch. The
 * CPU's own cpu_idle tracepoint tells which state it was in, and since when.
 *
 * Ordering. The pacer writes the launch, the woken CPU writes the arrival.
 * @launched and @arrived count them, with release and acquire, and so publish
 * what was written before. At most one wakeup is in flight, so no lock is needed.
 *
 * CPU hotplug. A batch begins with both CPUs online, under the hotplug lock, and
 * then drops the lock. A CPU that goes offline ends the batch that uses it, and
 * waits until nothing of the batch is left. So both CPUs are online throughout a
 * batch. A suspend freezes the threads of a batch and ends it in the same way:
 * its writer is interrupted, and starts over afterwards.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/minmax.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/stdarg.h>
#include <linux/string.h>
#include <linux/wait.h>

#include "latency_batch.h"

/* The first look whether a wake arrived; each further one takes twice as long. */
#define FIRST_LOOK_NS		(10 * NSEC_PER_USEC)

#define THREAD_TIMEOUT		HZ
#define BATCH_TIMEOUT_S		120
#define BATCH_TIMEOUT		(BATCH_TIMEOUT_S * HZ)

static struct latency_batch batch;

/* Guards @running, and the error of a batch that is being ended. */
static DEFINE_SPINLOCK(batch_lock);
static bool running;
static DECLARE_WAIT_QUEUE_HEAD(batch_gone);
static enum cpuhp_state hotplug_state;

/**
 * latency_refuse - say why something cannot be done
 * @error: where to
 * @ret: the error
 * @format: one line, as for printf
 *
 * Return: @ret
 */
int latency_refuse(struct latency_error *error, int ret, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vscnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return ret;
}

/**
 * latency_batch_launch - a wake is being sent
 * @b: the batch
 * @launch_ns: since when the CPU should be waking, CLOCK_MONOTONIC
 */
void latency_batch_launch(struct latency_batch *b, u64 launch_ns)
{
	b->launch_ns = launch_ns;
	/* Pairs with latency_batch_in_flight(): who sees the wake, sees all about it. */
	smp_store_release(&b->launched, b->launched + 1);
}

/* Is a wake on its way? For the woken CPU. */
bool latency_batch_in_flight(const struct latency_batch *b)
{
	/* Pairs with latency_batch_launch(). */
	return smp_load_acquire(&b->launched) != b->arrived;
}

/**
 * latency_batch_arrived - the wake that was sent has arrived
 * @b: the batch
 * @wake_ns: when, CLOCK_MONOTONIC
 *
 * Context: the woken CPU.
 */
void latency_batch_arrived(struct latency_batch *b, u64 wake_ns)
{
	b->wake_ns = wake_ns;
	b->wake_cpu = raw_smp_processor_id();
	b->period = idle_watch_period();
	/* Pairs with batch_pace(): who sees it arrived, sees when and where. */
	smp_store_release(&b->arrived, b->launched);
}

static enum latency_verdict judge(const struct latency_batch *b, const struct latency_sample *s)
{
	const struct latency_request *r = &b->request;
	bool idle = s->entered >= 0;

	if (b->wake_cpu != r->dest)
		return LATENCY_WRONG_CPU;
	if (r->state == LATENCY_STATE_BUSY)
		return idle ? LATENCY_BUSY_WAS_IDLE : LATENCY_OK;
	if (!idle)
		return LATENCY_NOT_IDLE;
	if (r->state != LATENCY_STATE_ANY && s->entered != r->state)
		return LATENCY_WRONG_STATE;
	if (s->settled_ns < r->settle_ns)
		return LATENCY_UNSETTLED;
	if (r->source->polling && s->path != PATH_NONE)
		return LATENCY_NOT_POLLING;
	return LATENCY_OK;
}

/*
 * An interrupt may find the CPU still in its state, as on x86, or run after it
 * has left, as on arm64. Either way the state lasted until after the launch.
 */
static bool idle_at_launch(const struct latency_batch *b)
{
	const struct idle_period *p = &b->period;

	return b->wake_cpu == b->request.dest && p->state >= 0 &&
	       p->entered_ns <= b->launch_ns && (!p->left_ns || p->left_ns >= b->launch_ns);
}

static void keep_sample(struct latency_batch *b)
{
	struct latency_sample *s = &b->samples[b->taken++];

	s->launch_ns = b->launch_ns;
	s->wake_ns = b->wake_ns;
	s->path = b->path;
	s->entered = -1;
	if (idle_at_launch(b)) {
		s->entered = b->period.state;
		s->settled_ns = b->launch_ns - b->period.entered_ns;
	}
	s->verdict = judge(b, s);
}

static void keep_timeout(struct latency_batch *b)
{
	struct latency_sample *s = &b->samples[b->taken++];

	s->launch_ns = b->launch_ns;
	s->entered = -1;
	s->verdict = LATENCY_TIMEOUT;
}

static u32 random_distance_ns(struct latency_batch *b)
{
	u32 span = b->request.max_ns - b->request.min_ns + 1;

	return b->request.min_ns + reciprocal_scale(prandom_u32_state(&b->random), span);
}

static enum hrtimer_restart batch_pace(struct hrtimer *timer)
{
	/* First of all: if the wake is this very timer, this is when it arrives. */
	u64 now_ns = ktime_get_ns();
	struct latency_batch *b = container_of(timer, struct latency_batch, pacer);
	const struct latency_request *r = &b->request;
	bool arrived, late;
	u64 waited_ns;

	if (b->launched == b->taken)
		r->source->launch(b, ktime_to_ns(hrtimer_get_expires(timer)), now_ns);

	now_ns = ktime_get_ns();
	waited_ns = now_ns - b->launch_ns;
	/* Pairs with latency_batch_arrived(). */
	arrived = smp_load_acquire(&b->arrived) == b->launched;
	late = !arrived && waited_ns >= r->timeout_ns;
	if (arrived)
		keep_sample(b);
	else if (late)
		keep_timeout(b);

	if (late || b->taken == r->samples) {
		complete(&b->ended);
		return HRTIMER_NORESTART;
	}
	now_ns += arrived ? random_distance_ns(b) : max_t(u64, waited_ns, FIRST_LOOK_NS);
	hrtimer_set_expires(timer, ns_to_ktime(now_ns));
	return HRTIMER_RESTART;
}

/* On the CPU that the pacer belongs to. */
static void batch_start_pacing(void *data)
{
	struct latency_batch *b = data;

	hrtimer_start(&b->pacer, ns_to_ktime(ktime_get_ns() + random_distance_ns(b)),
		      HRTIMER_MODE_ABS_PINNED_HARD);
}

/* Keeps a CPU busy without delaying the scheduler or RCU. */
static int stay_busy(void *data)
{
	struct latency_batch *b = data;

	set_user_nice(current, MAX_NICE);
	complete(&b->ready);
	while (!kthread_should_stop()) {
		if (b->request.source->spin)
			b->request.source->spin(b);
		cond_resched_tasks_rcu_qs();
	}
	return 0;
}

static int batch_thread(struct latency_batch *b, struct latency_error *error)
{
	const struct latency_request *r = &b->request;
	int (*function)(void *) = r->state == LATENCY_STATE_BUSY ? stay_busy : r->source->thread;
	struct task_struct *thread;

	if (!function)
		return 0;
	thread = kthread_create(function, b, "latency_test/%u", r->dest);
	if (IS_ERR(thread))
		return latency_refuse(error, PTR_ERR(thread), "cannot start a thread");
	kthread_bind(thread, r->dest);
	b->thread = thread;
	wake_up_process(thread);
	if (!wait_for_completion_timeout(&b->ready, THREAD_TIMEOUT))
		return latency_refuse(error, -ETIMEDOUT, "CPU %u is too busy to run a thread",
				      r->dest);
	return 0;
}

/* Wherever it can run: the CPU that it is bound to may have no time for it. */
static void batch_thread_stop(struct latency_batch *b)
{
	if (!b->thread)
		return;
	set_cpus_allowed_ptr(b->thread, cpu_possible_mask);
	kthread_stop(b->thread);
}

static int check_request(const struct latency_request *r, struct latency_error *error)
{
	const char *why = r->source->unavailable ? r->source->unavailable() : NULL;

	if (why)
		return latency_refuse(error, -ENODEV, "source %s cannot be used: %s",
				      r->source->name, why);
	if (r->dest >= nr_cpu_ids || !cpu_online(r->dest))
		return latency_refuse(error, -ENODEV, "dest: CPU %u is not online", r->dest);
	if (r->src >= nr_cpu_ids || !cpu_online(r->src))
		return latency_refuse(error, -ENODEV, "src: CPU %u is not online", r->src);
	if (r->source->local && r->src != r->dest)
		return latency_refuse(error, -EINVAL, "src: source %s wakes its own CPU, here %u",
				      r->source->name, r->dest);
	if (!r->source->local && r->src == r->dest)
		return latency_refuse(error, -EINVAL, "src: must be another CPU than dest, %u",
				      r->dest);
	return 0;
}

static int batch_claim(const struct latency_request *r, struct latency_sample *samples,
		       struct latency_error *error)
{
	bool busy;

	spin_lock(&batch_lock);
	busy = running;
	if (!busy) {
		running = true;
		memset(&batch, 0, sizeof(batch));
		batch.request = *r;
		batch.samples = samples;
		init_completion(&batch.ready);
		init_completion(&batch.ended);
	}
	spin_unlock(&batch_lock);
	if (busy)
		return latency_refuse(error, -EBUSY, "another measurement is running");

	prandom_seed_state(&batch.random, get_random_u64());
	hrtimer_setup(&batch.pacer, batch_pace, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
	return 0;
}

static void batch_release(void)
{
	spin_lock(&batch_lock);
	running = false;
	spin_unlock(&batch_lock);
	wake_up_all(&batch_gone);
}

/* Under the hotplug lock: both CPUs are online, and know of the batch before they are not. */
static int batch_start(struct latency_batch *b, struct latency_error *error)
{
	const struct latency_request *r = &b->request;
	int ret;

	idle_watch_begin(r->dest);
	if (r->source->begin) {
		ret = r->source->begin(b, error);
		if (ret)
			goto out_watch;
	}
	ret = batch_thread(b, error);
	if (ret)
		goto out_thread;
	smp_call_function_single(r->src, batch_start_pacing, b, 1);
	return 0;

out_thread:
	batch_thread_stop(b);
	if (r->source->end)
		r->source->end(b);
out_watch:
	idle_watch_end();
	return ret;
}

/* Stops the wakeups, then the thread that waits for them, then all references to the batch. */
static void batch_stop(struct latency_batch *b)
{
	hrtimer_cancel(&b->pacer);
	batch_thread_stop(b);
	if (b->request.source->end)
		b->request.source->end(b);
	idle_watch_end();
}

static int wait_for_end(struct latency_batch *b, struct latency_error *error)
{
	long left = wait_for_completion_interruptible_timeout(&b->ended, BATCH_TIMEOUT);

	if (left < 0)
		return latency_refuse(error, left, "interrupted");
	if (!left)
		return latency_refuse(error, -ETIMEDOUT, "the batch did not end within %d s",
				      BATCH_TIMEOUT_S);
	if (READ_ONCE(b->error))
		return latency_refuse(error, -ENODEV, "%s", b->error);
	return 0;
}

/**
 * latency_batch_run - take samples
 * @request: of what
 * @samples: room for as many as are requested, zeroed
 * @error: on failure, why
 *
 * A wake that does not arrive in time ends the batch early: its sample is the
 * last one.
 *
 * Context: process context; sleeps until the samples are taken, 120 s at most.
 * Return: how many were taken; -EBUSY if another batch is running, -ENODEV if a
 * CPU is or goes offline or the source is not available, -EINVAL if the CPUs do
 * not fit the source, -ERESTARTSYS if interrupted, -ETIMEDOUT.
 */
int latency_batch_run(const struct latency_request *request, struct latency_sample *samples,
		      struct latency_error *error)
{
	int ret;

	cpus_read_lock();
	ret = check_request(request, error);
	if (!ret)
		ret = batch_claim(request, samples, error);
	if (ret) {
		cpus_read_unlock();
		return ret;
	}
	ret = batch_start(&batch, error);
	cpus_read_unlock();

	if (!ret) {
		ret = wait_for_end(&batch, error);
		batch_stop(&batch);
		if (!ret)
			ret = batch.taken;
	}
	batch_release();
	return ret;
}

static bool in_use(bool (*uses)(const void *), const void *what)
{
	bool used;

	spin_lock(&batch_lock);
	used = running && uses(what);
	spin_unlock(&batch_lock);
	return used;
}

/*
 * Ends the batch, if it is one of those that @uses picks, and waits until it is
 * gone. The caller sees to it that no other such batch can start.
 */
static void end_batch(bool (*uses)(const void *), const void *what, const char *error)
{
	spin_lock(&batch_lock);
	if (running && uses(what)) {
		WRITE_ONCE(batch.error, error);
		complete(&batch.ended);
	}
	spin_unlock(&batch_lock);
	wait_event(batch_gone, !in_use(uses, what));
}

static bool uses_source(const void *source)
{
	return batch.request.source == source;
}

static bool uses_cpu(const void *data)
{
	unsigned int cpu = *(const unsigned int *)data;

	return batch.request.src == cpu || batch.request.dest == cpu;
}

/**
 * latency_batch_abort_source - the source is going away
 * @source: it is unavailable from now on
 * @error: why
 *
 * Context: process context; returns when no batch uses it any more.
 */
void latency_batch_abort_source(const struct wake_source *source, const char *error)
{
	end_batch(uses_source, source, error);
}

/* The CPU is still online, and no batch can start: that takes the hotplug lock. */
static int cpu_goes_offline(unsigned int cpu)
{
	end_batch(uses_cpu, &cpu, "a CPU in use went offline");
	return 0;
}

int latency_batch_init(void)
{
	int ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "cpuidle/latency_test:online",
					    NULL, cpu_goes_offline);

	if (ret < 0)
		return ret;
	hotplug_state = ret;
	return 0;
}

/* All files are closed: no batch runs, and none can start. */
void latency_batch_exit(void)
{
	cpuhp_remove_state_nocalls(hotplug_state);
}

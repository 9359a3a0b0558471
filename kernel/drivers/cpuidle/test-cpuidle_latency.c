// SPDX-License-Identifier: GPL-2.0-only
/*
 * What does it cost to wake a CPU from its idle states? In debugfs, in latency_test/:
 *
 *   run      write a request, SOURCE SRC DEST BUSY SAMPLES MIN_NS MAX_NS TIMEOUT_NS, such as
 *            "ipi 0 1 0 200 50000 150000 1000000000"; returns when the batch is done
 *   samples  the last request, and what was observed; user space decides which samples count
 *
 * A chain of hard interrupts takes the samples, so that nothing but the measured wakeups
 * disturbs the measured CPU. A pinned timer on the waking CPU, the pacer, sends a wakeup.
 * The woken CPU records when it ran and what it had been doing. The pacer checks for that
 * record, at growing intervals. Then it arms itself for the next wakeup, at a random
 * distance: a fixed one could lock to the tick, or to what the CPU does after a wakeup.
 *
 * Ordering. The pacer writes the launch, the woken CPU writes the arrival, both to the
 * same sample. @launched and @arrived count them, with release and acquire, and so publish
 * what was written before. At most one wakeup is in flight, so no lock is needed.
 *
 * CPU hotplug. A batch holds no lock, so a CPU may go offline at any time, and handles
 * what was sent to it before it does. The pacer of a waking CPU moves to another CPU and
 * ends the batch there. A woken CPU that goes offline is no longer watched, even if it
 * comes back before the next launch: the pacer ends the batch then.
 */
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/kstrtox.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/prandom.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <trace/events/power.h>

#include "latency_test.h"

#define TOTAL_MAX_NS		(60ULL * NSEC_PER_SEC)

/* The first check whether a wakeup arrived; each further one takes twice as long. */
#define FIRST_CHECK_NS		(10 * NSEC_PER_USEC)

/* The last time that a CPU was idle. Times are CLOCK_MONOTONIC. */
struct idle_period {
	int state;		/* index of the idle state, -1 if none was entered yet */
	u64 entered_ns, left_ns; /* left at 0 if the CPU is still in it */
};

/* One wakeup, as it was observed. */
struct latency_sample {
	u64 launch_ns;
	u64 wake_ns;		/* 0 if the wakeup did not arrive */
	unsigned int cpu;	/* where it arrived */
	const char *path;	/* "timer", "ipi", "irq", "thread" of an irq, "none" if it polled */
	struct idle_period idle; /* of @dest, as it was when the wakeup arrived there */
};

/*
 * A way to wake a CPU. @launch calls latency_launch() just before it wakes @dest, and
 * ensures that latency_arrived() is called there. It runs in the hard interrupt of the
 * pacer, which was due at @due_ns and ran at @now_ns.
 */
struct wake_source {
	const char *name;
	int (*launch)(u64 due_ns, u64 now_ns);
	int (*begin)(unsigned int dest); /* prepares a batch, in process context; optional */
	void (*end)(void);	/* returns when no wakeup is under way; optional */
};

/* The request, and the one batch that runs. */
static struct {
	char request[128];
	const struct wake_source *source;
	u32 src;		/* the CPU that wakes */
	u32 dest;		/* the CPU that is woken; by its own timer, it is @src */
	u32 busy;		/* a thread keeps @dest from idling */
	u32 count;		/* of samples that are requested */
	u32 min_ns, max_ns;	/* from one arrival to the next launch */
	u32 timeout_ns;		/* the first wakeup that takes longer ends the batch */
	struct latency_sample *samples;
	unsigned int taken;	/* samples that are complete */
	unsigned int launched;	/* wakeups that were sent */
	unsigned int arrived;	/* value of @launched when the last one arrived */
	struct task_struct *thread; /* on @dest, if there is one */
	struct completion ready; /* @thread runs */
	struct completion ended; /* no more samples will come */
	int error;		/* why, if not all came */
	struct hrtimer pacer;
	struct rnd_state random;
} batch;

/*
 * What the kernel itself reports about the woken CPU, while a batch runs. The tracepoint
 * cpu_idle tells which state that CPU entered, when it did, and when it left. It is the
 * state that the governor chose. If the driver entered another one, only the counters in
 * sysfs show that. sched_wake_idle_without_ipi tells that a waker found the CPU polling.
 * It is not exported, so it is looked up by name.
 *
 * A CPU writes its period in its idle loop with interrupts off. It reads the period itself,
 * in an interrupt or in a thread, so no lock is needed. Only the watched CPU reads the
 * clock, and never during a suspend: the writer of the batch is frozen then.
 */
static int watched = -1;
static DEFINE_PER_CPU(struct idle_period, last_period);

/* The CPU that is sending a wakeup, and whether it did so without an interrupt. */
static int waker = -1;
static bool without_ipi;
static struct tracepoint *without_ipi_tracepoint;
static enum cpuhp_state hotplug;

static void saw_cpu_idle(void *data, unsigned int state, unsigned int cpu)
{
	struct idle_period *period = this_cpu_ptr(&last_period);

	if (likely((int)cpu != READ_ONCE(watched)))
		return;
	if (state == PWR_EVENT_EXIT)
		period->left_ns = ktime_get_ns();
	else
		*period = (struct idle_period){ .state = state, .entered_ns = ktime_get_ns() };
}

/* Runs on the CPU that wakes, within its wake_up_process() or its like. */
static void saw_wake_without_ipi(void *data, int cpu)
{
	if (cpu == READ_ONCE(watched) && raw_smp_processor_id() == READ_ONCE(waker))
		without_ipi = true;
}

static void find_without_ipi(struct tracepoint *tp, void *found)
{
	if (!strcmp(tp->name, "sched_wake_idle_without_ipi"))
		*(struct tracepoint **)found = tp;
}

/* In the hotplug thread of the CPU that goes offline. */
static int saw_cpu_offline(unsigned int cpu)
{
	cmpxchg(&watched, (int)cpu, -1);
	return 0;
}

/* On the CPU to be watched: whatever it was in, it leaves it for this. */
static void watch_this_cpu(void *unused)
{
	__this_cpu_write(last_period.state, -1);
	WRITE_ONCE(watched, smp_processor_id());
}

/* A wakeup is about to be sent. The CPU should be waking since @launch_ns. */
void latency_launch(u64 launch_ns)
{
	batch.samples[batch.launched].launch_ns = launch_ns;
	batch.samples[batch.launched].idle.state = -1;
	/* Pairs with batch_thread(): who sees the wakeup, sees all about it. */
	smp_store_release(&batch.launched, batch.launched + 1);
}

/* The wakeup arrived, by @path unless the waker knows that. Context: the woken CPU. */
void latency_arrived(u64 wake_ns, const char *path)
{
	struct latency_sample *sample = &batch.samples[batch.launched - 1];

	if (path)
		sample->path = path;
	sample->cpu = raw_smp_processor_id();
	if (sample->cpu == batch.dest)
		sample->idle = *raw_cpu_ptr(&last_period);
	sample->wake_ns = wake_ns;
	/* Pairs with pace(): who sees it arrived, sees when and where. */
	smp_store_release(&batch.arrived, batch.launched);
}

/* The timer that paces the batch is the wakeup. Its handler runs: it has arrived. */
static int timer_launch(u64 due_ns, u64 now_ns)
{
	latency_launch(due_ns);
	latency_arrived(now_ns, "timer");
	return 0;
}

/*
 * To a CPU that polls, a call sends no interrupt: its idle loop runs the function after
 * it has left the idle state.
 */
static void ipi_arrived(void *unused)
{
	latency_arrived(ktime_get_ns(), in_hardirq() ? "ipi" : "none");
}

static call_single_data_t ipi_call = CSD_INIT(ipi_arrived, NULL);

static int ipi_launch(u64 due_ns, u64 now_ns)
{
	latency_launch(ktime_get_ns());
	return smp_call_function_single_async(batch.dest, &ipi_call);
}

static void ipi_nothing(void *unused)
{
}

/*
 * The last call may still be queued, if it timed out. A CPU empties its queue as a whole,
 * but first runs those calls that somebody waits for. So the first call here may overtake
 * ours; the second runs in a later round. A CPU that goes offline empties its queue, too.
 */
static void ipi_end(void)
{
	smp_call_function_single(batch.dest, ipi_nothing, NULL, 1);
	smp_call_function_single(batch.dest, ipi_nothing, NULL, 1);
}

/*
 * To wake a thread on a CPU that polls, a store to a flag that it watches is enough. A
 * thread that keeps the CPU busy detects the launch itself.
 */
static int store_launch(u64 due_ns, u64 now_ns)
{
	struct latency_sample *sample = &batch.samples[batch.launched];

	without_ipi = batch.busy;
	WRITE_ONCE(waker, batch.src);
	latency_launch(ktime_get_ns());
	if (!batch.busy)
		wake_up_process(batch.thread);
	WRITE_ONCE(waker, -1);
	sample->path = without_ipi ? "none" : "ipi";
	return 0;
}

enum { TIMER, IPI, STORE };

static const struct wake_source sources[] = {
	[TIMER] = { "timer", timer_launch },
	[IPI] = { "ipi", ipi_launch, NULL, ipi_end },
	[STORE] = { "store", store_launch },
#if IS_ENABLED(CONFIG_VIRTIO)
	{ "device", device_launch, device_begin, device_end },
#endif
};

static u32 random_distance_ns(void)
{
	return batch.min_ns + reciprocal_scale(prandom_u32_state(&batch.random),
					       batch.max_ns - batch.min_ns + 1);
}

static enum hrtimer_restart pace(struct hrtimer *timer)
{
	/* First of all: if the wakeup is this very timer, this is when it arrives. */
	s64 now_ns = ktime_get_ns(), waited_ns;
	bool arrived, late, here = raw_smp_processor_id() == batch.src;
	int ret = here && READ_ONCE(watched) == batch.dest ? 0 : -ENODEV;
	struct latency_sample *sample = &batch.samples[batch.taken];

	if (!ret && batch.launched == batch.taken)
		ret = batch.source->launch(ktime_to_ns(hrtimer_get_expires(timer)), now_ns);
	if (ret)
		goto out_end;

	now_ns = ktime_get_ns();
	/* Pairs with latency_arrived(). */
	arrived = smp_load_acquire(&batch.arrived) == batch.launched;
	waited_ns = (arrived ? sample->wake_ns : now_ns) - sample->launch_ns;
	late = waited_ns >= batch.timeout_ns;
	batch.taken += arrived || late;
	if (late || batch.taken == batch.count)
		goto out_end;
	now_ns += arrived ? random_distance_ns() :
		  clamp_t(s64, waited_ns, FIRST_CHECK_NS, batch.timeout_ns - waited_ns);
	hrtimer_set_expires(timer, ns_to_ktime(now_ns));
	return HRTIMER_RESTART;

out_end:
	batch.error = ret;
	complete(&batch.ended);
	return HRTIMER_NORESTART;
}

/* On the CPU that the pacer belongs to. */
static void start_pacing(void *unused)
{
	hrtimer_start(&batch.pacer, ns_to_ktime(ktime_get_ns() + random_distance_ns()),
		      HRTIMER_MODE_ABS_PINNED_HARD);
}

/*
 * On the woken CPU. A busy thread keeps that CPU from idling, without delaying the
 * scheduler or RCU; any other sleeps until a store wakes it.
 */
static int batch_thread(void *unused)
{
	bool in_flight;

	if (batch.busy)
		set_user_nice(current, MAX_NICE);
	complete(&batch.ready);
	for (;;) {
		if (!batch.busy)
			set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		/* Pairs with latency_launch(). */
		in_flight = smp_load_acquire(&batch.launched) != batch.arrived;
		if (in_flight && batch.source == &sources[STORE])
			latency_arrived(ktime_get_ns(), NULL);
		else if (batch.busy)
			cond_resched_tasks_rcu_qs();
		else
			schedule();
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

static int begin_thread(void)
{
	if (!batch.busy && batch.source != &sources[STORE])
		return 0;
	batch.thread = kthread_run_on_cpu(batch_thread, NULL, batch.dest, "latency_test/%u");
	if (IS_ERR(batch.thread))
		return PTR_ERR(batch.thread);
	return wait_for_completion_timeout(&batch.ready, HZ) ? 0 : -ETIMEDOUT;
}

/*
 * Here: the CPU that it is bound to may have no time for it. We run on this one, and it does not
 * go offline before the thread can come. A mask that holds both would leave the thread there.
 */
static void end_thread(void)
{
	if (IS_ERR_OR_NULL(batch.thread))
		return;
	cpus_read_lock();
	set_cpus_allowed_ptr(batch.thread, cpumask_of(raw_smp_processor_id()));
	cpus_read_unlock();
	kthread_stop(batch.thread);
}

static int take_samples(void)
{
	long left;

	if (smp_call_function_single(batch.src, start_pacing, NULL, 1))
		return -ENODEV;
	/* A suspend interrupts this; the write starts over afterwards. */
	left = wait_for_completion_interruptible_timeout(&batch.ended, 120 * HZ);
	hrtimer_cancel(&batch.pacer);
	return left > 0 ? batch.error : left ?: -ETIMEDOUT;
}

static int run_batch(void)
{
	const struct wake_source *source = batch.source;
	int ret;

	init_completion(&batch.ready);
	init_completion(&batch.ended);
	prandom_seed_state(&batch.random, get_random_u64());
	hrtimer_setup(&batch.pacer, pace, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);

	if (batch.src >= nr_cpu_ids || batch.dest >= nr_cpu_ids)
		return -ENODEV;
	cpus_read_lock(); /* a CPU on its way out may be past saw_cpu_offline() */
	ret = smp_call_function_single(batch.dest, watch_this_cpu, NULL, 1);
	cpus_read_unlock();
	if (ret)
		return -ENODEV;
	ret = source->begin ? source->begin(batch.dest) : 0;
	if (!ret) {
		ret = begin_thread() ?: take_samples();
		end_thread();
		if (source->end)
			source->end();
	}
	WRITE_ONCE(watched, -1);
	return ret;
}

/* The numbers of a request, in order. */
static const struct {
	u32 *value, min, max;
} numbers[] = {
	{ &batch.src, 0, U32_MAX },
	{ &batch.dest, 0, U32_MAX },
	{ &batch.busy, 0, 1 },
	{ &batch.count, 1, 10000 },
	{ &batch.min_ns, NSEC_PER_USEC, NSEC_PER_SEC },
	{ &batch.max_ns, NSEC_PER_USEC, NSEC_PER_SEC },
	{ &batch.timeout_ns, NSEC_PER_MSEC, NSEC_PER_SEC },
};

static int read_request(char *text)
{
	const char *word = strsep(&text, " ");
	int n;

	for (n = 0; n < ARRAY_SIZE(sources); n++)
		if (!strcmp(word, sources[n].name))
			batch.source = &sources[n];
	if (!batch.source)
		return -EINVAL;

	for (n = 0; n < ARRAY_SIZE(numbers); n++) {
		word = strsep(&text, " ");
		if (!word || kstrtou32(word, 10, numbers[n].value) ||
		    *numbers[n].value < numbers[n].min || *numbers[n].value > numbers[n].max)
			return -EINVAL;
	}
	if (text || batch.min_ns > batch.max_ns || (u64)batch.count * batch.max_ns > TOTAL_MAX_NS)
		return -EINVAL;
	/* A timer wakes its own CPU, any other source another CPU. */
	return (batch.source == &sources[TIMER]) == (batch.src == batch.dest) ? 0 : -EINVAL;
}

static DEFINE_MUTEX(batch_lock);

static int run_request(char *text)
{
	int ret;

	kvfree(batch.samples);
	memset(&batch, 0, sizeof(batch));
	strscpy(batch.request, text, sizeof(batch.request));
	ret = read_request(text);
	if (ret)
		return ret;
	batch.samples = kvcalloc(batch.count, sizeof(*batch.samples), GFP_KERNEL);
	return batch.samples ? run_batch() : -ENOMEM;
}

static ssize_t run_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	char text[sizeof(batch.request)] = "";
	int ret;

	if (count >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, count))
		return -EFAULT;
	if (!mutex_trylock(&batch_lock))
		return -EBUSY;
	ret = run_request(strim(text));
	mutex_unlock(&batch_lock);
	return ret ?: count;
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.write = run_write,
};

static int samples_show(struct seq_file *seq, void *unused)
{
	const struct latency_sample *s;

	if (mutex_lock_interruptible(&batch_lock))
		return -EINTR;
	seq_printf(seq, "%s\nlaunch_ns wake_ns cpu path state entered_ns left_ns\n", batch.request);
	for (s = batch.samples; s < batch.samples + batch.taken; s++)
		seq_printf(seq, "%llu %llu %u %s %d %llu %llu\n", s->launch_ns, s->wake_ns, s->cpu,
			   s->path ?: "-", s->idle.state, s->idle.entered_ns, s->idle.left_ns);
	mutex_unlock(&batch_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(samples);

static struct dentry *dir;

/* Between batches, the probes return at once. Patched in for each, they disturb all CPUs. */
static int __init latency_test_init(void)
{
	int ret;

	for_each_kernel_tracepoint(find_without_ipi, &without_ipi_tracepoint);
	if (!without_ipi_tracepoint)
		return -ENOENT;
	ret = tracepoint_probe_register(without_ipi_tracepoint, saw_wake_without_ipi, NULL);
	if (ret)
		return ret;
	ret = register_trace_cpu_idle(saw_cpu_idle, NULL);
	if (ret)
		goto out_without_ipi;
	ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, KBUILD_MODNAME, NULL, saw_cpu_offline);
	if (ret < 0)
		goto out_cpu_idle;
	hotplug = ret;
	ret = IS_ENABLED(CONFIG_VIRTIO) ? latency_device_init() : 0;
	if (ret)
		goto out_hotplug;
	dir = debugfs_create_dir("latency_test", NULL);
	debugfs_create_file("run", 0200, dir, NULL, &run_fops);
	debugfs_create_file("samples", 0400, dir, NULL, &samples_fops);
	return 0;

out_hotplug:
	cpuhp_remove_state_nocalls(hotplug);
out_cpu_idle:
	unregister_trace_cpu_idle(saw_cpu_idle, NULL);
out_without_ipi:
	tracepoint_probe_unregister(without_ipi_tracepoint, saw_wake_without_ipi, NULL);
	tracepoint_synchronize_unregister();
	return ret;
}

static void __exit latency_test_exit(void)
{
	debugfs_remove(dir);
	if (IS_ENABLED(CONFIG_VIRTIO))
		latency_device_exit();
	cpuhp_remove_state_nocalls(hotplug);
	unregister_trace_cpu_idle(saw_cpu_idle, NULL);
	tracepoint_probe_unregister(without_ipi_tracepoint, saw_wake_without_ipi, NULL);
	tracepoint_synchronize_unregister();
	kvfree(batch.samples);
}

module_init(latency_test_init);
module_exit(latency_test_exit);
MODULE_DESCRIPTION("Measure what it costs to wake a CPU from its idle states");
MODULE_LICENSE("GPL");

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtqueues as poll sources: idle CPUs that poll look at them, in place of interrupts.
 *
 * While a CPU polls, each queue that would interrupt it has its device suppress
 * interrupts, and the CPU looks at the queue's used index instead. When that moves, the
 * driver does what the interrupt would have led to.
 *
 * Suppression is state of the ring. Whoever changes it must hold what serialises the
 * operations of this queue: a lock of the driver, or NAPI_STATE_SCHED. So the driver has
 * the operations of the source (struct poll_source_ops), and takes that in them:
 *
 * - start(): takes it or fails, as an idle CPU does not wait for a lock. Then
 *   virtqueue_source_may_start() and virtqueue_source_start().
 * - peek(): virtqueue_source_peek(), which needs no lock (virtqueue_poll()).
 * - stop(): takes it and calls virtqueue_enable_cb(), which looks once more. Where it cannot
 *   take it, stop() returns true, and handle() follows.
 * - handle(): what the callback of the queue does, without virtqueue_source_interrupted().
 *   It has to leave interrupts on, or leave that to NAPI.
 *
 * Suppression is a hint, and other CPUs may turn interrupts on meanwhile. An interrupt may
 * therefore come at any time. It and the look both only lead to a pass over the ring, and
 * whichever is second finds nothing to do.
 *
 * Which CPU looks? The one that the queue interrupts, as the last interrupt told. So
 * the source follows the interrupt, whatever moves that: an administrator, or a CPU that
 * goes offline. No transport and no affinity is asked, and a queue that is shared by CPUs
 * is no special case. (Where a transport spreads the interrupts of a queue over CPUs, the
 * source follows ten times a second at most.) A poll that is always faster would hide that
 * an interrupt has moved. It would also have the kernel disable the line, once 99,900 of
 * 100,000 interrupts had nothing to do. So of LEAVE_ONE_OF starts, two in a row fail, and
 * the queue is left to its interrupt. (One is not enough, as the start of a hold may be
 * followed by that of a poll.)
 *
 * An interrupt that a thread handles (threadirqs, PREEMPT_RT) does not count: the
 * administrator gives that thread a priority and CPUs, which a poll would bypass. The
 * queue is not polled, and the log says so.
 *
 * Life. The driver adds its queues when the device is ready, and removes them before it
 * resets the device: when no request is held back yet, or when none can come any more.
 * Callbacks come from before the one until after the other. @enabled says whether they count,
 * and while it is false, @follow is disabled.
 */
#include <linux/device.h>
#include <linux/hardirq.h>
#include <linux/jiffies.h>
#include <linux/kstrtox.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/smp.h>
#include <linux/sysfs.h>
#include <linux/virtio.h>
#include <linux/virtqueue_source.h>

#define LEAVE_ONE_OF	100

/* How long a source stays at least where it has followed its interrupt. */
#define STAY_JIFFIES	(HZ / 10)

/* No interrupt told a CPU yet. */
#define NO_CPU		UINT_MAX

static void follow_interrupt(struct work_struct *work)
{
	struct virtqueue_source *vs = container_of(work, struct virtqueue_source, follow);
	unsigned int cpu = READ_ONCE(vs->cpu);
	int ret;

	if (cpu == NO_CPU)
		return;
	if (vs->registered) {
		if (cpu != vs->source.cpu)
			poll_source_move(&vs->source, cpu);
		return;
	}
	WRITE_ONCE(vs->source.cpu, cpu);
	ret = poll_source_register(&vs->source);
	vs->registered = !ret;
	/* An interrupt that keeps changing its CPU tries again and again. */
	if (ret && !vs->warned) {
		vs->warned = true;
		dev_warn(&vs->vq->vdev->dev, "%s is not polled: error %d\n", vs->vq->name, ret);
	}
}

/**
 * virtqueue_source_init - before the queue exists
 * @vs: of the queue
 */
void virtqueue_source_init(struct virtqueue_source *vs)
{
	memset(vs, 0, sizeof(*vs));
	INIT_LIST_HEAD(&vs->source.node);
	INIT_WORK(&vs->follow, follow_interrupt);
	disable_work(&vs->follow);
}
EXPORT_SYMBOL_GPL(virtqueue_source_init);

/**
 * virtqueue_sources_init - before the device is ready for the first time
 * @sources: of the device
 */
void virtqueue_sources_init(struct virtqueue_sources *sources)
{
	mutex_init(&sources->lock);
	INIT_LIST_HEAD(&sources->list);
	sources->enabled = false;
	sources->told = false;
}
EXPORT_SYMBOL_GPL(virtqueue_sources_init);

static void source_enable(struct virtqueue_source *vs)
{
	/*
	 * An interrupt that saw enabled before source_disable() may store its CPU at any moment.
	 * If it does so before NO_CPU is stored, that is forgotten; if later, its work is queued.
	 */
	vs->warned = false;
	enable_work(&vs->follow);
	WRITE_ONCE(vs->cpu, NO_CPU);
	/* Pairs with virtqueue_source_interrupted(): it needs what virtqueue_sources_add() set. */
	smp_store_release(&vs->enabled, true);
}

static void source_disable(struct virtqueue_source *vs)
{
	WRITE_ONCE(vs->enabled, false);
	disable_work_sync(&vs->follow);
	if (vs->registered)
		poll_source_unregister(&vs->source);
	vs->registered = false;
	/* An interrupt that is late finds that the source is of no CPU, and not of the last one. */
	WRITE_ONCE(vs->source.cpu, NO_CPU);
}

/**
 * virtqueue_sources_add - a queue is ready
 * @sources: of the device
 * @vs: of the queue, after virtqueue_source_init()
 * @vq: the queue
 * @ops: see above
 *
 * Context: process context, after virtio_device_ready().
 */
void virtqueue_sources_add(struct virtqueue_sources *sources, struct virtqueue_source *vs,
			   struct virtqueue *vq, const struct poll_source_ops *ops)
{
	snprintf(vs->name, sizeof(vs->name), "%s-%s", dev_name(&vq->vdev->dev), vq->name);
	vs->source.name = vs->name;
	vs->source.ops = ops;
	vs->vq = vq;
	vs->sources = sources;
	guard(mutex)(&sources->lock);
	list_add_tail(&vs->node, &sources->list);
	if (sources->enabled)
		source_enable(vs);
}
EXPORT_SYMBOL_GPL(virtqueue_sources_add);

/**
 * virtqueue_sources_remove - the device is about to be reset
 * @sources: of the device
 *
 * When this returns, no CPU looks at its queues, and what was noticed is handled.
 *
 * Context: process context, before virtio_reset_device(). Must not hold what the handle()
 * of a queue waits for. Takes the lock of CPU hotplug: no request may wait for the caller
 * meanwhile, as a CPU that goes offline waits for those of its queue.
 */
void virtqueue_sources_remove(struct virtqueue_sources *sources)
{
	struct virtqueue_source *vs, *next;

	guard(mutex)(&sources->lock);
	list_for_each_entry_safe(vs, next, &sources->list, node) {
		if (sources->enabled)
			source_disable(vs);
		list_del(&vs->node);
	}
}
EXPORT_SYMBOL_GPL(virtqueue_sources_remove);

/**
 * virtqueue_sources_show - for the attribute poll_source of a device
 * @sources: of the device
 * @text: where to
 *
 * Return: the number of characters.
 */
ssize_t virtqueue_sources_show(struct virtqueue_sources *sources, char *text)
{
	return sysfs_emit(text, "%d\n", READ_ONCE(sources->enabled));
}
EXPORT_SYMBOL_GPL(virtqueue_sources_show);

/**
 * virtqueue_sources_store - for the attribute poll_source of a device
 * @sources: of the device
 * @text: what was written
 * @size: so many characters
 *
 * Return: @size, or a negative error.
 */
ssize_t virtqueue_sources_store(struct virtqueue_sources *sources, const char *text, size_t size)
{
	struct virtqueue_source *vs;
	bool enabled;
	int ret = kstrtobool(text, &enabled);

	if (ret)
		return ret;
	guard(mutex)(&sources->lock);
	if (enabled == sources->enabled)
		return size;
	WRITE_ONCE(sources->told, false);
	WRITE_ONCE(sources->enabled, enabled);
	list_for_each_entry(vs, &sources->list, node) {
		if (enabled)
			source_enable(vs);
		else
			source_disable(vs);
	}
	return size;
}
EXPORT_SYMBOL_GPL(virtqueue_sources_store);

/* The file says 1, and nobody looks: say why. Two queues that come here at once may both do so. */
static void tell_of_threads(struct virtqueue_source *vs)
{
	if (READ_ONCE(vs->sources->told))
		return;
	WRITE_ONCE(vs->sources->told, true);
	dev_notice(&vs->vq->vdev->dev,
		   "not polled: its callbacks run outside of hard interrupts (threadirqs?)\n");
}

/**
 * virtqueue_source_interrupted - the callback of a queue has run
 * @vs: of the queue
 *
 * Called at its end: further interrupts may be held back until the CPU polls.
 *
 * Context: interrupts off. The caller holds nothing that start() takes.
 */
void virtqueue_source_interrupted(struct virtqueue_source *vs)
{
	unsigned int cpu, was;

	/* Pairs with source_enable(). */
	if (!smp_load_acquire(&vs->enabled))
		return;
	if (!in_hardirq()) {
		tell_of_threads(vs);
		return;
	}
	cpu = smp_processor_id();
	was = READ_ONCE(vs->cpu);
	if (was != cpu) {
		/* It may have stayed there for longer than half of what jiffies count. */
		if (was != NO_CPU && jiffies - READ_ONCE(vs->followed) < STAY_JIFFIES)
			return;
		WRITE_ONCE(vs->followed, jiffies);
		WRITE_ONCE(vs->cpu, cpu);
		queue_work(system_dfl_wq, &vs->follow);
	} else {
		poll_source_notified(&vs->source);
	}
}
EXPORT_SYMBOL_GPL(virtqueue_source_interrupted);

/**
 * virtqueue_source_may_start - is it the turn of the poll, and not of the interrupt?
 * @vs: of the queue
 *
 * Context: in start().
 */
bool virtqueue_source_may_start(struct virtqueue_source *vs)
{
	return vs->starts++ % LEAVE_ONE_OF >= 2;
}
EXPORT_SYMBOL_GPL(virtqueue_source_may_start);

/**
 * virtqueue_source_start - suppress interrupts, and remember what has been used so far
 * @vs: of the queue
 *
 * Context: in start(), with what serialises the operations of the queue.
 */
void virtqueue_source_start(struct virtqueue_source *vs)
{
	vs->seen = virtqueue_enable_cb_prepare(vs->vq);
	virtqueue_disable_cb(vs->vq);
}
EXPORT_SYMBOL_GPL(virtqueue_source_start);

/**
 * virtqueue_source_peek - has the device used more?
 * @source: of a queue
 *
 * Context: as peek(). Needs no lock.
 */
bool virtqueue_source_peek(struct poll_source *source)
{
	struct virtqueue_source *vs = container_of(source, struct virtqueue_source, source);

	return virtqueue_poll(vs->vq, vs->seen);
}
EXPORT_SYMBOL_GPL(virtqueue_source_peek);

MODULE_DESCRIPTION("Virtqueues that idle CPUs look at");
MODULE_LICENSE("GPL");

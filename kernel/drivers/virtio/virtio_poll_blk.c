// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of virtio disks as poll sources.
 *
 * Suppression without the driver's knowledge. Whether a queue's interrupts are
 * suppressed is state of the ring, behind the driver's own lock, which nobody
 * else can take. Two CPUs that change it at once can leave it such that the
 * driver thinks that interrupts are on, and the device that they are off: then
 * completions are lost. So a queue is a source only where the following rules out
 * two CPUs:
 *
 *  1. The queue has an interrupt of its own (virtio_poll_core.c looks it up), without
 *     a thread: with threadirqs, users can move that. Its affinity is managed by the
 *     kernel and is a single CPU: users cannot move such an interrupt, and hotplug
 *     shuts it down with its CPU. So the driver's callback runs on this CPU only,
 *     with interrupts off. (irqpoll runs the handlers of shared interrupts only.)
 *  2. The driver changes that state in its callback only. virtio-blk does: it adds
 *     requests from any CPU, but that is other state. (virtio-scsi does not: its
 *     error handler changes it as well. Its disks are not polled.)
 *  3. start(), stop() and handle() run on this CPU only, with interrupts off. So
 *     does what we do right after the driver's callback, in a callback of our own:
 *     to hold back further interrupts, which may start() the source.
 *
 * So all of them come one after the other. In particular, none comes within the
 * callback, and the callback may come at any time between two of them:
 *
 *  - An interrupt may arrive in spite of suppression, which is only a hint. The
 *    callback takes what there is, and ends with interrupts on. Until the next
 *    start(), the first of interrupt and look wins.
 *  - Then, or if the look was first, the other finds nothing to do; all that
 *    vring_interrupt() does is to say so (IRQ_NONE).
 *  - Each start() is followed either by stop(), which turns interrupts on and then
 *    looks once more (virtqueue_enable_cb()), or by handle(), in which the callback
 *    does the same. If that finds nothing, an interrupt's callback took it, and
 *    has turned interrupts on, or they are held back again since, which ends in stop().
 */
#include <linux/cpumask.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/string.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_ring.h>

#include "virtio_poll_source.h"

static bool blk_start(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	if (leave_to_interrupt(queue))
		return false;
	suppress(queue);
	return true;
}

static bool blk_stop(struct poll_source *source)
{
	return !virtqueue_enable_cb(to_queue(source)->vq);
}

/* What calls this holds back notifications by itself. */
static void blk_handle(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	queue->handles = true;
	vring_interrupt(0, queue->vq);
	queue->handles = false;
}

static void blk_callback(struct virtqueue *vq)
{
	struct polled_queue *queue = polled_queue(vq);

	queue->callback(vq);
	if (!queue->handles)
		poll_source_notified(&queue->source);
}

static const struct poll_source_ops blk_ops = {
	.start = blk_start,
	.peek = queue_peek,
	.stop = blk_stop,
	.handle = blk_handle,
	.holds = true,
};

/* The queues of requests that are not polled already. */
static bool blk_find(struct polled_queue *queue)
{
	struct irq_data *data = irq_get_irq_data(queue->irq);
	const struct cpumask *mask = irq_data_get_affinity_mask(data);

	if (!queue->vq->callback || !strstarts(queue->vq->name, "req."))
		return false;
	if (!irqd_affinity_is_managed(data) || cpumask_weight(mask) != 1)
		return false;
	queue->source.cpu = cpumask_first(mask);
	return true;
}

const struct polled_kind polled_blk = {
	.device = VIRTIO_ID_BLOCK,
	.ops = &blk_ops,
	.callback = blk_callback,
	.find = blk_find,
};

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtqueues as poll sources: what is the same for all devices, and what is not.
 */
#ifndef _DRIVERS_VIRTIO_VIRTIO_POLL_SOURCE_H
#define _DRIVERS_VIRTIO_VIRTIO_POLL_SOURCE_H

#include <linux/list.h>
#include <linux/poll_source.h>
#include <linux/types.h>
#include <linux/virtio.h>

struct napi_struct;
struct polled_device;

/**
 * struct polled_queue - a queue that is a source
 * @source: as the idle CPU sees it
 * @device: what the queue belongs to
 * @vq: the queue
 * @callback: its driver's callback
 * @node: in the list of its device
 * @irq: its own interrupt, which nothing else shares and no thread handles
 * @reaches: the CPUs that this interrupts; the kernel keeps that up to date
 * @seen: the used index at the last start(), as virtqueue_poll() takes it
 * @starts: calls of start() so far
 * @handles: the callback runs because a poll has noticed work, not by an interrupt
 * @napi: of a network device, what its driver takes as a lock
 */
struct polled_queue {
	struct poll_source source;
	struct polled_device *device;
	struct virtqueue *vq;
	void (*callback)(struct virtqueue *vq);
	struct list_head node;
	unsigned int irq;
	const struct cpumask *reaches;
	unsigned int seen;
	unsigned int starts;
	bool handles;
	struct napi_struct *napi;
};

/* Of a callback, while it runs. */
struct polled_queue *polled_queue(const struct virtqueue *vq);

/* The interrupt has left the CPU of the source: have the source follow, 0.1 s later. */
void queue_follow(struct polled_queue *queue);

static inline struct polled_queue *to_queue(struct poll_source *source)
{
	return container_of(source, struct polled_queue, source);
}

/*
 * The kernel disables an interrupt that has nothing to do 99,900 times of
 * 100,000, and a poll that is always faster could bring it there. So of
 * LEAVE_ONE_OF starts, two in a row fail, and the queue is left to its interrupt.
 * One is not enough, as the start of a hold may be followed by that of a poll.
 */
#define LEAVE_ONE_OF	100

static inline bool leave_to_interrupt(struct polled_queue *queue)
{
	return queue->starts++ % LEAVE_ONE_OF < 2;
}

/* Suppress interrupts, and remember what has been used so far. */
static inline void suppress(struct polled_queue *queue)
{
	queue->seen = virtqueue_enable_cb_prepare(queue->vq);
	virtqueue_disable_cb(queue->vq);
}

static inline bool queue_peek(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	return virtqueue_poll(queue->vq, queue->seen);
}

/**
 * struct polled_kind - how the queues of one kind of device are polled
 * @device: its virtio ID
 * @ops: of its sources
 * @callback: called in place of the driver's
 * @find: May this queue be polled, and by which CPU? Its interrupt is known. Fills
 *	in the CPU of the source, and what @ops need.
 */
struct polled_kind {
	u32 device;
	const struct poll_source_ops *ops;
	void (*callback)(struct virtqueue *vq);
	bool (*find)(struct polled_queue *queue);
};

extern const struct polled_kind polled_blk;
extern const struct polled_kind polled_net;

#endif /* _DRIVERS_VIRTIO_VIRTIO_POLL_SOURCE_H */

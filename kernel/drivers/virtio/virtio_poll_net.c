// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of virtio network devices, for what they receive, as poll sources.
 *
 * NAPI touches the ring on any CPU, so what holds for disks does not hold here.
 * But it does so under a lock that others may take: NAPI_STATE_SCHED, the bit
 * that says that somebody is about to poll this NAPI instance, and nobody else
 * may. virtio-net changes whether interrupts are suppressed only where it holds
 * it: in its callback once it has got it, in its poll before it gives it back, and
 * where the queue is reset or goes away, as napi_disable() takes it and keeps it.
 * (netconsole polls without it, but with a budget of 0: only what was sent.)
 *
 *  - start() takes the lock as the callback would (napi_schedule_prep()), but has
 *    nobody poll. It fails where somebody holds it: then NAPI is at work anyway, or
 *    the device is closed.
 *  - At a hit, handle() does what the callback has left to do: it has NAPI poll
 *    (__napi_schedule()), in the softirq that follows, and NAPI gives the lock back.
 *  - Without one, stop() turns interrupts on, looks once more, and gives the lock
 *    back. What comes after the look interrupts.
 *  - An interrupt that finds the lock taken, in spite of suppression or between
 *    those steps of stop(), on whatever CPU, leaves a mark (NAPI_STATE_MISSED).
 *    stop() gives the lock back only where there is none, in one step; else NAPI has
 *    to poll, as after a hit. NAPI removes the mark itself.
 *  - NAPI may keep packets to merge more into them (GRO), or may hold back interrupts;
 *    then a timer, which needs the lock, has NAPI poll soon. start() fails while it
 *    runs. It might be set right after that, as NAPI first gives the lock back on some
 *    other CPU, and then sets it; and it might come to nothing, as we have the lock.
 *    But stop() turns interrupts on anyway, and has NAPI poll if it keeps packets.
 *  - Who wants to stop NAPI (napi_disable()) waits until the lock is free, as it
 *    does for a poll: at most for as long as a CPU polls while idle.
 *
 * NAPI that runs in a thread is left alone.
 *
 * As the lock is what counts, the interrupt may be anywhere, and may be moved. The
 * CPU that polls is the one that it had when the source was made.
 *
 * Which NAPI instance belongs to which queue is private to the driver, but where
 * there is only one pair of queues there is no choice. Others are not polled.
 */
#include <linux/atomic.h>
#include <linux/device.h>
#include <linux/hrtimer.h>
#include <linux/irq.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/string.h>
#include <linux/virtio_ids.h>

#include "virtio_poll_source.h"

/* The vector of the first queue; 0 tells of changes of the configuration. */
#define FIRST_VECTOR	1

static bool net_start(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);
	struct napi_struct *napi = queue->napi;

	if (leave_this_one(queue))
		return false;
	if (test_bit(NAPI_STATE_THREADED, &napi->state) || hrtimer_active(&napi->timer))
		return false;
	/* To ask for what is taken would leave a mark. */
	if (test_bit(NAPI_STATE_SCHED, &napi->state) || !napi_schedule_prep(napi))
		return false;
	suppress(queue);
	return true;
}

/* Undoes napi_schedule_prep(), unless NAPI has to poll. */
static bool give_back(struct napi_struct *napi)
{
	unsigned long state = READ_ONCE(napi->state);

	do {
		if (state & NAPIF_STATE_MISSED || napi_keeps_packets(napi))
			return false;
	} while (!try_cmpxchg(&napi->state, &state, state & ~NAPIF_STATE_SCHED));
	return true;
}

static bool net_stop(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	if (virtqueue_enable_cb(queue->vq) && give_back(queue->napi))
		return false;
	virtqueue_disable_cb(queue->vq);
	return true;
}

static void net_handle(struct poll_source *source)
{
	__napi_schedule(to_queue(source)->napi);
}

static const struct poll_source_ops net_ops = {
	.start = net_start,
	.peek = queue_peek,
	.stop = net_stop,
	.handle = net_handle,
};

static int find_netdev(struct device *dev, void *found)
{
	if (dev->class && !strcmp(dev->class->name, "net"))
		*(struct net_device **)found = to_net_dev(dev);
	return 0;
}

/* Its driver adds and removes them before and after it has queues: they stay. */
static struct napi_struct *find_only_napi(struct virtio_device *vdev)
{
	struct napi_struct *napi, *found = NULL;
	struct net_device *netdev = NULL;

	device_for_each_child(&vdev->dev, &netdev, find_netdev);
	if (!netdev)
		return NULL;
	list_for_each_entry(napi, &netdev->napi_list, dev_list) {
		/* That is for what is sent. */
		if (test_bit(NAPI_STATE_NO_BUSY_POLL, &napi->state))
			continue;
		if (found)
			return NULL;
		found = napi;
	}
	return found;
}

static bool net_find(struct polled_queue *queue, const struct virtio_config_ops *transport)
{
	struct virtio_device *vdev = queue->vq->vdev;
	const struct cpumask *mask;
	int irq;

	if (strcmp(queue->vq->name, "input.0") || !dev_is_pci(vdev->dev.parent))
		return false;
	irq = pci_irq_vector(to_pci_dev(vdev->dev.parent), FIRST_VECTOR);
	mask = irq < 0 ? NULL : irq_get_effective_affinity_mask(irq);
	if (!mask || cpumask_empty(mask))
		return false;
	queue->source.cpu = cpumask_first(mask);
	queue->napi = find_only_napi(vdev);
	return queue->napi;
}

const struct polled_kind polled_net = {
	.device = VIRTIO_ID_NET,
	.ops = &net_ops,
	.find = net_find,
};

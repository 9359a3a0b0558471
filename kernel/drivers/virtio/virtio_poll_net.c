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
 * There are two exceptions, and devices with either are left alone. netpoll (netconsole) has
 * NAPI poll without the lock. Its budget of 0 takes no packet out, but may add buffers. With
 * a timeout (gro_flush_timeout), NAPI gives the lock back, sets a timer, and only then the
 * driver suppresses interrupts, until that timer has NAPI poll. The timer does nothing while
 * somebody has the lock, and interrupts would stay off.
 *
 *  - start() takes the lock as the callback would (napi_schedule_prep()), but has
 *    nobody poll. It fails where somebody holds it: then NAPI is at work anyway, or
 *    the device is closed.
 *  - At a hit, handle() does what the callback has left to do: it has NAPI poll
 *    (__napi_schedule()), in the softirq that follows, and NAPI gives the lock back.
 *  - Without one, stop() turns interrupts on, looks once more, and gives the lock
 *    back. What comes after the look interrupts.
 *  - An interrupt that finds the lock taken, in spite of suppression or between
 *    those steps of stop(), on whatever CPU, leaves a mark (NAPI_STATE_MISSED), as does
 *    whoever else asks NAPI to poll. A look that sees it is a hit, too.
 *    stop() gives the lock back only where there is none, in one step; else NAPI has
 *    to poll, as after a hit. NAPI removes the mark itself.
 *  - The timer may outlive the timeout, so start() fails while it runs. Where the timeout is
 *    set to 0 while NAPI gives the lock back, the timer may still come to nothing. But the
 *    end of any poll turns interrupts on, and has NAPI poll if it keeps packets (GRO).
 *  - Who wants to stop NAPI (napi_disable()) waits until the lock is free, as it
 *    does for a poll: at most for as long as a CPU polls while idle, with the softirqs on top.
 *
 * NAPI that runs in a thread is left alone.
 *
 * Nothing is held back after work: NAPI is about to poll then, and has the lock.
 *
 * As the lock is what counts, the interrupt may be anywhere, and may be moved. The
 * source follows it: a CPU that the interrupt no longer reaches polls no more, and
 * has the source move to one that it reaches. Where that CPU is offline, the first
 * interrupt elsewhere does so.
 *
 * Which NAPI instance belongs to which queue is private to the driver, but where
 * there is only one pair of queues there is no choice. Others are not polled.
 */
#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/errno.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/netdevice.h>
#include <linux/string.h>
#include <linux/virtio_ids.h>

#include "virtio_poll_source.h"

static bool interrupt_is_here(const struct polled_queue *queue)
{
	return cpumask_test_cpu(READ_ONCE(queue->source.cpu), queue->reaches);
}

static bool net_start(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);
	struct napi_struct *napi = queue->napi;

	if (!interrupt_is_here(queue)) {
		queue_follow(queue);
		return false;
	}
	/* No start that counts. To ask for what is taken would leave a mark. */
	if (test_bit(NAPI_STATE_SCHED, &napi->state))
		return false;
	if (leave_to_interrupt(queue))
		return false;
	if (test_bit(NAPI_STATE_THREADED, &napi->state) || netdev_has_netpoll(napi->dev))
		return false;
	if (napi_has_timeout(napi) || hrtimer_active(&napi->timer))
		return false;
	if (!napi_schedule_prep(napi))
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

static void net_callback(struct virtqueue *vq)
{
	struct polled_queue *queue = polled_queue(vq);

	poll_source_worked(&queue->source);
	queue->callback(vq);
	if (!interrupt_is_here(queue))
		queue_follow(queue);
}

/* Who has NAPI poll without a packet (AF_XDP, with new buffers) finds the lock taken. */
static bool net_peek(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	return READ_ONCE(queue->napi->state) & NAPIF_STATE_MISSED || queue_peek(source);
}

static const struct poll_source_ops net_ops = {
	.start = net_start,
	.peek = net_peek,
	.stop = net_stop,
	.handle = net_handle,
};

/*
 * A device that can be replaced by another one (VIRTIO_NET_F_STANDBY) has a second child, the
 * failover device. That has no NAPI.
 */
static int find_netdev(struct device *dev, void *found)
{
	struct net_device **netdev = found;

	if (!dev->class || strcmp(dev->class->name, "net"))
		return 0;
	if (list_empty(&to_net_dev(dev)->napi_list))
		return 0;
	if (*netdev)
		return -EEXIST;
	*netdev = to_net_dev(dev);
	return 0;
}

/* Its driver adds and removes them before and after it has queues: they stay. */
static struct napi_struct *find_only_napi(struct virtio_device *vdev)
{
	struct napi_struct *napi, *found = NULL;
	struct net_device *netdev = NULL;

	if (device_for_each_child(&vdev->dev, &netdev, find_netdev) || !netdev)
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

static bool net_find(struct polled_queue *queue)
{
	unsigned int cpu = cpumask_first(queue->reaches);

	if (!queue->vq->callback || strcmp(queue->vq->name, "input.0") || cpu >= nr_cpu_ids)
		return false;
	queue->source.cpu = cpu;
	queue->napi = find_only_napi(queue->vq->vdev);
	return queue->napi;
}

const struct polled_kind polled_net = {
	.device = VIRTIO_ID_NET,
	.ops = &net_ops,
	.callback = net_callback,
	.find = net_find,
};

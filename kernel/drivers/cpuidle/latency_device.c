// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wake source "device": a virtio entropy device interrupts the CPU.
 *
 * Such a device does nothing but complete requests, at once and without side effects.
 * The driver binds to the first one that no other driver has: the module has no alias for
 * it, so udev does not load it instead of virtio-rng. The waking CPU asks for some bytes;
 * the interrupt of the completion is steered to the woken CPU. A latency includes the
 * device itself, as that of a busy CPU does. No batch begins while an answer is overdue.
 */
#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>

#include "latency_test.h"

static DEFINE_MUTEX(lock);	/* held by a batch, and while the device comes or goes */
static struct virtqueue *queue;	/* of the device in use, NULL if none is */
static u64 *answer;		/* what the device writes to */
static bool waiting;		/* a batch waits for answers */
static bool unanswered;		/* a request is not answered yet */
static bool going;		/* the device goes away: the batch that uses it ends */

static void device_answered(struct virtqueue *vq)
{
	u64 now_ns = ktime_get_ns();
	bool waited = READ_ONCE(waiting);
	unsigned int length;

	if (!virtqueue_get_buf(vq, &length))
		return;
	/* Pairs with device_begin(): another batch may wait from here on, and not for this. */
	smp_store_release(&unanswered, false);
	if (waited)
		latency_arrived(now_ns, in_hardirq() ? "irq" : "thread");
}

/*
 * Requests are made in a hard interrupt. Where the device uses the DMA API, that may take locks
 * which sleep with PREEMPT_RT: those of bounce buffers, or of an IOMMU.
 */
static bool may_launch(struct virtio_device *vdev)
{
	return !IS_ENABLED(CONFIG_PREEMPT_RT) || virtio_has_dma_quirk(vdev);
}

/* If it succeeds, the lock is held until device_end(). */
int device_begin(unsigned int dest)
{
	mutex_lock(&lock);
	if (queue && !may_launch(queue->vdev)) {
		mutex_unlock(&lock);
		return -EOPNOTSUPP;
	}
	/* Pairs with device_answered(). */
	if (!queue || smp_load_acquire(&unanswered)) {
		mutex_unlock(&lock);
		return -ENODEV;
	}
	/* If this is not possible, the samples show another CPU. */
	virtqueue_set_affinity(queue, cpumask_of(dest));
	WRITE_ONCE(waiting, true);
	return 0;
}

/* Never at the same time as device_answered(): the last answer has arrived. */
int device_launch(u64 due_ns, u64 now_ns)
{
	struct scatterlist sg;

	if (READ_ONCE(going))
		return -ENODEV;
	sg_init_one(&sg, answer, sizeof(*answer));
	/* Before the device sees the request: one that looks without a kick may answer at once. */
	WRITE_ONCE(unanswered, true);
	latency_launch(ktime_get_ns());
	if (virtqueue_add_inbuf(queue, &sg, 1, &queue, GFP_ATOMIC)) {
		WRITE_ONCE(unanswered, false);
		return -ENODEV; /* broken: somebody pulled it out */
	}
	virtqueue_kick(queue);
	return 0;
}

/* The device may still answer, but no longer to the batch. */
void device_end(void)
{
	WRITE_ONCE(waiting, false);
	virtio_synchronize_cbs(queue->vdev);
	mutex_unlock(&lock);
}

static int device_start(struct virtio_device *vdev)
{
	struct virtqueue *vq;

	mutex_lock(&lock);
	vq = queue ? ERR_PTR(-EBUSY) : virtio_find_single_vq(vdev, device_answered, "input");
	if (!IS_ERR(vq)) {
		virtio_device_ready(vdev);
		unanswered = false;
		queue = vq;
	}
	mutex_unlock(&lock);
	return PTR_ERR_OR_ZERO(vq);
}

/* Waits for the batch that uses the device: for the time that one sample takes. */
static int device_stop(struct virtio_device *vdev)
{
	WRITE_ONCE(going, true);
	mutex_lock(&lock);
	virtio_reset_device(vdev);
	/* A device that could not be restored after suspend has none, and another may have it. */
	if (queue && queue->vdev == vdev) {
		virtqueue_detach_unused_buf(queue);
		queue = NULL;
	}
	vdev->config->del_vqs(vdev);
	WRITE_ONCE(going, false);
	mutex_unlock(&lock);
	return 0;
}

static void device_remove(struct virtio_device *vdev)
{
	device_stop(vdev);
}

/* No device table: see above. */
static const struct virtio_device_id device_ids[] = {
	{ VIRTIO_ID_RNG, VIRTIO_DEV_ANY_ID },
	{ },
};

static struct virtio_driver device_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.owner = THIS_MODULE,
	.id_table = device_ids,
	.probe = device_start,
	.remove = device_remove,
#ifdef CONFIG_PM_SLEEP
	.freeze = device_stop,
	.restore = device_start,
#endif
};

int latency_device_init(void)
{
	int ret = -ENOMEM;

	answer = kmalloc(sizeof(*answer), GFP_KERNEL);
	if (answer)
		ret = register_virtio_driver(&device_driver);
	if (ret)
		kfree(answer);
	return ret;
}

void latency_device_exit(void)
{
	unregister_virtio_driver(&device_driver);
	kfree(answer);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wake source "device": a virtio entropy device interrupts the CPU.
 *
 * Entropy is the one virtio device that does nothing but complete requests, at
 * once and without side effects. The driver here takes one that no other driver
 * has: the module has no alias for it, so udev does not load it instead of
 * virtio-rng. The launch asks for some bytes from the waking CPU; the interrupt
 * of the completion is steered to the CPU that is woken. A latency thus includes
 * the device itself, which the busy baseline does as well.
 *
 * Only one request is ever outstanding. One that was not answered in time keeps
 * the device from being used until it is.
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

#include "latency_batch.h"

#define REQUEST_BYTES	8

/**
 * struct entropy - the device in use
 * @lock: guards @vdev, and @usable while a batch begins
 * @vdev: the device, NULL if there is none
 * @usable: a batch may begin; one that has may go on until it is gone
 * @vq: the queue of the device
 * @buffer: what the device writes to
 * @batch: the batch that waits for answers, NULL if none does
 * @owes: a request is not answered yet
 */
struct entropy {
	struct mutex lock; /* probe, remove, and a batch that begins */
	struct virtio_device *vdev;
	bool usable;
	struct virtqueue *vq;
	void *buffer;
	struct latency_batch *batch;
	bool owes;
};

static struct entropy entropy = {
	.lock = __MUTEX_INITIALIZER(entropy.lock),
};

static void device_answered(struct virtqueue *vq)
{
	u64 now_ns = ktime_get_ns();
	struct latency_batch *batch = READ_ONCE(entropy.batch);
	unsigned int length;

	if (!virtqueue_get_buf(vq, &length))
		return;
	WRITE_ONCE(entropy.owes, false);
	if (!batch)
		return;
	batch->path = PATH_IRQ;
	latency_batch_arrived(batch, now_ns);
}

static const char *device_unavailable(void)
{
	return READ_ONCE(entropy.usable) ? NULL :
	       "no virtio entropy device is bound to " KBUILD_MODNAME;
}

static int device_begin(struct latency_batch *batch, struct latency_error *error)
{
	int ret = 0;

	mutex_lock(&entropy.lock);
	if (!entropy.usable) {
		ret = latency_refuse(error, -ENODEV, "%s", device_unavailable());
	} else if (READ_ONCE(entropy.owes)) {
		ret = latency_refuse(error, -EBUSY, "the device has not answered the last request");
	} else {
		/* Where this cannot be done, the samples tell: wrong-cpu. */
		virtqueue_set_affinity(entropy.vq, cpumask_of(batch->request.dest));
		WRITE_ONCE(entropy.batch, batch);
	}
	mutex_unlock(&entropy.lock);
	return ret;
}

/*
 * Never at the same time as device_answered() for the same queue: nothing is
 * launched before the previous answer has arrived. A request that a broken
 * device does not take times out.
 */
static void device_launch(struct latency_batch *batch, u64 due_ns, u64 now_ns)
{
	struct scatterlist sg;

	sg_init_one(&sg, entropy.buffer, REQUEST_BYTES);
	/* Before the device sees the request: one that looks without a kick may answer at once. */
	WRITE_ONCE(entropy.owes, true);
	latency_batch_launch(batch, ktime_get_ns());
	if (virtqueue_add_inbuf(entropy.vq, &sg, 1, &entropy, GFP_ATOMIC))
		WRITE_ONCE(entropy.owes, false);
	else
		virtqueue_kick(entropy.vq);
}

/* The device may still answer, but no longer to the batch. */
static void device_end(struct latency_batch *batch)
{
	WRITE_ONCE(entropy.batch, NULL);
	virtio_synchronize_cbs(entropy.vdev);
}

const struct wake_source wake_device = {
	.name = "device",
	.unavailable = device_unavailable,
	.begin = device_begin,
	.launch = device_launch,
	.end = device_end,
};

static void device_use(bool yes)
{
	mutex_lock(&entropy.lock);
	WRITE_ONCE(entropy.usable, yes);
	mutex_unlock(&entropy.lock);
}

static int device_start(struct virtio_device *vdev)
{
	struct virtqueue *vq = virtio_find_single_vq(vdev, device_answered, "input");

	if (IS_ERR(vq))
		return PTR_ERR(vq);
	entropy.vq = vq;
	entropy.owes = false;
	virtio_device_ready(vdev);
	device_use(true);
	return 0;
}

static void device_stop(struct virtio_device *vdev)
{
	device_use(false);
	latency_batch_abort_source(&wake_device, "the device was removed");
	virtio_reset_device(vdev);
	vdev->config->del_vqs(vdev);
}

#ifdef CONFIG_PM_SLEEP
static int device_freeze(struct virtio_device *vdev)
{
	device_stop(vdev);
	return 0;
}
#endif

/* Of several devices, the first: others may have another driver. */
static bool device_claim(struct virtio_device *vdev)
{
	bool first;

	mutex_lock(&entropy.lock);
	first = !entropy.vdev;
	if (first)
		entropy.vdev = vdev;
	mutex_unlock(&entropy.lock);
	return first;
}

static void device_disclaim(void)
{
	mutex_lock(&entropy.lock);
	entropy.vdev = NULL;
	mutex_unlock(&entropy.lock);
}

static int device_probe(struct virtio_device *vdev)
{
	int ret = -ENOMEM;

	if (!device_claim(vdev)) {
		dev_info(&vdev->dev, "not used: the module already has another entropy device\n");
		return -ENODEV;
	}
	entropy.buffer = kmalloc(REQUEST_BYTES, GFP_KERNEL);
	if (entropy.buffer)
		ret = device_start(vdev);
	if (ret) {
		kfree(entropy.buffer);
		device_disclaim();
	}
	return ret;
}

static void device_remove(struct virtio_device *vdev)
{
	device_stop(vdev);
	kfree(entropy.buffer);
	device_disclaim();
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
	.probe = device_probe,
	.remove = device_remove,
#ifdef CONFIG_PM_SLEEP
	.freeze = device_freeze,
	.restore = device_start,
#endif
};

int wake_device_init(void)
{
	return register_virtio_driver(&device_driver);
}

void wake_device_exit(void)
{
	unregister_virtio_driver(&device_driver);
}

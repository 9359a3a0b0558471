// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_poll_source: virtqueues as poll sources.
 *
 * The idea: when a CPU polls, each queue that would interrupt it has its device
 * suppress interrupts, and the CPU looks at the queue's used index instead. When
 * that moves, the driver's callback is called, as its interrupt would have.
 *
 * Suppression without the driver's knowledge. Whether a queue's interrupts are
 * suppressed is state of the ring, behind the driver's own lock, which nobody
 * else can take. Two CPUs that change it at once can leave it such that the
 * driver thinks that interrupts are on, and the device that they are off: then
 * completions are lost. So a queue is a source only where it follows from the
 * following that no two CPUs do:
 *
 *  1. The queue has a vector of its own, whose affinity is managed by the kernel
 *     (get_vq_affinity() knows it) and is a single CPU. Users cannot move such an
 *     interrupt, and hotplug does not: it is shut down with its CPU. So the
 *     driver's callback runs on this CPU only, with interrupts off.
 *  2. The driver changes that state in its callback only. Where drivers do so
 *     elsewhere as well (virtio-net in NAPI, wherever that runs; virtio-scsi
 *     in its error handler), nothing can be proven from here, and their devices
 *     are not polled. virtio-blk does not: it adds requests from any CPU, but
 *     that is other state.
 *  3. start(), stop() and handle() run on this CPU only, with interrupts off.
 *
 * So all of them come one after the other. In particular, none comes within the
 * callback, and the callback may come at any time between two of them:
 *
 *  - An interrupt may arrive in spite of suppression, which is only a hint. The
 *    callback takes what there is, and ends with interrupts on. For the rest of
 *    this poll, the first of interrupt and look wins.
 *  - Then, or if the look was first, the other finds nothing to do; all that
 *    vring_interrupt() does is to say so (IRQ_NONE). The kernel disables an
 *    interrupt that says so 99,900 times of 100,000. Therefore one poll of
 *    LEAVE_ONE_OF leaves the queue to its interrupt.
 *  - Each poll ends either with stop(), which turns interrupts on and then looks
 *    once more (virtqueue_enable_cb()), or with handle(), in which the callback
 *    does the same. If that finds nothing, an interrupt's callback took it, and
 *    has turned interrupts on. No suppression outlives a poll by more.
 *
 * A queue lives from the moment its driver calls the device ready (DRIVER_OK) to
 * del_vqs(): through reset, suspend, unbinding and a probe that fails. No
 * notifier tells all of them. So each device gets its own copy of its transport's
 * operations, with those two replaced. Their callers hold the lock of the device
 * or of its parent; module unload takes both before it puts the original back.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/interrupt.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/poll_source.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_ring.h>

/* Ten times as often as the kernel's limit for spurious interrupts needs. */
#define LEAVE_ONE_OF	100

static bool enable = true;
module_param(enable, bool, 0444);
MODULE_PARM_DESC(enable, "poll every device that can be polled (default); else those that are told to");

/**
 * struct polled_queue - a queue that is a source
 * @source: as the idle CPU sees it
 * @vq: the queue
 * @node: in the list of its device
 * @seen: the used index when the poll began, as virtqueue_poll() takes it
 * @polls: polls so far
 */
struct polled_queue {
	struct poll_source source;
	struct virtqueue *vq;
	struct list_head node;
	unsigned int seen;
	unsigned int polls;
};

/**
 * struct polled_device - a device whose queues are sources, or could be
 * @vdev: the device; we hold a reference to it
 * @parent: its parent; to this as well
 * @transport: its operations
 * @ops: a copy, with del_vqs and set_status replaced
 * @node: in @devices
 * @lock: guards what follows
 * @enabled: the user wants it polled
 * @ready: its queues are there
 * @queues: the sources
 */
struct polled_device {
	struct virtio_device *vdev;
	struct device *parent;
	const struct virtio_config_ops *transport;
	struct virtio_config_ops ops;
	struct list_head node;
	struct mutex lock; /* the switch against the device's driver */
	bool enabled;
	bool ready;
	struct list_head queues;
};

/* Guards the list: devices come and go while the module does. */
static DEFINE_MUTEX(devices_mutex);
static LIST_HEAD(devices);

static struct polled_queue *to_queue(struct poll_source *source)
{
	return container_of(source, struct polled_queue, source);
}

static bool queue_start(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	if (++queue->polls % LEAVE_ONE_OF == 0)
		return false;
	queue->seen = virtqueue_enable_cb_prepare(queue->vq);
	virtqueue_disable_cb(queue->vq);
	return true;
}

static bool queue_peek(struct poll_source *source)
{
	struct polled_queue *queue = to_queue(source);

	return virtqueue_poll(queue->vq, queue->seen);
}

static bool queue_stop(struct poll_source *source)
{
	return !virtqueue_enable_cb(to_queue(source)->vq);
}

static void queue_handle(struct poll_source *source)
{
	vring_interrupt(0, to_queue(source)->vq);
}

static const struct poll_source_ops queue_ops = {
	.start = queue_start,
	.peek = queue_peek,
	.stop = queue_stop,
	.handle = queue_handle,
};

static int queue_add(struct polled_device *device, struct virtqueue *vq, unsigned int cpu)
{
	struct polled_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);
	int ret = -ENOMEM;

	if (!queue)
		return ret;
	queue->vq = vq;
	queue->source.ops = &queue_ops;
	queue->source.cpu = cpu;
	queue->source.name = kasprintf(GFP_KERNEL, "%s-%s", dev_name(&device->vdev->dev), vq->name);
	if (queue->source.name)
		ret = poll_source_register(&queue->source);
	if (ret) {
		kfree(queue->source.name);
		kfree(queue);
		return ret;
	}
	list_add_tail(&queue->node, &device->queues);
	return 0;
}

static void remove_queues(struct polled_device *device)
{
	struct polled_queue *queue, *next;

	list_for_each_entry_safe(queue, next, &device->queues, node) {
		poll_source_unregister(&queue->source);
		kfree(queue->source.name);
		kfree(queue);
	}
	INIT_LIST_HEAD(&device->queues);
}

/* See 2. above: of a disk, the queues of requests that are not polled already. */
static bool is_provable(const struct virtqueue *vq)
{
	return vq->callback && vq->name && strstarts(vq->name, "req.");
}

/* The list of queues does not change while the device is ready. */
static void add_queues(struct polled_device *device)
{
	struct virtqueue *vq;

	list_for_each_entry(vq, &device->vdev->vqs, list) {
		const struct cpumask *mask = NULL;
		int ret;

		if (is_provable(vq) && device->transport->get_vq_affinity)
			mask = device->transport->get_vq_affinity(device->vdev, vq->index);
		if (!mask || cpumask_weight(mask) != 1)
			continue;
		ret = queue_add(device, vq, cpumask_first(mask));
		if (ret)
			dev_warn(&device->vdev->dev, "%s is not polled: error %d\n", vq->name, ret);
	}
}

static void update(struct polled_device *device)
{
	lockdep_assert_held(&device->lock);
	if (!device->enabled || !device->ready)
		remove_queues(device);
	else if (list_empty(&device->queues))
		add_queues(device);
}

static void set_ready(struct polled_device *device, bool ready)
{
	mutex_lock(&device->lock);
	device->ready = ready;
	update(device);
	mutex_unlock(&device->lock);
}

/* What the driver calls in place of its transport. */

static struct polled_device *to_device(struct virtio_device *vdev)
{
	return container_of(vdev->config, struct polled_device, ops);
}

static void polled_set_status(struct virtio_device *vdev, u8 status)
{
	struct polled_device *device = to_device(vdev);

	device->transport->set_status(vdev, status);
	if (status & VIRTIO_CONFIG_S_DRIVER_OK && !(status & VIRTIO_CONFIG_S_FAILED))
		set_ready(device, true);
}

static void polled_del_vqs(struct virtio_device *vdev)
{
	struct polled_device *device = to_device(vdev);

	set_ready(device, false);
	device->transport->del_vqs(vdev);
}

/* The switch: /sys/bus/virtio/devices/virtioN/poll_source */

static bool is_wrapped(struct virtio_device *vdev)
{
	return vdev->config->del_vqs == polled_del_vqs;
}

static ssize_t poll_source_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%d\n", to_device(dev_to_virtio(dev))->enabled);
}

static ssize_t poll_source_store(struct device *dev, struct device_attribute *attr,
				 const char *text, size_t size)
{
	struct polled_device *device = to_device(dev_to_virtio(dev));
	bool enabled;
	int ret = kstrtobool(text, &enabled);

	if (ret)
		return ret;
	mutex_lock(&device->lock);
	device->enabled = enabled;
	update(device);
	mutex_unlock(&device->lock);
	return size;
}
static DEVICE_ATTR_RW(poll_source);

/* Devices come and go. Nobody calls the device's operations meanwhile. */

static void device_wrap(struct virtio_device *vdev)
{
	struct polled_device *device;

	if (vdev->id.device != VIRTIO_ID_BLOCK || is_wrapped(vdev))
		return;
	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return;
	device->vdev = vdev;
	get_device(&vdev->dev);
	device->parent = get_device(vdev->dev.parent);
	device->transport = vdev->config;
	device->ops = *vdev->config;
	device->ops.set_status = polled_set_status;
	device->ops.del_vqs = polled_del_vqs;
	device->enabled = enable;
	mutex_init(&device->lock);
	INIT_LIST_HEAD(&device->queues);
	list_add_tail(&device->node, &devices);
	WRITE_ONCE(vdev->config, &device->ops);
	if (device->transport->get_status(vdev) & VIRTIO_CONFIG_S_DRIVER_OK)
		set_ready(device, true);
	if (device_create_file(&vdev->dev, &dev_attr_poll_source))
		dev_warn(&vdev->dev, "no switch for polling\n");
}

static void device_unwrap(struct polled_device *device)
{
	if (device_is_registered(&device->vdev->dev))
		device_remove_file(&device->vdev->dev, &dev_attr_poll_source);
	set_ready(device, false);
	WRITE_ONCE(device->vdev->config, device->transport);
	list_del(&device->node);
}

static void device_free(struct polled_device *device)
{
	/* Somebody who reads the device's configuration may be about to use our copy. */
	synchronize_rcu_tasks();
	put_device(device->parent);
	put_device(&device->vdev->dev);
	kfree(device);
}

/* The caller holds the lock of the parent, and the device has no driver. */
static int device_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct virtio_device *vdev = dev_to_virtio(data);

	mutex_lock(&devices_mutex);
	if (event == BUS_NOTIFY_ADD_DEVICE) {
		device_wrap(vdev);
	} else if (event == BUS_NOTIFY_REMOVED_DEVICE && is_wrapped(vdev)) {
		struct polled_device *device = to_device(vdev);

		device_unwrap(device);
		device_free(device);
	}
	mutex_unlock(&devices_mutex);
	return NOTIFY_DONE;
}

static struct notifier_block device_notifier = {
	.notifier_call = device_event,
};

static void lock_users(struct device *parent, struct virtio_device *vdev)
{
	device_lock(parent);
	device_lock(&vdev->dev);
}

static void unlock_users(struct device *parent, struct virtio_device *vdev)
{
	device_unlock(&vdev->dev);
	device_unlock(parent);
}

static int device_found(struct device *dev, void *unused)
{
	struct virtio_device *vdev = dev_to_virtio(dev);

	lock_users(dev->parent, vdev);
	mutex_lock(&devices_mutex);
	if (device_is_registered(dev))
		device_wrap(vdev);
	mutex_unlock(&devices_mutex);
	unlock_users(dev->parent, vdev);
	return 0;
}

/* Never bound to a device: it is there to be told which bus it is on. */
static const struct virtio_device_id no_device[] = { { } };

static struct virtio_driver bus_member = {
	.driver.name = KBUILD_MODNAME,
	.id_table = no_device,
};

static int __init virtio_poll_source_init(void)
{
	int ret = register_virtio_driver(&bus_member);

	if (ret)
		return ret;
	ret = bus_register_notifier(bus_member.driver.bus, &device_notifier);
	if (ret) {
		unregister_virtio_driver(&bus_member);
		return ret;
	}
	bus_for_each_dev(bus_member.driver.bus, NULL, NULL, device_found);
	return 0;
}

static void __exit virtio_poll_source_exit(void)
{
	struct polled_device *device, *next;

	bus_unregister_notifier(bus_member.driver.bus, &device_notifier);
	list_for_each_entry_safe(device, next, &devices, node) {
		lock_users(device->parent, device->vdev);
		device_unwrap(device);
		unlock_users(device->parent, device->vdev);
		device_free(device);
	}
	unregister_virtio_driver(&bus_member);
}

module_init(virtio_poll_source_init);
module_exit(virtio_poll_source_exit);
MODULE_DESCRIPTION("lets idle CPUs poll virtqueues in place of their interrupts");
MODULE_LICENSE("GPL");

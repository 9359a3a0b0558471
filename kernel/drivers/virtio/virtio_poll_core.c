// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_poll_source: virtqueues as poll sources.
 *
 * The idea: when a CPU polls, each queue that would interrupt it has its device
 * suppress interrupts, and the CPU looks at the queue's used index instead. When
 * that moves, what the interrupt would have led to is done.
 *
 * Suppression is state of the ring, which belongs to the device's driver, and the
 * driver does not know of us. So why this is safe differs between the kinds of
 * devices: virtio_poll_blk.c and virtio_poll_net.c have an argument each. Where
 * there is none, a queue is not polled.
 *
 * A queue lives from the moment its driver calls the device ready (DRIVER_OK) to
 * del_vqs(): through reset, suspend, unbinding and a probe that fails. No
 * notifier tells all of them. So each device gets its own copy of its transport's
 * operations, with those two replaced. Their callers hold the lock of the device
 * or of its parent; module unload takes both before it puts the original back.
 *
 * A queue is polled only where it has an interrupt of its own over PCI (MSI-X). The
 * queue is the cookie that virtio-pci requested that interrupt with: this is how it
 * is found. A shared one has another cookie. Interrupts that a thread handles
 * (threadirqs) are left to it: administrators give these threads priorities and
 * CPUs, which a poll would bypass.
 *
 * Locks, outermost first: the parent's device_lock(), the device's, @devices_mutex,
 * struct polled_device's @lock, then those of poll_source.c. Our callbacks take none.
 * To remove a queue is to put its driver's callback back, wait until the interrupt's
 * handler has returned (synchronize_irq()), and unregister its source. After that
 * nobody holds the queue.
 *
 * poll_source.c takes the lock of CPU hotplug. Where a disk can be reset while it is in use
 * (virtblk_reset_prepare()), its driver holds requests back during del_vqs() and DRIVER_OK. A
 * CPU that goes offline at that moment waits for such requests, with the lock, and neither goes
 * on. The driver of the series removes sources before it holds requests back; a module has no
 * such place. So do not reset a polled disk while CPUs go offline: write 0 to poll_source first.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/irqdesc.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/poll_source.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/workqueue.h>

#include "virtio_poll_source.h"

/* A source follows its interrupt so often at most, as in virtqueue_source.c. */
#define FOLLOW_JIFFIES	(HZ / 10)

static bool enable = true;
module_param(enable, bool, 0444);
MODULE_PARM_DESC(enable, "poll every device that can be polled (default: on); off: only devices whose file poll_source has 1");

static const struct polled_kind * const kinds[] = { &polled_blk, &polled_net };

/**
 * struct polled_device - a device whose queues are sources, or could be
 * @vdev: the device; we hold a reference to it
 * @parent: its parent; to this as well
 * @kind: what kind of device it is
 * @transport: its operations
 * @ops: a copy, with del_vqs and set_status replaced
 * @node: in @devices, then in @retired
 * @follow: moves sources to where their interrupts are
 * @lock: guards what follows
 * @enabled: the user wants it polled
 * @ready: its queues are there
 * @threaded: a queue is not polled, as a thread handles its interrupt
 * @queues: the sources
 * @by_index: the same, by the index of the queue
 */
struct polled_device {
	struct virtio_device *vdev;
	struct device *parent;
	const struct polled_kind *kind;
	const struct virtio_config_ops *transport;
	struct virtio_config_ops ops;
	struct list_head node;
	struct delayed_work follow;
	struct mutex lock; /* the switch against the device's driver */
	bool enabled;
	bool ready;
	bool threaded;
	struct list_head queues;
	struct polled_queue **by_index;
};

/* Guards both lists: devices come and go while the module does. */
static DEFINE_MUTEX(devices_mutex);
static LIST_HEAD(devices);
static LIST_HEAD(retired);

/* The action whose cookie is @vq is its own: no other has one. */
static bool is_its_own(struct irq_desc *desc, const struct virtqueue *vq, bool *threaded)
{
	unsigned long flags;
	bool own;

	raw_spin_lock_irqsave(&desc->lock, flags);
	own = desc->action && desc->action->dev_id == vq && !desc->action->next;
	*threaded = own && desc->action->thread;
	raw_spin_unlock_irqrestore(&desc->lock, flags);
	return own;
}

/* Return: the interrupt of a queue, or 0 if it has none of its own. */
static unsigned int find_irq(const struct virtqueue *vq, bool *threaded)
{
	struct device *parent = vq->vdev->dev.parent;
	unsigned int vector;

	if (!dev_is_pci(parent))
		return 0;
	for (vector = 0; ; vector++) {
		int irq = pci_irq_vector(to_pci_dev(parent), vector);
		struct irq_data *data = irq > 0 ? irq_get_irq_data(irq) : NULL;

		if (!data)
			return 0;
		if (is_its_own(irq_data_to_desc(data), vq, threaded))
			return irq;
	}
}

/* Where its interrupt is, and what its kind needs; false: it cannot be polled. */
static bool queue_find(struct polled_queue *queue)
{
	bool threaded;

	if (!queue->vq->name)
		return false;
	queue->irq = find_irq(queue->vq, &threaded);
	if (!queue->irq)
		return false;
	queue->reaches = irq_data_get_effective_affinity_mask(irq_get_irq_data(queue->irq));
	if (!queue->device->kind->find(queue))
		return false;
	queue->device->threaded |= threaded;
	return !threaded;
}

static int queue_register(struct polled_queue *queue)
{
	struct virtqueue *vq = queue->vq;
	int ret;

	queue->source.name = kasprintf(GFP_KERNEL, "%s-%s", dev_name(&vq->vdev->dev), vq->name);
	if (!queue->source.name)
		return -ENOMEM;
	ret = poll_source_register(&queue->source);
	if (ret)
		kfree(queue->source.name);
	return ret;
}

/* Return: 0, also where the queue cannot be polled, or an error. */
static int queue_add(struct polled_device *device, struct virtqueue *vq)
{
	struct polled_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);
	int ret;

	if (!queue)
		return -ENOMEM;
	queue->vq = vq;
	queue->device = device;
	queue->source.ops = device->kind->ops;
	if (!queue_find(queue)) {
		kfree(queue);
		return 0;
	}
	ret = queue_register(queue);
	if (ret) {
		kfree(queue);
		return ret;
	}
	list_add_tail(&queue->node, &device->queues);
	device->by_index[vq->index] = queue;
	queue->callback = vq->callback;
	/* Whoever is called by that finds the queue in by_index. */
	smp_store_release(&vq->callback, device->kind->callback);
	return 0;
}

static void remove_queues(struct polled_device *device)
{
	struct polled_queue *queue, *next;

	list_for_each_entry_safe(queue, next, &device->queues, node) {
		WRITE_ONCE(queue->vq->callback, queue->callback);
		synchronize_irq(queue->irq);
		poll_source_unregister(&queue->source);
		kfree(queue->source.name);
		kfree(queue);
	}
	INIT_LIST_HEAD(&device->queues);
	kfree(device->by_index);
	device->by_index = NULL;
}

/* All that can be polled, or none. The list of queues does not change while the device is ready. */
static int add_queues(struct polled_device *device)
{
	unsigned int count = 0;
	struct virtqueue *vq;
	int ret = 0;

	device->threaded = false;
	list_for_each_entry(vq, &device->vdev->vqs, list)
		count = max(count, vq->index + 1);
	device->by_index = kcalloc(count, sizeof(*device->by_index), GFP_KERNEL);
	if (!device->by_index)
		return -ENOMEM;
	list_for_each_entry(vq, &device->vdev->vqs, list) {
		ret = queue_add(device, vq);
		if (ret)
			break;
	}
	if (ret)
		remove_queues(device);
	else if (device->threaded)
		dev_notice(&device->vdev->dev,
			   "not polled: its interrupts have threads (threadirqs)\n");
	else if (list_empty(&device->queues))
		dev_info(&device->vdev->dev, "not polled: none of its queues can be\n");
	return ret;
}

static int update(struct polled_device *device)
{
	unsigned int flags;
	int ret = 0;

	lockdep_assert_held(&device->lock);
	/* A disk may take no requests now: its driver calls, or waits for this lock. */
	flags = memalloc_noio_save();
	if (!device->enabled || !device->ready)
		remove_queues(device);
	else if (!device->by_index)
		ret = add_queues(device);
	memalloc_noio_restore(flags);
	return ret;
}

static void follow_interrupts(struct work_struct *work)
{
	struct polled_device *device = container_of(to_delayed_work(work), struct polled_device,
						    follow);
	struct polled_queue *queue;

	mutex_lock(&device->lock);
	list_for_each_entry(queue, &device->queues, node) {
		unsigned int cpu = cpumask_any_and(queue->reaches, cpu_online_mask);

		if (cpu < nr_cpu_ids && !cpumask_test_cpu(queue->source.cpu, queue->reaches))
			poll_source_move(&queue->source, cpu);
	}
	mutex_unlock(&device->lock);
}

void queue_follow(struct polled_queue *queue)
{
	/* By a timer, and not at once: nothing is woken in idle, or again and again. */
	schedule_delayed_work(&queue->device->follow, FOLLOW_JIFFIES);
}

/* A device that cannot be polled goes on as it would without us. */
static void set_ready(struct polled_device *device, bool ready)
{
	int ret;

	mutex_lock(&device->lock);
	device->ready = ready;
	ret = update(device);
	mutex_unlock(&device->lock);
	if (ret)
		dev_warn(&device->vdev->dev, "not polled: error %d\n", ret);
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

struct polled_queue *polled_queue(const struct virtqueue *vq)
{
	/* The interrupt has read vq->callback. Pairs with the release in queue_add(). */
	smp_rmb();
	return to_device(vq->vdev)->by_index[vq->index];
}

/* The switch: /sys/bus/virtio/devices/virtioN/poll_source */

static bool is_wrapped(struct virtio_device *vdev)
{
	return vdev->config->del_vqs == polled_del_vqs;
}

static ssize_t poll_source_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct polled_device *device = to_device(dev_to_virtio(dev));
	bool polled;

	mutex_lock(&device->lock);
	polled = !list_empty(&device->queues);
	mutex_unlock(&device->lock);
	return sysfs_emit(text, "%d\n", polled);
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
	ret = update(device);
	if (ret)
		device->enabled = false;
	mutex_unlock(&device->lock);
	return ret ?: size;
}
static DEVICE_ATTR_RW(poll_source);

/* Devices come and go. Nobody calls the device's operations meanwhile. */

static const struct polled_kind *kind_of(const struct virtio_device *vdev)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++)
		if (kinds[i]->device == vdev->id.device)
			return kinds[i];
	return NULL;
}

static struct polled_device *device_alloc(struct virtio_device *vdev)
{
	struct polled_device *device = kzalloc(sizeof(*device), GFP_KERNEL);

	if (!device)
		return NULL;
	device->kind = kind_of(vdev);
	device->vdev = vdev;
	get_device(&vdev->dev);
	device->parent = get_device(vdev->dev.parent);
	device->enabled = enable;
	mutex_init(&device->lock);
	INIT_DELAYED_WORK(&device->follow, follow_interrupts);
	INIT_LIST_HEAD(&device->queues);
	return device;
}

static void put_references(struct device *parent, struct virtio_device *vdev)
{
	put_device(&vdev->dev);
	put_device(parent);
}

static void device_wrap(struct polled_device *device)
{
	struct virtio_device *vdev = device->vdev;

	lockdep_assert_held(&devices_mutex);
	device->transport = vdev->config;
	device->ops = *vdev->config;
	device->ops.set_status = polled_set_status;
	device->ops.del_vqs = polled_del_vqs;
	list_add_tail(&device->node, &devices);
	/* Some read it without a lock: they see all of it, as they depend on the pointer. */
	smp_store_release(&vdev->config, &device->ops);
	if (device->transport->get_status(vdev) & VIRTIO_CONFIG_S_DRIVER_OK)
		set_ready(device, true);
	if (device_create_file(&vdev->dev, &dev_attr_poll_source))
		dev_warn(&vdev->dev, "cannot create poll_source: polling of this device cannot be switched\n");
}

/* Somebody who reads the device's configuration may be about to use our copy. */
static void free_retired(struct work_struct *work)
{
	struct polled_device *device, *next;
	LIST_HEAD(unused);

	mutex_lock(&devices_mutex);
	list_splice_init(&retired, &unused);
	mutex_unlock(&devices_mutex);
	synchronize_rcu_tasks();
	list_for_each_entry_safe(device, next, &unused, node)
		kfree(device);
}

/* Not where devices are removed: their locks would be held for a grace period. */
static DECLARE_WORK(free_work, free_retired);

/* Does not touch the device again: its references are the caller's to put. */
static void device_unwrap(struct polled_device *device)
{
	lockdep_assert_held(&devices_mutex);
	if (device_is_registered(&device->vdev->dev))
		device_remove_file(&device->vdev->dev, &dev_attr_poll_source);
	set_ready(device, false);
	cancel_delayed_work_sync(&device->follow);
	WRITE_ONCE(device->vdev->config, device->transport);
	list_move_tail(&device->node, &retired);
}

/* The caller holds the lock of the parent, and the device has no driver. */
static int device_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct virtio_device *vdev = dev_to_virtio(data);
	struct polled_device *device;

	mutex_lock(&devices_mutex);
	if (event == BUS_NOTIFY_ADD_DEVICE && kind_of(vdev) && !is_wrapped(vdev)) {
		device = device_alloc(vdev);
		if (device)
			device_wrap(device);
	} else if (event == BUS_NOTIFY_REMOVED_DEVICE && is_wrapped(vdev)) {
		device = to_device(vdev);
		device_unwrap(device);
		put_references(device->parent, vdev);
		schedule_work(&free_work);
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

/* Never bound to a device: it is there to be told which bus it is on. */
static const struct virtio_device_id no_device[] = { { } };

static struct virtio_driver bus_member = {
	.driver.name = KBUILD_MODNAME,
	.id_table = no_device,
};

/*
 * With @devices_mutex, which makes the parent safe to take: a device that is still in
 * the list of its bus has not been through our notifier for the last time, where it
 * waits for the mutex; and it holds its parent for longer than that.
 */
static int device_found(struct device *dev, void *found)
{
	struct virtio_device *vdev = dev_to_virtio(dev);
	struct polled_device *device;

	lockdep_assert_held(&devices_mutex);
	if (!kind_of(vdev) || is_wrapped(vdev))
		return 0;
	device = device_alloc(vdev);
	if (!device)
		return -ENOMEM;
	list_add_tail(&device->node, found);
	return 0;
}

/* Those that were there before us. Each may have gone, or been added, since. */
static int wrap_present_devices(void)
{
	struct polled_device *device, *next;
	LIST_HEAD(found);
	int ret;

	mutex_lock(&devices_mutex);
	ret = bus_for_each_dev(bus_member.driver.bus, NULL, &found, device_found);
	mutex_unlock(&devices_mutex);
	list_for_each_entry_safe(device, next, &found, node) {
		struct virtio_device *vdev = device->vdev;
		struct device *parent = device->parent;
		bool wrap;

		list_del(&device->node);
		lock_users(parent, vdev);
		mutex_lock(&devices_mutex);
		wrap = device_is_registered(&vdev->dev) && !is_wrapped(vdev);
		if (wrap)
			device_wrap(device);
		mutex_unlock(&devices_mutex);
		unlock_users(parent, vdev);
		if (!wrap) {
			put_references(parent, vdev);
			kfree(device);
		}
	}
	return ret;
}

static void unwrap_all_devices(void)
{
	struct polled_device *device, *next;

	/* The notifier is gone: nobody else touches the list. */
	list_for_each_entry_safe(device, next, &devices, node) {
		struct virtio_device *vdev = device->vdev;
		struct device *parent = device->parent;

		lock_users(parent, vdev);
		mutex_lock(&devices_mutex);
		device_unwrap(device);
		mutex_unlock(&devices_mutex);
		unlock_users(parent, vdev);
		put_references(parent, vdev);
	}
	schedule_work(&free_work);
	flush_work(&free_work);
}

static int __init virtio_poll_source_init(void)
{
	int ret;

	/* The drivers would change suppression where we rule it out. */
	if (IS_ENABLED(CONFIG_VIRTIO_POLL_SOURCE)) {
		pr_err("not needed: in this kernel, write 1 to the file poll_source of a virtio device\n");
		return -EBUSY;
	}
	ret = register_virtio_driver(&bus_member);
	if (ret)
		return ret;
	ret = bus_register_notifier(bus_member.driver.bus, &device_notifier);
	if (ret) {
		unregister_virtio_driver(&bus_member);
		return ret;
	}
	ret = wrap_present_devices();
	if (ret)
		pr_warn("some devices are not polled: error %d\n", ret);
	return 0;
}

static void __exit virtio_poll_source_exit(void)
{
	bus_unregister_notifier(bus_member.driver.bus, &device_notifier);
	unwrap_all_devices();
	unregister_virtio_driver(&bus_member);
}

/* Built in, it comes after the idle driver, which is linked behind this one. */
late_initcall(virtio_poll_source_init);
module_exit(virtio_poll_source_exit);
MODULE_DESCRIPTION("lets idle CPUs poll virtqueues in place of their interrupts");
MODULE_LICENSE("GPL");

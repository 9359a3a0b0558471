/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtqueues that idle CPUs look at. See drivers/virtio/virtqueue_source.c.
 */
#ifndef _LINUX_VIRTQUEUE_SOURCE_H
#define _LINUX_VIRTQUEUE_SOURCE_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/poll_source.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct virtqueue;
struct virtqueue_sources;

#ifdef CONFIG_VIRTIO_POLL_SOURCE
/**
 * struct virtqueue_source - a virtqueue that an idle CPU can look at
 * @source: private: as that CPU sees it
 * @vq: private: the queue
 * @sources: private: those of its device
 * @node: private: in the list of its device
 * @follow: private: has the CPU look that the queue interrupts
 * @cpu: private: which one that is, as the last interrupt told
 * @followed: private: when that changed, in jiffies
 * @enabled: private: interrupts count
 * @registered: private: it is a source; belongs to @follow while that may run
 * @warned: private: the log says that it cannot be one; belongs to @follow as well
 * @seen: private: the used index at the last start, as virtqueue_poll() takes it
 * @starts: private: so many there were
 * @name: private: of the source
 */
struct virtqueue_source {
	struct poll_source source;
	struct virtqueue *vq;
	struct virtqueue_sources *sources;
	struct list_head node;
	struct work_struct follow;
	unsigned int cpu;
	unsigned long followed;
	bool enabled;
	bool registered;
	bool warned;
	unsigned int seen;
	unsigned int starts;
	char name[40];
};

/**
 * struct virtqueue_sources - those of one device
 * @lock: private: guards what follows
 * @list: private: its queues, while the device is ready
 * @enabled: private: the user wants CPUs to look at them
 * @told: private: the log says that threads handle their interrupts; nothing guards this
 */
struct virtqueue_sources {
	struct mutex lock;	/* the switch against the driver of the device */
	struct list_head list;
	bool enabled;
	bool told;
};

void virtqueue_source_init(struct virtqueue_source *vs);
void virtqueue_sources_init(struct virtqueue_sources *sources);
void virtqueue_sources_add(struct virtqueue_sources *sources, struct virtqueue_source *vs,
			   struct virtqueue *vq, const struct poll_source_ops *ops);
void virtqueue_sources_remove(struct virtqueue_sources *sources);
ssize_t virtqueue_sources_show(struct virtqueue_sources *sources, char *text);
ssize_t virtqueue_sources_store(struct virtqueue_sources *sources, const char *text, size_t size);

void virtqueue_source_interrupted(struct virtqueue_source *vs);
bool virtqueue_source_may_start(struct virtqueue_source *vs);
void virtqueue_source_start(struct virtqueue_source *vs);
bool virtqueue_source_peek(struct poll_source *source);
#else
struct virtqueue_source {};
struct virtqueue_sources {};

static inline void virtqueue_source_init(struct virtqueue_source *vs) { }
static inline void virtqueue_sources_init(struct virtqueue_sources *sources) { }
static inline void virtqueue_sources_remove(struct virtqueue_sources *sources) { }
static inline void virtqueue_source_interrupted(struct virtqueue_source *vs) { }
#endif

#endif /* _LINUX_VIRTQUEUE_SOURCE_H */

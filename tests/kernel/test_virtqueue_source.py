# SPDX-License-Identifier: GPL-2.0-only
"""What virtqueue_source.c, the kernel's own file, says in the log about queues that it cannot poll.

There is one CPU. Work that is queued runs at once. A device has two queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cffi
import pytest
from kernel_library import all_of, simulated
from poll_source_headers import KERNEL_H, STUBS

from lightsleep import sources

MORE_H = r"""
#ifndef MORE_H
#define MORE_H
#include <limits.h>
#include <stdio.h>
#include <string.h>
#define guard(lock) (void)
#define mutex_init(lock) do { } while (0)
#define list_for_each_entry_safe(p, next, head, member) \
	for (p = container_of((head)->next, __typeof__(*p), member), (void)(next); \
		&p->member != (head); p = container_of(p->member.next, __typeof__(*p), member))
#define smp_store_release(p, value) WRITE_ONCE(*(p), value)
#define smp_load_acquire(p) READ_ONCE(*(p))
typedef long ssize_t;
#define sysfs_emit(...) 0
#define kstrtobool(text, value) (*(value) = *(text) == '1', 0)
#define INIT_WORK(work, function) ((work)->unused = 0)
#define enable_work(work) do { } while (0)
#define disable_work(work) do { } while (0)
#define disable_work_sync(work) do { } while (0)
static void follow_interrupt(struct work_struct *work);
#define queue_work(queue, work) follow_interrupt(work)
#define MODULE_DESCRIPTION(text) extern int unused
#define MODULE_LICENSE(text) extern int unused
struct device { const char *name; };
#define dev_name(dev) ((dev)->name)
struct virtio_device { struct device dev; };
struct virtqueue { const char *name; struct virtio_device *vdev; };
#define virtqueue_enable_cb_prepare(vq) 0
#define virtqueue_disable_cb(vq) do { } while (0)
#define virtqueue_poll(vq, seen) false
extern unsigned int notices, warnings;
#define dev_notice(dev, ...) (notices++)
#define dev_warn(dev, ...) (warnings++)
extern bool in_interrupt;
#define in_hardirq() in_interrupt
#endif
"""
SIMULATION = r"""
#include <kernel.h>
#define CONFIG_VIRTIO_POLL_SOURCE 1
#include "virtqueue_source.c"

unsigned int notices, warnings;
bool in_interrupt;
u64 now_ns;
static int refusal;
static const struct poll_source_ops ops;

int poll_source_register(struct poll_source *source) { return refusal; }
void poll_source_unregister(struct poll_source *source) { }
int poll_source_move(struct poll_source *source, unsigned int cpu) { return 0; }
void poll_source_notified(struct poll_source *source) { }

static struct virtqueue_sources sources;
static struct virtqueue_source queue[2];
static struct virtio_device device = { .dev.name = "virtio0" };
static struct virtqueue vq[2] = { { "input.0", &device }, { "input.1", &device } };

void add(void)
{
	notices = warnings = 0;
	virtqueue_sources_init(&sources);
	for (int i = 0; i < 2; i++) {
		virtqueue_source_init(&queue[i]);
		virtqueue_sources_add(&sources, &queue[i], &vq[i], &ops);
	}
}

void store(const char *text) { virtqueue_sources_store(&sources, text, 1); }

void interrupt(unsigned int which, bool threaded, int error)
{
	in_interrupt = !threaded;
	refusal = error;
	queue[which].cpu = NO_CPU;	/* as if it came to another CPU each time */
	virtqueue_source_interrupted(&queue[which]);
}
"""
FFI = cffi.FFI()
FFI.cdef("""
extern unsigned int notices, warnings;
void add(void); void store(const char *text);
void interrupt(unsigned int which, bool threaded, int error);
""")


@pytest.fixture(scope="module")
def lib() -> Any:
    stubs = f"{STUBS} linux/device linux/hardirq linux/kstrtox linux/sysfs linux/virtio"
    folder = sources.KERNEL / "drivers" / "virtio"
    return simulated(FFI, SIMULATION, all_of(KERNEL_H + MORE_H, stubs), flags=(f"-I{folder}",))


@pytest.fixture
def device(lib: Any) -> Iterator[Any]:
    lib.add()
    yield lib
    lib.store(b"0")


def test_a_device_whose_interrupts_have_threads_is_named_once(device: Any) -> None:
    device.interrupt(0, True, 0)
    assert device.notices == 0  # nobody has asked for a poll
    for times in (1, 2):
        device.store(b"1")
        for queue in (0, 1, 0):
            device.interrupt(queue, True, 0)
        assert device.notices == times
        device.store(b"0")
    assert device.warnings == 0


def test_an_interrupt_without_a_thread_is_no_reason_to_say_so(device: Any) -> None:
    device.store(b"1")
    device.interrupt(0, False, 0)
    assert device.notices == device.warnings == 0


def test_each_queue_that_cannot_be_a_source_is_named_once(device: Any) -> None:
    for times in (1, 2):
        device.store(b"1")
        for queue in (0, 1, 0, 1):
            device.interrupt(queue, False, -1)
        assert device.warnings == 2 * times
        device.store(b"0")

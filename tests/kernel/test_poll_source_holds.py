# SPDX-License-Identifier: GPL-2.0-only
"""What holds of poll_source.c, the kernel's own file, cost a CPU that serves a disk and computes.

One task reads from a disk: it needs the CPU for a moment, and then waits for the disk. Another one
computes and sleeps, in bursts. Where the first is woken, it runs at once. Else the CPU is idle, and
polls before it halts. A hold that the second task keeps from ending has the first one wait.
"""

from __future__ import annotations

from typing import Any

import cffi
import pytest
from kernel_library import all_of, simulated

from lightsleep.compiled import KERNEL

# As far as these files need the kernel: one CPU, and a clock of ours.
KERNEL_H = r"""
#ifndef KERNEL_H
#define KERNEL_H
#include <errno.h>
#include <linux/compiler.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/types.h>
#include <stddef.h>
#include <stdlib.h>
typedef s64 ktime_t;
#define CONFIG_POLL_SOURCE 1
#define IS_ENABLED(option) 0
#define __init
#define KTIME_MAX INT64_MAX
#define NSEC_PER_USEC 1000L
#define NSEC_PER_MSEC 1000000L
#define USEC_PER_SEC 1000000L
#define HZ 250
#define EXPORT_SYMBOL_GPL(name) extern int unused
#define KBUILD_MODNAME "test"
#define pr_warn(...) do { } while (0)
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

struct list_head { struct list_head *next, *prev; };
#define LIST_HEAD(name) struct list_head name = { &name, &name }
static inline void INIT_LIST_HEAD(struct list_head *l) { l->next = l; l->prev = l; }
static inline bool list_empty(const struct list_head *l) { return l->next == l; }
static inline void list_add_tail(struct list_head *new, struct list_head *head)
{
	new->prev = head->prev;
	new->next = head;
	head->prev->next = new;
	head->prev = new;
}
static inline void list_del(struct list_head *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
}
static inline void list_del_init(struct list_head *l) { list_del(l); INIT_LIST_HEAD(l); }
static inline void list_rotate_to_front(struct list_head *l, struct list_head *head)
{
	list_del(head);
	list_add_tail(head, l);
}
#define list_for_each_entry(p, head, member) \
	for (p = container_of((head)->next, __typeof__(*p), member); &p->member != (head); \
		p = container_of(p->member.next, __typeof__(*p), member))

extern u64 now_ns;
static inline u64 local_clock(void) { return now_ns; }
static inline ktime_t ktime_get(void) { return now_ns; }
#define ktime_add_ns(at, ns) ((at) + (s64)(ns))
enum hrtimer_restart { HRTIMER_NORESTART, HRTIMER_RESTART };
struct hrtimer { enum hrtimer_restart (*function)(struct hrtimer *); ktime_t at; bool active; };
#define CLOCK_MONOTONIC 0
#define HRTIMER_MODE_ABS_PINNED_HARD 0
#define hrtimer_setup(timer, run, clock, mode) ((timer)->function = (run))
#define hrtimer_active(timer) ((timer)->active)
#define hrtimer_try_to_cancel(timer) ((timer)->active = false)
#define hrtimer_cancel(timer) ((timer)->active = false)
#define hrtimer_get_expires(timer) ((timer)->at)
#define hrtimer_set_expires(timer, when) ((timer)->at = (when))
#define hrtimer_start(timer, when, mode) ((timer)->at = (when), (timer)->active = true)
struct irq_work { void (*run)(struct irq_work *); bool queued; };
#define init_irq_work(work, function) ((work)->run = (function), (work)->queued = false)
#define irq_work_queue(work) ((work)->queued = true)
#define irq_work_sync(work) do { } while (0)
#define arch_irq_work_has_interrupt() true
#define local_irq_disable() do { } while (0)
#define local_irq_enable() do { } while (0)
#define lockdep_assert_irqs_disabled() do { } while (0)

#define DEFINE_STATIC_KEY_FALSE(name) int name
#define DECLARE_STATIC_KEY_FALSE(name) extern int name
#define static_branch_inc(key) (++*(key))
#define static_branch_dec(key) (--*(key))
#define static_branch_unlikely(key) (*(key) > 0)
#define DEFINE_PER_CPU(type, name) type name
#define DECLARE_PER_CPU(type, name) extern type name
#define this_cpu_ptr(p) (p)
#define per_cpu_ptr(p, cpu) (p)
#define this_cpu_read(word) (word)
#define __this_cpu_read(word) (word)
#define this_cpu_write(word, value) ((word) = (value))
#define this_cpu_inc(word) ((word)++)
#define smp_processor_id() 0U
#define cpu_active(cpu) true
#define nr_cpu_ids 1U
#define cpu_possible(cpu) true
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < 1; (cpu)++)
struct mutex { int unused; };
#define DEFINE_MUTEX(name) struct mutex name
#define mutex_lock(lock) do { } while (0)
#define mutex_unlock(lock) do { } while (0)
#define cpus_read_lock() do { } while (0)
#define cpus_read_unlock() do { } while (0)
typedef void (*smp_call_func_t)(void *);
#define smp_call_function_single(cpu, function, info, wait) ((function)(info), 0)

struct kernel_param { const char *name; };
struct kernel_param_ops {
	int (*set)(const char *text, const struct kernel_param *kp);
	int (*get)(char *text, const struct kernel_param *kp);
};
#define param_set_uint_minmax(text, kp, from, to) 0
static inline int param_get_uint(char *text, const struct kernel_param *kp) { return 0; }
#define module_param_cb(...) extern int unused
#define MODULE_PARM_DESC(...) extern int unused
#define seq_puts(...) do { } while (0)
#define seq_printf(...) do { } while (0)
#define DEFINE_SHOW_ATTRIBUTE(name) static int name##_fops
#define debugfs_create_file(...) do { } while (0)
#define debugfs_lookup_and_remove(...) do { } while (0)
struct seq_file;
struct work_struct { int unused; };
#define DECLARE_DELAYED_WORK(name, function) void (*name)(struct work_struct *) = function
#define schedule_delayed_work(work, delay) do { } while (0)
#define cancel_delayed_work_sync(work) do { } while (0)
#define jiffies 0UL
#define time_after_eq(a, b) ((a) >= (b))
#define time_after(a, b) ((a) > (b))
#endif
"""
STUBS = """linux/cpu linux/debugfs linux/hrtimer linux/init linux/irq_work linux/irqflags
linux/jiffies linux/jump_label linux/ktime linux/list linux/lockdep linux/module
linux/moduleparam linux/mutex linux/percpu linux/percpu-defs linux/printk linux/sched/clock
linux/seq_file linux/smp linux/time64 linux/workqueue"""

SIMULATION = r"""
#include <kernel.h>
#include "poll_source.c"
#include "poll_source_budget.c"

#define POLL_NS 200000ULL	/* how long the CPU polls before it halts */
#define DISK_NS 100000ULL
#define REQUEST_NS 20000ULL	/* what each request costs the CPU */

u64 now_ns;

/* The disk has one request at a time. */
static u64 asked_ns, answers_ns, waited_ns, requests;
static bool suppressed, answered;
static u64 request_left_ns, burst_left_ns, wakes_ns;

/* 0.5 to 1.5 times @mean_ns, the same each time. */
static u64 about(u64 mean_ns)
{
	static u64 random = 1;

	random = random * 6364136223846793005ULL + 1442695040888963407ULL;
	return mean_ns / 2 + (random >> 33) % mean_ns;
}

static void serve(void)
{
	if (answered) {
		answered = false;
		waited_ns += now_ns - asked_ns;
		requests++;
		request_left_ns = about(REQUEST_NS);
	}
	suppressed = false;
}

static bool refuses;
static unsigned int starts;

static bool start(struct poll_source *source)
{
	starts++;
	if (refuses)
		return false;
	return suppressed = true;
}

static bool peek(struct poll_source *source) { return answered; }
static bool stop(struct poll_source *source) { suppressed = false; return answered; }
static void handle(struct poll_source *source) { serve(); }
static const struct poll_source_ops ops = { start, peek, stop, handle, .holds = true };
static const struct poll_source_ops ops_without_holds = { start, peek, stop, handle };
static struct poll_source disk = { .ops = &ops, .name = "disk" };

static void interrupts(void)
{
	struct hrtimer *timer = &source_cpus.hold_timer;

	while (disk.work.queued) {
		disk.work.queued = false;
		disk.work.run(&disk.work);
	}
	if (timer->active && timer->at <= (s64)now_ns) {
		timer->active = false;
		timer->active = timer->function(timer) == HRTIMER_RESTART || timer->active;
		interrupts();
	}
}

static void pass(u64 ns, u64 burst_ns)
{
	now_ns += ns;
	if (answers_ns && now_ns >= answers_ns) {
		answers_ns = 0;
		answered = true;
		if (!suppressed) {
			serve();
			poll_source_notified(&disk);
		}
	}
	if (wakes_ns && now_ns >= wakes_ns) {
		wakes_ns = 0;
		burst_left_ns = about(burst_ns);
	}
	interrupts();
}

static void work(u64 *left_ns, u64 burst_ns)
{
	u64 ns = min(*left_ns, (u64)1000);

	*left_ns -= ns;
	pass(ns, burst_ns);
}

static bool is_idle(void) { return !request_left_ns && !burst_left_ns; }

u64 holds(void) { return disk.stats.holds; }
u64 served(void) { return requests; }

/* A poll found work, and a hold follows. */
static void begin_hold(void)
{
	refuses = false;
	poll_source_init();
	hold_us = 2000;
	poll_source_register(&disk);
	poll_sources_start();
	answered = true;
	poll_sources_peek();
	poll_sources_stop();
	interrupts();
}

/* What the device sent before it was suppressed arrives only now, and turns that off. */
static void be_interrupted(void)
{
	answered = true;
	serve();
	poll_source_notified(&disk);
}

/* 1: the hold goes on after that, 2: a poll has the source, 4: suppressed in both */
unsigned int after_interrupt(bool refused)
{
	bool held, polled, quiet;
	ktime_t held_until;

	begin_hold();
	held_until = disk.held_until;
	now_ns += 1000;
	refuses = refused;
	be_interrupted();
	held = disk.state == POLL_SOURCE_HELD && disk.held_until == held_until;
	quiet = suppressed;
	poll_sources_start();
	polled = disk.state == POLL_SOURCE_POLLED;
	quiet &= suppressed;
	poll_sources_stop();
	poll_source_unregister(&disk);
	refuses = false;
	return held | polled << 1 | quiet << 2;
}

/* How often does a source that does not hold start in a poll, and after a hit and an interrupt? */
unsigned int starts_without_holds(void)
{
	disk.ops = &ops_without_holds;
	starts = 0;
	begin_hold();
	be_interrupted();
	poll_source_unregister(&disk);
	disk.ops = &ops;
	return starts;
}

/* Is the timer of a hold set, and is it after its source has gone? */
unsigned int timers(void)
{
	unsigned int set;

	begin_hold();
	set = source_cpus.hold_timer.active;
	poll_source_unregister(&disk);
	return set | source_cpus.hold_timer.active << 1;
}

/* How long does a request take on average, in ns? */
u64 request_ns(unsigned int hold, u64 burst_ns, u64 sleep_ns, u64 for_ns)
{
	u64 end_ns = for_ns;
	u64 poll_end_ns;
	bool hit;

	now_ns = waited_ns = requests = answers_ns = burst_left_ns = 0;
	answered = suppressed = false;
	source_cpus.hold_timer.active = false;
	disk.stats.holds = 0;
	poll_source_init();
	hold_us = hold;
	poll_source_register(&disk);
	wakes_ns = sleep_ns;
	request_left_ns = REQUEST_NS;
	while (now_ns < end_ns) {
		if (request_left_ns) {
			work(&request_left_ns, burst_ns);
			if (!request_left_ns) {
				asked_ns = now_ns;
				answers_ns = now_ns + about(DISK_NS);
			}
			continue;
		}
		if (burst_left_ns) {
			work(&burst_left_ns, burst_ns);
			if (!burst_left_ns)
				wakes_ns = now_ns + about(sleep_ns);
			continue;
		}
		hit = false;
		poll_sources_start();
		for (poll_end_ns = now_ns + POLL_NS; is_idle() && !hit && now_ns < poll_end_ns;) {
			pass(200, burst_ns);
			hit = poll_sources_peek();
		}
		hit |= poll_sources_stop();
		interrupts();
		if (hit || !is_idle())
			continue;
		poll_sources_release();
		interrupts();
		while (is_idle())
			pass(200, burst_ns);
	}
	poll_source_unregister(&disk);
	return waited_ns / requests;
}
"""

FFI = cffi.FFI()
FFI.cdef("""
uint64_t holds(void); uint64_t served(void); unsigned int timers(void);
unsigned int after_interrupt(bool refused); unsigned int starts_without_holds(void);
uint64_t request_ns(unsigned int hold, uint64_t burst_ns, uint64_t sleep_ns, uint64_t for_ns);
""")
MS, SECOND = 10**6, 10**9
DEFAULT_US = 2000


@pytest.fixture(scope="module")
def lib() -> Any:
    return simulated(FFI, SIMULATION, all_of(KERNEL_H, STUBS), flags=(f"-I{KERNEL}",))


@pytest.mark.parametrize(
    ("burst_ns", "sleep_ns"),
    [(MS, MS // 5), (2 * MS, 2 * MS), (MS // 10, MS // 2), (MS // 3, MS // 10), (5 * MS, MS)],
)
def test_requests_take_hardly_longer_for_holds(lib: Any, burst_ns: int, sleep_ns: int) -> None:
    with_holds, without = (
        lib.request_ns(hold_us, burst_ns, sleep_ns, 5 * SECOND) for hold_us in (DEFAULT_US, 0)
    )
    assert with_holds <= 1.25 * without


def test_a_cpu_that_serves_a_disk_alone_holds_nearly_always(lib: Any) -> None:
    lib.request_ns(DEFAULT_US, 1, SECOND, 5 * SECOND)
    assert lib.holds() > 0.9 * lib.served()


def test_a_source_that_goes_leaves_no_timer_behind(lib: Any) -> None:
    assert lib.timers() == 1


def test_a_hold_goes_on_after_an_interrupt(lib: Any) -> None:
    assert lib.after_interrupt(False) == 1 | 2 | 4


def test_a_hold_ends_with_an_interrupt_if_the_source_refuses_another(lib: Any) -> None:
    assert lib.after_interrupt(True) == 0


def test_a_source_that_does_not_hold_is_not_asked_to(lib: Any) -> None:
    assert lib.starts_without_holds() == 1

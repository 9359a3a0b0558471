# SPDX-License-Identifier: GPL-2.0-only
"""halt_cost.c, the kernel's own file: whom does it measure, and what does it find there?"""

from typing import Any

import cffi
import pytest
from kernel_library import all_of, simulated

from lightsleep.compiled import HEADERS, declarations

US = 1000
EPERM = 1

STUBS = """linux/completion linux/cpu linux/cpumask linux/err linux/hrtimer linux/kthread
linux/ktime linux/math64 linux/processor linux/rcupdate linux/sched linux/sched/isolation
linux/slab linux/tick linux/topology"""
"""The headers that are KERNEL_H here."""

# As far as the file needs them. Threads take turns, as they have one clock: each runs until it
# waits, and its CPU is then idle until somebody else, or a timer, wakes the thread.
KERNEL_H = r"""
#ifndef KERNEL_H
#define KERNEL_H
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <ucontext.h>
#include <linux/compiler.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>
#define DIV_ROUND_UP(x, by) (((x) + (by) - 1) / (by))
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define HZ 250
#define NSEC_PER_USEC 1000L
#define msecs_to_jiffies(ms) (ms)
#define GFP_KERNEL 0
#define kzalloc(size, flags) calloc(1, size)
#define kfree(p) free(p)
#define div_s64(x, by) ((s64)(x) / (by))
#define div_u64(x, by) ((u64)(x) / (by))
#define IS_ERR(p) (!(p))
#define PTR_ERR(p) (-ENOMEM)
#define rcu_read_lock() do { } while (0)
#define rcu_read_unlock() do { } while (0)
#define cpus_read_lock() do { } while (0)
#define cpus_read_unlock() do { } while (0)

extern unsigned int cpus;
#define num_online_cpus() (cpus)
#define for_each_online_cpu(cpu) for ((cpu) = 0; (cpu) < cpus; (cpu)++)
#define for_each_cpu_wrap(cpu, mask, from) \
	for (unsigned int _n = (cpu = (from) % cpus, 0); _n < cpus; _n++, cpu = (cpu + 1) % cpus)
#define topology_sibling_cpumask(cpu) (cpu)
#define cpumask_test_cpu(cpu, siblings_of) ((cpu) == (siblings_of))
#define cpumask_of(cpu) NULL
#define raw_smp_processor_id() 0
#define cpu_is_isolated(cpu) false
#define tick_nohz_full_cpu(cpu) false

typedef s64 ktime_t;
extern u64 now_ns;
#define ktime_get() ((ktime_t)(now_ns += 20))
#define ktime_get_ns() ((u64)ktime_get())
#define ktime_to_ns(time) (time)
#define ktime_add_ns(time, ns) ((time) + (s64)(ns))
#define cpu_relax() (now_ns += 500)

struct completion { unsigned int done; };
struct task_struct {
	ucontext_t context;
	char stack[65536];
	int (*run)(void *);
	void *data;
	unsigned int cpu;
	u64 waits_from_ns;
	struct completion *waits_for;
	struct completion stop;
	bool exited;
};
#define init_completion(c) ((c)->done = 0)
#define complete(c) ((c)->done++)
bool wait_for_completion_timeout(struct completion *c, unsigned long timeout);
#define wait_for_completion(c) ((void)wait_for_completion_timeout(c, 0))
struct task_struct *kthread_create(int (*run)(void *), void *data, const char *name, ...);
void kthread_bind(struct task_struct *thread, unsigned int cpu);
#define wake_up_process(thread) do { } while (0)
void kthread_stop(struct task_struct *thread);
bool kthread_should_stop(void);
void schedule(void);
#define set_current_state(state) do { } while (0)
#define __set_current_state(state) do { } while (0)
#define set_cpus_allowed_ptr(thread, mask) do { } while (0)
#define is_percpu_thread() true
enum { HRTIMER_MODE_ABS };
void schedule_hrtimeout(ktime_t *due, int mode);
#endif
"""
SOURCE = r"""
#include "halt_cost.c"

unsigned int cpus;
u64 now_ns, way_in_ns, host_polls_ns, halt_ns;
u64 forbidden;
bool measured[64];
static u64 ended[64];
static enum idle_wait forced[64];
static struct task_struct main_task, *tasks[8] = { &main_task }, *now_runs = &main_task;
static unsigned int started;

/* Its CPU was idle since then, as it was told to be, if it got there. */
static void wake_after(unsigned int cpu, u64 slept_ns)
{
	now_ns += 1000;
	if (slept_ns < way_in_ns)
		return;
	ended[cpu]++;
	if (forced[cpu] == WAIT_HALT && slept_ns >= host_polls_ns)
		now_ns += halt_ns;
}
static bool is_ready(const struct task_struct *task)
{
	return !task->exited && (!task->waits_for || task->waits_for->done);
}
static bool run_another(void)
{
	struct task_struct *before = now_runs;
	unsigned int n;

	for (n = 0; n <= started; n++) {
		if (tasks[n] == before || !is_ready(tasks[n]))
			continue;
		now_runs = tasks[n];
		swapcontext(&before->context, &now_runs->context);
		return true;
	}
	return false;
}
static bool alone_on(unsigned int cpu)
{
	unsigned int n, there = 0;

	for (n = 1; n <= started; n++)
		there += tasks[n]->cpu == cpu && !tasks[n]->exited;
	return there == 1;
}
bool wait_for_completion_timeout(struct completion *c, unsigned long timeout)
{
	bool waits = !c->done;

	now_runs->waits_for = c;
	now_runs->waits_from_ns = now_ns;
	while (!c->done)
		if (!run_another())
			return false;
	now_runs->waits_for = NULL;
	c->done--;
	if (waits && now_runs != &main_task && alone_on(now_runs->cpu))
		wake_after(now_runs->cpu, now_ns - now_runs->waits_from_ns);
	return true;
}
void schedule_hrtimeout(ktime_t *due, int mode)
{
	u64 slept_ns = (u64)*due > now_ns ? *due - now_ns : 0;

	now_ns += slept_ns;
	wake_after(now_runs->cpu, slept_ns);
}
static void enter(void)
{
	now_runs->run(now_runs->data);
	now_runs->exited = true;
	run_another();
}
struct task_struct *kthread_create(int (*run)(void *), void *data, const char *name, ...)
{
	struct task_struct *task = calloc(1, sizeof(*task));

	task->run = run;
	task->data = data;
	getcontext(&task->context);
	task->context.uc_stack.ss_sp = task->stack;
	task->context.uc_stack.ss_size = sizeof(task->stack);
	makecontext(&task->context, enter, 0);
	tasks[++started] = task;
	return task;
}
void kthread_bind(struct task_struct *thread, unsigned int cpu)
{
	thread->cpu = cpu;
	measured[cpu] = true;
}
bool kthread_should_stop(void) { return now_runs->stop.done; }
void schedule(void)
{
	now_runs->waits_for = &now_runs->stop;
	run_another();
}
void kthread_stop(struct task_struct *thread)
{
	thread->stop.done = 1;
	while (!thread->exited)
		run_another();
}

static void tell(unsigned int cpu, enum idle_wait how) { forced[cpu] = how; }
static u64 count(unsigned int cpu) { return ended[cpu]; }
static bool usable(unsigned int cpu) { return !(forbidden >> cpu & 1); }
static const struct halt_cost_ops test_ops = { .force = tell, .waits = count, .usable = usable };
int measure(struct halt_cost *found)
{
	int ret;

	memset(measured, 0, sizeof(measured));
	ret = halt_cost_measure(&test_ops, found);
	for (; started; started--)
		free(tasks[started]);
	return ret;
}
"""

FFI = cffi.FFI()
FFI.cdef("typedef uint32_t u32; typedef uint64_t u64; typedef int64_t s64;")
FFI.cdef(declarations(HEADERS / "wake_cost.h") + declarations(HEADERS / "halt_cost.h"))
FFI.cdef("""
extern unsigned int cpus; extern u64 way_in_ns, host_polls_ns, halt_ns, forbidden;
extern bool measured[64]; int measure(struct halt_cost *found);
""")


@pytest.fixture(scope="module")
def library() -> Any:
    """Return the file, compiled."""
    return simulated(FFI, SOURCE, all_of(KERNEL_H, STUBS), needs=("wake_cost",))


@pytest.fixture
def lib(library: Any) -> Any:
    """Return a machine with four CPUs that become idle in 5 us, where a halt costs 40 us."""
    library.cpus, library.way_in_ns = 4, 5 * US
    library.host_polls_ns, library.halt_ns, library.forbidden = 0, 40 * US, 0
    return library


def measure(lib: Any) -> tuple[int, list[float], list[float]]:
    """Return what measuring returns, how long CPUs slept, and what a halt costs, in us."""
    found = FFI.new("struct halt_cost[3]")
    ret = lib.measure(found)
    slept_us = [round(x.slept_ns / US) for x in found]
    return ret, slept_us, [round(x.estimate.cost_ns / US) for x in found]


def cpus(lib: Any) -> set[int]:
    return {cpu for cpu in range(lib.cpus) if lib.measured[cpu]}


@pytest.mark.parametrize("online", [1, 2, 3, 4, 64])
def test_what_a_halt_costs_is_found(lib: Any, online: int) -> None:
    lib.cpus = online
    ret, _, costs_us = measure(lib)
    assert (ret, costs_us) == (0, [40, 40, 40])
    assert len(cpus(lib)) == min(online, 4)


# Whom it measures.


def test_cpus_that_may_wait_are_paired_whoever_may_not(lib: Any) -> None:
    lib.forbidden = 0b1010
    assert measure(lib)[0] == 0
    assert cpus(lib) == {0, 2}


def test_a_cpu_that_may_not_wait_keeps_no_other_from_being_measured(lib: Any) -> None:
    lib.cpus, lib.forbidden = 64, 1 << 7
    assert measure(lib)[0] == 0
    lib.forbidden = ~(1 << 7) % 2**64
    ret, _, costs_us = measure(lib)
    assert (ret, costs_us, cpus(lib)) == (0, [40, 40, 40], {7})


def test_where_no_cpu_may_wait_measuring_is_forbidden(lib: Any) -> None:
    lib.forbidden = 0b1111
    assert measure(lib)[0] == -EPERM


# A CPU that is alone.


def test_a_cpu_that_is_alone_sleeps_for_as_long_as_others(lib: Any) -> None:
    """A host that polls for halted guests hides the cost of short sleeps from it, too."""
    lib.cpus, lib.host_polls_ns = 1, 200 * US
    assert measure(lib) == (0, [30, 100, 400], [0, 0, 40])
    lib.cpus = 2
    ret, _, costs_us = measure(lib)
    assert (ret, costs_us) == (0, [0, 0, 40])


@pytest.mark.parametrize(
    ("way_in_us", "slept_us"), [(25, [30, 100, 400]), (50, [60, 100, 400]), (190, [240, 200, 400])]
)
def test_a_slow_cpu_that_is_alone_sleeps_for_long_enough_to_become_idle(
    lib: Any, way_in_us: int, slept_us: list[int]
) -> None:
    lib.cpus, lib.way_in_ns = 1, way_in_us * US
    assert measure(lib) == (0, slept_us, [40, 40, 40])

# SPDX-License-Identifier: GPL-2.0-only
"""The idle paths of module and series, the kernel's own files, on one CPU with a clock of ours."""

from collections.abc import Callable
from typing import Any

import cffi
import pytest
from kernel_library import all_of, simulated

from lightsleep import sources
from lightsleep.compiled import HEADERS, declarations

US, SECOND = 10**3, 10**9

# As far as these files need the kernel: CPU 0 idles, the others only have a state.
KERNEL_H = r"""
#ifndef KERNEL_H
#define KERNEL_H
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/compiler.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>
typedef int32_t s32;
#define __init
#define __exit
#define __percpu
#define __cpuidle
#define __read_mostly
#define noinline __attribute__((noinline))
#define __always_inline inline __attribute__((always_inline))
#define IS_ENABLED(option) 0
#define NSEC_PER_USEC 1000L
#define NSEC_PER_MSEC 1000000L
#define TICK_NSEC 4000000L
#define pr_err(...) do { } while (0)
#define pr_warn(...) do { } while (0)
extern unsigned int warnings_once;
extern char warned[200];
#define pr_warn_once(...) (warnings_once++, snprintf(warned, sizeof(warned), __VA_ARGS__))
#define data_race(what) (what)
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define DIV_ROUND_UP_ULL(x, by) (((x) + (by) - 1) / (by))
#define smp_load_acquire(p) READ_ONCE(*(p))
#define smp_store_release(p, value) WRITE_ONCE(*(p), value)
#define guard(lock) (void)

/* CPUs and per-CPU data. */
#define CPUS 16
extern unsigned int cpus;
#define for_each_online_cpu(cpu) for ((cpu) = 0; (cpu) < cpus; (cpu)++)
#define for_each_possible_cpu(cpu) for_each_online_cpu(cpu)
#define num_online_cpus() (cpus)
#define cpu_is_offline(cpu) false
#define cpu_active(cpu) true
#define smp_processor_id() 0
#define on_each_cpu(...) do { } while (0)
#define cpus_read_lock() do { } while (0)
#define cpus_read_unlock() do { } while (0)
#define DECLARE_PER_CPU(type, name) extern type name[CPUS]
#define DEFINE_PER_CPU(type, name) type name[CPUS]
#define per_cpu(name, cpu) (name[cpu])
#ifdef SERIES
#define this_cpu_ptr(p) (&(*(p))[0])
#define per_cpu_ptr(p, cpu) (&(*(p))[cpu])
#else
#define per_cpu_ptr(p, cpu) (&(p)[cpu])
#endif
#define alloc_percpu(type) ((type *)calloc(CPUS, sizeof(type)))
#define free_percpu(p) free(p)
enum cpuhp_state { CPUHP_NONE, CPUHP_AP_ONLINE_DYN, CPUHP_BP_PREPARE_DYN };
#define cpuhp_setup_state(...) 1
#define cpuhp_setup_state_nocalls(...) 1
#define cpuhp_remove_state(state) do { } while (0)

/* Time, and what ends a wait: a wakeup, or an interrupt without one. */
extern u64 now_ns, wake_ns, interrupt_ns;
extern s64 qos_limit_ns;
extern struct task { unsigned long nvcsw, nivcsw; } idle_task;
extern struct task *running;
#define current running
static struct rq { struct task *idle; } idle_rq = { &idle_task };
#define cpu_rq(cpu) (&idle_rq)
static inline bool need_resched(void) { return now_ns >= wake_ns; }
#define set_tsk_need_resched(task) do { } while (0)
extern u64 host_takes_ns;
static inline void cpu_relax(void) { now_ns += 100 + host_takes_ns; host_takes_ns = 0; }
static inline void halt_cpu(void)
{
	u64 end_ns = interrupt_ns > now_ns ? min(interrupt_ns, wake_ns) : wake_ns;

	now_ns = max(now_ns, end_ns);
}
static inline bool current_clr_polling_and_test(void) { now_ns += 100; return need_resched(); }
#define __current_set_polling() do { } while (0)
extern u64 reading_takes_ns, readings;
static inline u64 ktime_get_mono_fast_ns(void)
{
	readings++;
	return now_ns += reading_takes_ns;
}
#define local_irq_disable() do { } while (0)
#define local_irq_enable() do { } while (0)
#define instrumentation_begin() do { } while (0)
#define instrumentation_end() do { } while (0)
#define stop_critical_timings() do { } while (0)
#define start_critical_timings() do { } while (0)
#define rcu_nocb_flush_deferred_wakeup() do { } while (0)
#define tick_nohz_idle_polled() do { } while (0)
#define tick_nohz_idle_got_tick() do { } while (0)
#define idle_should_enter_s2idle() false
#define pm_suspend_target_state 0
enum { PM_SUSPEND_TO_IDLE = 1 };
enum {
	HI_SOFTIRQ, NET_TX_SOFTIRQ, NET_RX_SOFTIRQ, BLOCK_SOFTIRQ, IRQ_POLL_SOFTIRQ,
	TASKLET_SOFTIRQ, CPUTIME_SOFTIRQ = 0, CPUTIME_IRQ, CPUTIME_STEAL,
};
extern struct accounts { unsigned int softirqs[10]; u64 cpustat[3]; } accounts;
#define kstat_this_cpu (&accounts)
#define kcpustat_this_cpu (&accounts)

/* No devices. */
#define poll_source_init() do { } while (0)
#define poll_source_exit() do { } while (0)
#define poll_sources_exist() false
#define poll_sources_start() do { } while (0)
static inline bool poll_sources_here(void) { return false; }
static inline bool poll_sources_peek(void) { return false; }
#define poll_sources_stop() false
#define poll_sources_release(halts) false
extern unsigned long devices_work;
#define poll_sources_work() (devices_work)

/* cpuidle and latency QoS. */
#define CPUIDLE_FLAG_POLLING 1
#define CPUIDLE_FLAG_RCU_IDLE 2
struct cpuidle_state_usage { u64 disable, time_ns; };
struct cpuidle_device {
	int cpu;
	bool registered, poll_time_limit;
	u64 forced_idle_latency_limit_ns;
	struct cpuidle_state_usage states_usage[2];
};
struct cpuidle_driver;
struct cpuidle_state {
	int (*enter)(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index);
	unsigned int flags, exit_latency, target_residency;
	u64 exit_latency_ns;
	const char *name, *desc;
};
struct cpuidle_driver { const char *name; struct cpuidle_state states[2]; int state_count; };
extern bool memory_is_short;
static inline int cpuidle_register_device(struct cpuidle_device *dev)
{
	dev->registered = !memory_is_short;
	return memory_is_short ? -ENOMEM : 0;
}
#define cpuidle_unregister_device(dev) do { } while (0)
#define cpuidle_unregister_driver(driver) do { } while (0)
#define cpuidle_pause_and_lock() do { } while (0)
#define cpuidle_resume_and_unlock() do { } while (0)
#define idle_driver_register(driver) 0
#define idle_driver_halt() halt_cpu()
#define idle_driver_pass_quiescent_state() do { } while (0)
struct pm_qos_request { int unused; };
#define latency_qos_watch(request) do { } while (0)
#define latency_qos_unwatch(request) do { } while (0)
#define latency_qos_limit_ns(request, cpu) (qos_limit_ns)

/* Interfaces. */
struct kobject { int unused; };
struct device { struct kobject kobj; int id; };
struct device_attribute { int unused; };
struct attribute;
struct attribute_group { const char *name; struct attribute **attrs; };
struct kernel_param { const char *name; };
struct kernel_param_ops {
	int (*set)(const char *text, const struct kernel_param *kp);
	int (*get)(char *text, const struct kernel_param *kp);
};
struct subsys_interface {
	const char *name;
	void *subsys;
	int (*add_dev)(struct device *dev, struct subsys_interface *sif);
	void (*remove_dev)(struct device *dev, struct subsys_interface *sif);
};
static int cpu_subsys;
static struct device a_device;
#define get_cpu_device(cpu) (&a_device)
#define sysfs_create_group(kobj, group) 0
#define sysfs_remove_group(kobj, group) do { } while (0)
#define subsys_interface_register(interface) 0
#define sysfs_emit(text, ...) 0
#define DEVICE_ATTR_RO(name) struct { struct attribute *attr; } dev_attr_##name
#define module_param_cb(...) extern int unused
#define MODULE_PARM_DESC(...) extern int unused
#define MODULE_DESCRIPTION(text) extern int unused
#define MODULE_LICENSE(text) extern int unused
#define module_init(function) extern int unused
#define module_exit(function) extern int unused
#define late_initcall(function) extern int unused
#define kstrtobool(text, result) (*(result) = true, 0)
#define param_set_uint_minmax(text, kp, from, to) 0
static inline int param_get_uint(char *text, const struct kernel_param *kp) { return 0; }
#define DEFINE_MUTEX(name) int name
#define lockdep_assert_held(lock) (void)(lock)
struct workqueue_struct;
struct work_struct { int unused; };
#define DECLARE_WORK(name, function) void (*name)(struct work_struct *) = function
#define queue_work(queue, work) do { } while (0)
#define alloc_workqueue(...) NULL
#define destroy_workqueue(queue) do { } while (0)
#endif
"""
STUBS = """asm/barrier linux/cleanup linux/context_tracking_state linux/cpu linux/cpuhotplug
linux/cpuidle linux/device linux/init linux/instrumentation linux/interrupt linux/irqflags
linux/jiffies linux/kernel_stat linux/kstrtox linux/lockdep linux/math linux/mmu_context
linux/module linux/moduleparam linux/mutex linux/percpu linux/pm_qos linux/poll_source
linux/processor linux/rcupdate linux/sched linux/sched/idle linux/smp linux/suspend linux/sysfs
linux/thread_info linux/tick linux/timekeeping linux/workqueue sched"""

# Without headers of ours that reach deep into the kernel.
MODULE = """
#define _LINUX_POLL_SOURCE_H
#define _DRIVERS_CPUIDLE_IDLE_DRIVER_H
#define _DRIVERS_CPUIDLE_LATENCY_QOS_H
#include <kernel.h>
#include "cpuidle-lightsleep.c"

enum lightsleep_mode lightsleep_mode(void) { return MODE_ADAPTIVE; }
u64 lightsleep_ceiling_ns(void) { return 10 * NSEC_PER_MSEC; }
u64 lightsleep_fixed_ns(const struct lightsleep *ls) { return 0; }
unsigned int lightsleep_wait_weight(void) { return 4; }
const struct attribute_group lightsleep_statistics;

static struct lightsleep states[CPUS];
static struct lightsleep *state_of(unsigned int cpu) { return &states[cpu]; }
static void prepare(void)
{
	unsigned int cpu;

	lightsleep = states;
	lightsleep_host.until_ns = 0;
	for_each_online_cpu(cpu)
		lightsleep_cpu_online(cpu);
}
void tell_to_idle(bool told) { states[0].dev.forced_idle_latency_limit_ns = told; }
u64 shown_polls(void) { return lightsleep_polls(&states[0]); }
u64 shown_hits(void) { return lightsleep_hits(&states[0]); }
void judge(void) { judge_host(now_ns); }
void halt_takes(u64 latency_ns) { set_exit_latency(latency_ns); }
unsigned int advertised_us(void) { return driver.states[HALT_INDEX].exit_latency; }
void come_online(unsigned int cpu) { lightsleep_cpu_online(cpu); }
bool is_measured(unsigned int cpu) { return !cost_ops.wait_forbidden(cpu); }
static void pass(void)
{
	struct cpuidle_device *dev = &states[0].dev;
	u64 start_ns = now_ns;
	int state = lightsleep_enter(dev, &driver, HALT_INDEX);

	dev->states_usage[state].time_ns += now_ns - start_ns;
}
"""
SERIES = """
#define _LINUX_POLL_SOURCE_H
#include <kernel.h>
#include "idle_poll.c"
#include "idle_poll_sysfs.c"

static struct idle_poll *state_of(unsigned int cpu) { return &idle_polls[cpu]; }
static void prepare(void)
{
	struct poll_limit_params p = { .halt_cost_ns = HALT_COST_NS, .ceiling_ns = POLL_MAX_NS };
	unsigned int cpu;

	memset(idle_polls, 0, sizeof(idle_polls));
	idle_poll_epoch = 1;
	idle_poll_enabled = true;
	for_each_online_cpu(cpu) {
		idle_cost_init(&idle_polls[cpu].cost, cpu);
		poll_limit_init(&idle_polls[cpu].policy, &p);
	}
}
void tell_to_idle(bool told) { } /* the idle loop does not ask the series then */
u64 shown_polls(void) { return state_of(0)->cost.polls; }
u64 shown_hits(void) { return state_of(0)->cost.hits; }
void judge(void) { }
void halt_takes(u64 latency_ns) { }
unsigned int advertised_us(void) { return 0; }
void come_online(unsigned int cpu) { }
bool is_measured(unsigned int cpu) { return true; }
static void pass(void)
{
	__idle_poll(0, false);
	if (!need_resched())
		halt_cpu();
	__idle_poll_end();
}
"""
BOTH = """
unsigned int cpus, warnings_once;
char warned[200];
u64 now_ns, wake_ns, interrupt_ns, host_takes_ns, reading_takes_ns, readings;
bool memory_is_short;
s64 qos_limit_ns;
unsigned long devices_work;
struct task idle_task, injecting_task, *running = &idle_task;
struct accounts accounts;

bool halt_cost_may_use(unsigned int cpu) { return true; }
u64 idle_cost_ns(const struct idle_cost *ic) { return HALT_COST_NS / 4; }
u64 idle_cost_wakeup_ns(const struct idle_cost *ic) { return 0; }
u64 idle_cost_machine_ns(void) { return HALT_COST_NS / 4; }
void idle_cost_start(const struct idle_cost_ops *user) { }
void idle_cost_stop(void) { }
int idle_cost_calibrate(bool quiet) { return 0; }
void idle_cost_init(struct idle_cost *ic, unsigned int cpu)
{
	memset(ic, 0, sizeof(*ic));
	wake_cost_init(&ic->programs.wake_cost, cpu);
	ic->miss_cost_ns = HALT_COST_NS;
}

void begin(unsigned int online)
{
	cpus = online;
	now_ns = 1000000000;
	reading_takes_ns = 0;
	qos_limit_ns = INT64_MAX;
	prepare();
}

/* CPU 0 is idle until a wakeup, and then works. An interrupt may end a halt before. */
void idle(u64 for_ns, u64 interrupt_after_ns)
{
	wake_ns = now_ns + for_ns;
	interrupt_ns = interrupt_after_ns ? now_ns + interrupt_after_ns : 0;
	while (!need_resched())
		pass();
	idle_task.nvcsw++;
	now_ns += 1000;
}
/*
 * CPU 0 is idle, and asked to call functions every @gap_ns, which wakes no task. Whoever asks
 * sends no interrupt to a CPU that polls.
 */
void call(u32 calls, u64 gap_ns)
{
	for (interrupt_ns = 0; calls; calls--, now_ns += 1000) {
		wake_ns = now_ns + gap_ns;
		while (!need_resched())
			pass();
	}
}
/* CPU 0 is idle; every @gap_ns a device interrupts it, which has @work. */
void interrupts(u32 interrupts, u64 gap_ns, unsigned int work)
{
	for (wake_ns = ~0ULL; interrupts; interrupts--, now_ns += 1000) {
		interrupt_ns = now_ns + gap_ns;
		while (now_ns < interrupt_ns)
			pass();
		devices_work += work;
	}
}
/* A thread has CPU 0 be idle. */
void inject(u64 for_ns)
{
	running = &injecting_task;
	for (wake_ns = now_ns + for_ns; !need_resched();)
		pass();
	running = &idle_task;
	idle_task.nvcsw++;
}
void contend(unsigned int cpu, u64 for_ns)
{
	state_of(cpu)->contention.until_ns = now_ns + for_ns;
}
const struct poll_limit *policy(void) { return &state_of(0)->policy; }
u64 polls(void) { return state_of(0)->cost.polls; }
u64 hits(void) { return state_of(0)->cost.hits; }
u64 polled_ns(void) { return state_of(0)->polled_ns; }
u64 wasted_ns(void) { return state_of(0)->wasted_ns; }
u64 gap_ns(void) { return state_of(0)->gaps.gap_ns; }
u64 deliberate_halts(void) { return state_of(0)->deliberate_halts; }
u32 aborts(void) { return state_of(0)->cost.programs.wake_cost.aborts; }
u64 cycles(void) { return state_of(0)->cost.programs.wake_cost.cycles; }
u32 halted_cycles(void) { return state_of(0)->cost.programs.wake_cost.count[WAKE_COST_HALTED]; }
u32 polled_cycles(void) { return state_of(0)->cost.programs.wake_cost.count[WAKE_COST_POLLED]; }
void force_polls(bool polls) { state_of(0)->cost.forced = polls ? WAIT_POLL : WAIT_FREE; }
bool measures(void) { return !cost_ops.polling_stopped() && !cost_ops.polling_paused(); }
"""

FFI = cffi.FFI()
FFI.cdef("typedef uint32_t u32; typedef uint64_t u64;")
FFI.cdef(declarations(HEADERS / "poll_limit.h"))
FFI.cdef("""
void begin(unsigned int online); void idle(u64 for_ns, u64 interrupt_after_ns);
void contend(unsigned int cpu, u64 for_ns); bool measures(void); void judge(void);
extern int64_t qos_limit_ns; extern unsigned long devices_work;
extern u64 reading_takes_ns, readings; u64 gap_ns(void);
void halt_takes(u64 latency_ns); unsigned int advertised_us(void);
extern unsigned int warnings_once; extern char warned[200];
void interrupts(u32 interrupts, u64 gap_ns, unsigned int work);
extern bool memory_is_short; void come_online(unsigned int cpu); bool is_measured(unsigned int cpu);
void call(u32 calls, u64 gap_ns); u64 polls(void); u64 hits(void); u64 polled_ns(void);
const struct poll_limit *policy(void); u64 deliberate_halts(void); u32 aborts(void);
u64 shown_polls(void); u64 shown_hits(void); u64 cycles(void); u32 halted_cycles(void);
extern u64 host_takes_ns; u64 wasted_ns(void); u32 polled_cycles(void); void inject(u64 for_ns);
void force_polls(bool polls); void tell_to_idle(bool told);
""")
FILES = {
    "module": (MODULE, ("host_contention", "host_short", "poll_limit", "wake_cost")),
    "series": (SERIES, ("host_contention", "poll_limit", "wake_cost")),
}
FLAGS = {
    "module": ("-DLIGHTSLEEP_MODULE",),
    "series": ("-DSERIES", "-DCONFIG_IDLE_POLL", f"-I{sources.KERNEL / 'kernel' / 'sched'}"),
}


@pytest.fixture(scope="module", params=FILES)
def library(request: pytest.FixtureRequest) -> Any:
    """Return the idle path of module or series, compiled with what it needs."""
    source, needs = FILES[request.param]
    source = f"#define HALT_COST_NS {200 * US}ULL\n{source}{BOTH}"
    return simulated(FFI, source, all_of(KERNEL_H, STUBS), needs, FLAGS[request.param])


@pytest.fixture
def lib(library: Any) -> Any:
    """Return a CPU that polls for waits of 100 us, whose next deliberate halt is not at once."""
    library.begin(1)
    for _ in range(300):
        library.idle(100 * US, 0)
    assert library.policy().limit_ns > 100 * US
    until_deliberate(library)
    library.idle(100 * US, 0)
    return library


def until_deliberate(lib: Any, interrupt_ns: int = 0) -> None:
    """Let the CPU idle until it has halted for the experiment."""
    before = lib.deliberate_halts()
    while lib.deliberate_halts() == before:
        lib.idle(100 * US, interrupt_ns)


def policy(lib: Any) -> bytes:
    return bytes(FFI.buffer(lib.policy()))


def test_a_cpu_that_its_host_keeps_from_polling_learns_nothing(lib: Any) -> None:
    lib.contend(0, 10 * SECOND)
    lib.idle(100 * US, 0)  # accounts for the last one before
    before = policy(lib)
    for _ in range(500):
        lib.idle(250 * US, 0)
    assert policy(lib) == before


def test_a_period_counts_as_it_began(lib: Any) -> None:
    before = policy(lib)
    lib.contend(0, 50 * US)
    lib.idle(100 * US, 0)  # ends after the pause; accounts for one before
    assert policy(lib) != before
    before = policy(lib)
    lib.idle(100 * US, 0)
    assert policy(lib) == before
    lib.contend(0, SECOND)
    lib.idle(100 * US, 0)  # accounts for one that was polled
    assert policy(lib) != before


def test_a_deliberate_halt_counts_once_whatever_interrupts_it(lib: Any) -> None:
    before = lib.deliberate_halts()
    until_deliberate(lib, 50 * US)
    assert lib.deliberate_halts() == before + 1


def test_a_wakeup_after_an_interrupt_aborts_no_deliberate_halt(lib: Any) -> None:
    """It comes when the CPU is about to halt again."""
    until_deliberate(lib, 100 * US - 50)
    lib.idle(100 * US, 0)  # ends the cycle
    assert lib.aborts() == 0


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_polls_that_a_latency_request_demands_are_no_evidence(lib: Any) -> None:
    """They end as hits whatever the CPU waits for, and nothing is drawn meanwhile."""

    def learned() -> tuple[int, int, int]:
        return lib.polls(), lib.hits(), lib.cycles()

    lib.halt_takes(25 * US)
    lib.qos_limit_ns = 0
    lib.idle(100 * US, 0)  # accounts for the one before
    before, polls, hits = learned(), lib.shown_polls(), lib.shown_hits()
    for _ in range(100):
        lib.idle(1000 * US, 0)
    lib.qos_limit_ns = 2**63 - 1
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.shown_polls() >= polls + 100
    assert lib.shown_hits() == hits + 101
    assert learned() == (before[0] + 1, before[1], before[2])


def cycles_around(lib: Any, demand: Callable[[bool], None], wait_us: int) -> int:
    """Return how many cycles count of 100 whose wait is demanded, and 10 after them."""
    demand(True)
    lib.idle(100 * US, 0)  # ends the one before
    before = int(lib.cycles())
    for _ in range(100):
        lib.idle(wait_us * US, 0)
    demand(False)
    for _ in range(10):
        lib.idle(100 * US, 0)
    return int(lib.cycles()) - before


def test_cycles_of_a_measurement_are_none_of_the_programs(lib: Any) -> None:
    assert cycles_around(lib, lib.force_polls, 100) == 9  # the tenth goes on


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_cycles_of_idle_injection_are_none_of_the_programs(lib: Any) -> None:
    assert cycles_around(lib, lib.tell_to_idle, 5000) == 9


@pytest.mark.parametrize("library", ["series"], indirect=True)
def test_a_cycle_with_injected_idle_time_is_no_evidence(lib: Any) -> None:
    drawn = lib.halted_cycles(), lib.polled_cycles()
    for _ in range(3000):
        lib.idle(100 * US, 0)
        lib.inject(6000 * US)
    assert (lib.halted_cycles(), lib.polled_cycles()) == drawn
    for _ in range(3000):
        lib.idle(100 * US, 0)
    assert lib.halted_cycles() > drawn[0]


def test_time_that_the_host_took_was_not_polled(lib: Any) -> None:
    lib.idle(100 * US, 0)  # accounts for the last one before
    polled_ns, wasted_ns, limit_ns = lib.polled_ns(), lib.wasted_ns(), lib.policy().limit_ns
    lib.host_takes_ns = 5 * SECOND
    lib.idle(10 * SECOND, 0)
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.polled_ns() - polled_ns < 2 * limit_ns + 100 * US
    assert lib.wasted_ns() - wasted_ns < limit_ns


def test_a_call_puts_a_deliberate_halt_off_and_does_not_end_it(lib: Any) -> None:
    before, halts = lib.halted_cycles(), lib.deliberate_halts()
    for _ in range(3000):
        lib.call(1, 50)  # when the CPU is about to halt
        lib.idle(100 * US, 0)
    lib.call(1, 50)  # ends the last one
    assert lib.halted_cycles() - before > 5
    assert lib.deliberate_halts() - halts == lib.halted_cycles() - before
    assert lib.aborts() == 0


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_wakeup_before_a_deliberate_halt_aborts_it(lib: Any) -> None:
    before = lib.halted_cycles()
    for _ in range(3000):
        lib.idle(50, 0)
    assert lib.halted_cycles() - before == lib.aborts() > 5


def test_calls_that_wake_no_task_are_one_period_that_is_polled_once(lib: Any) -> None:
    polls, hits, polled_ns = lib.polls(), lib.hits(), lib.polled_ns()
    before, limit_ns = policy(lib), lib.policy().limit_ns
    lib.call(1, 30 * US)  # accounts for the last one before
    after = policy(lib)
    lib.call(1000, 30 * US)
    assert policy(lib) == after != before
    assert lib.polls() == polls + 1
    assert lib.hits() == hits + 1  # that of the last one before
    assert limit_ns <= lib.polled_ns() - polled_ns <= limit_ns + 200 * US
    # And a task that comes soon after a call is caught by what is left of the limit.
    lib.idle(100 * US, 0)
    hits = lib.hits()
    lib.call(1, 30 * US)
    lib.idle(30 * US, 0)
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.hits() == hits + 1


@pytest.mark.parametrize("reading_ns", [20, 300, 1 * US, 5 * US])
def test_a_poll_spends_little_time_with_a_slow_clock(lib: Any, reading_ns: int) -> None:
    """As HPET or the ACPI PM timer, where x86 has no usable TSC."""
    for_ns, hits = lib.policy().limit_ns - 10 * US, lib.hits()
    assert for_ns > 100 * US
    lib.reading_takes_ns, lib.readings = reading_ns, 0
    lib.idle(for_ns, 0)
    assert lib.readings * reading_ns < 0.2 * for_ns
    assert lib.gap_ns() == 0
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.hits() > hits


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_work_of_a_device_ends_a_period_and_no_other_interrupt_does(lib: Any) -> None:
    def polls_meanwhile(work: int) -> int:
        before = lib.polls()
        lib.interrupts(100, 30 * US, work)
        return int(lib.polls() - before)

    assert polls_meanwhile(0) <= 2
    assert polls_meanwhile(1) >= 50


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_no_result_takes_halts_from_cpus_whose_limit_allows_them(library: Any) -> None:
    library.begin(2)
    library.halt_takes(25 * US)
    assert library.advertised_us() == 32
    library.qos_limit_ns = 32 * US  # as who reads that may ask for
    library.halt_takes(60 * US)
    assert library.advertised_us() == 32
    library.qos_limit_ns = 50 * US
    library.halt_takes(60 * US)
    assert library.advertised_us() == 50
    library.qos_limit_ns = 20 * US  # forbids HALT anyway
    library.halt_takes(60 * US)
    assert library.advertised_us() == 75
    library.qos_limit_ns = 80 * US
    library.halt_takes(10 * US)
    assert library.advertised_us() == 13


def result(library: Any, halt_us: int) -> tuple[int, int]:
    """Return how often the log warns of a result, and what is advertised then, in us."""
    before = library.warnings_once
    library.halt_takes(halt_us * US)
    return library.warnings_once - before, library.advertised_us()


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_the_log_says_where_halt_takes_longer_than_a_limit_that_allows_it(library: Any) -> None:
    library.begin(2)
    library.halt_takes(25 * US)
    library.qos_limit_ns = 32 * US
    allowed = [result(library, x) for x in (25, 32, 33, 60)]
    assert allowed == [(0, 32), (0, 32), (1, 32), (1, 32)]
    library.qos_limit_ns = 20 * US  # forbids HALT anyway
    assert result(library, 40) == (0, 50)


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_limit_that_a_result_keeps_is_not_too_low(library: Any) -> None:
    """The margin is no time that a halt takes."""
    library.begin(2)
    for halt_us in (1, 16):
        library.halt_takes(halt_us * US)
    assert library.advertised_us() == 20
    library.qos_limit_ns = 30 * US
    assert [result(library, x) for x in (26, 60)] == [(0, 30), (1, 30)]
    said = bytes(FFI.buffer(library.warned))
    assert said.startswith(b"HALT takes 60 us now; a latency limit of 30 us allows it")


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_cpu_that_idles_without_the_driver_is_not_measured(library: Any) -> None:
    library.begin(2)
    library.memory_is_short = True
    library.come_online(1)
    library.memory_is_short = False
    assert [library.is_measured(x) for x in (0, 1)] == [True, False]
    library.come_online(1)
    assert library.is_measured(1)


@pytest.mark.parametrize(
    ("cpus", "enough"), [(1, 1), (2, 2), (3, 2), (8, 2), (9, 3), (12, 3), (13, 4)]
)
def test_the_machine_is_not_measured_where_a_quarter_of_its_cpus_want_for_cores(
    library: Any, cpus: int, enough: int
) -> None:
    library.begin(cpus)
    for cpu in range(enough):
        assert library.measures()
        library.contend(cpu, SECOND)
        library.judge()
    assert not library.measures()

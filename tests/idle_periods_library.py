# SPDX-License-Identifier: GPL-2.0-only
"""The idle paths of module and series, the kernel's own files, on one CPU with a clock of ours."""

from typing import Any

import cffi
from kernel_library import all_of, simulated

from lightsleep import sources
from lightsleep.compiled import HEADERS, declarations

US = 10**3

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
static inline void spin_begin(void) { }
static inline void spin_end(void) { }
static inline void spin_cpu_relax(void) { now_ns += 100 + host_takes_ns; host_takes_ns = 0; }
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
struct attribute { int unused; };
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
#define DEVICE_ATTR_RO(name) struct { struct attribute attr; } dev_attr_##name
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


def idle_path(name: str) -> Any:
    """Return one of FILES, compiled with what it needs."""
    source, needs = FILES[name]
    source = f"#define HALT_COST_NS {200 * US}ULL\n{source}{BOTH}"
    return simulated(FFI, source, all_of(KERNEL_H, STUBS), needs, FLAGS[name])

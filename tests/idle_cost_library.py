# SPDX-License-Identifier: GPL-2.0-only
"""idle_cost.c, the kernel's own file, on one CPU that polls, with time and measurements as told."""

import functools
from typing import Any

import cffi
from kernel_library import simulated

NEEDS = ("machine_cost", "poll_limit", "program_cost", "wake_cost")

# As far as the file needs them: one CPU, nothing runs by itself, and time goes on when it is told.
# Threads of Python may ask for measurements at a time.
HEADERS = {
    "asm/barrier.h": """
#define smp_load_acquire(p) READ_ONCE(*(p))
#define smp_store_release(p, value) WRITE_ONCE(*(p), value)
""",
    "linux/bits.h": """
#define BIT(n) (1UL << (n))
""",
    "linux/cpu.h": """
#define cpus_read_lock() do { } while (0)
#define cpus_read_unlock() do { } while (0)
#define for_each_online_cpu(cpu) for ((cpu) = 0; (cpu) < 1; (cpu)++)
""",
    "linux/debugfs.h": """
#define debugfs_create_dir(name, parent) NULL
#define debugfs_create_file(name, mode, parent, data, fops) do { } while (0)
#define debugfs_remove(dentry) do { } while (0)
""",
    "linux/jiffies.h": """
#define HZ 250
#define TICK_NSEC (1000000000L / HZ)
extern unsigned long jiffies;
#define time_before(a, b) ((long)((a) - (b)) < 0)
#define round_jiffies_relative(j) (j)
#define jiffies_to_msecs(j) ((unsigned int)((j) * 1000 / HZ))
""",
    "linux/kernel.h": """
#include <stdio.h>
#define scnprintf snprintf
""",
    "linux/mutex.h": """
#include <pthread.h>
#define ERESTARTSYS 512
extern bool is_killed;
extern int writers;
#define DEFINE_MUTEX(name) pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER
#define mutex_lock(mutex) pthread_mutex_lock(mutex)
#define mutex_unlock(mutex) pthread_mutex_unlock(mutex)
static inline int mutex_lock_interruptible(pthread_mutex_t *mutex)
{
	__atomic_add_fetch(&writers, 1, __ATOMIC_SEQ_CST);
	return is_killed ? -EINTR : pthread_mutex_lock(mutex);
}
""",
    "linux/sched.h": """
#define cond_resched() do { } while (0)
""",
    "linux/seq_file.h": """
#include <stdio.h>
struct seq_file { char text[1000]; size_t length; };
#define seq_printf(file, ...) \
	((file)->length += snprintf((file)->text + (file)->length, 500, __VA_ARGS__))
#define seq_puts(file, text) seq_printf(file, "%s", text)
#define DEFINE_SHOW_ATTRIBUTE(name) int (*name##_shown)(struct seq_file *, void *) = name##_show
""",
    "linux/timekeeping.h": """
#define NSEC_PER_USEC 1000L
u64 ktime_get_ns(void);
""",
    "linux/typecheck.h": "",
    "linux/workqueue.h": """
struct work_struct;
#define DECLARE_DELAYED_WORK(name, function) void (*name)(struct work_struct *) = function
extern unsigned long next_in;
#define queue_delayed_work(queue, work, delay) (next_in = (delay))
#define cancel_delayed_work_sync(work) do { } while (0)
""",
}
SOURCE = """
#include <errno.h>
#include <stddef.h>
#include <unistd.h>
#include <linux/minmax.h>
char log_line[500];
int warnings;
#define pr_info(...) snprintf(log_line, sizeof(log_line), __VA_ARGS__)
#define pr_warn(...) (warnings++, snprintf(log_line, sizeof(log_line), __VA_ARGS__))
#include <stdio.h>
#include "idle_cost.c"
#include <linux/idle_poll/poll_limit.h>
#ifndef LIGHTSLEEP_MODULE
#define idle_cost_calibrate calibrate
#endif

unsigned long jiffies;
static u64 now_ns;
u64 ktime_get_ns(void) { return now_ns; }
bool halt_cost_may_use(unsigned int cpu) { return true; }

static struct halt_cost found_ns[HALT_COST_SLEEPS];
static int ends_with;
int measurements;
bool is_killed;
int writers, ends_after_writers;
int halt_cost_measure(const struct halt_cost_ops *of, struct halt_cost found[HALT_COST_SLEEPS])
{
	int n;

	measurements++;
	for (n = 0; n < 5000 && __atomic_load_n(&writers, __ATOMIC_SEQ_CST) < ends_after_writers; n++)
		usleep(1000);
	memcpy(found, found_ns, sizeof(found_ns));
	return ends_with;
}

static struct idle_cost the_cpu;
static struct poll_limit policy;
u64 advertised_ns;
static struct idle_cost *cost_of(unsigned int cpu) { return &the_cpu; }
static unsigned int weight(void) { return 4; }
bool learns_nothing;
static bool learning(unsigned int cpu) { return !learns_nothing; }
bool is_stopped, is_paused;
unsigned long next_in;
static unsigned long due;
static bool stopped(void) { return is_stopped; }
static bool paused(void) { return is_paused; }
static bool forbidden(unsigned int cpu) { return false; }
static void advertise(u64 latency_ns) { advertised_ns = latency_ns; }
static const struct idle_cost_ops test_ops = {
	.of = cost_of, .wait_weight = weight, .learns = learning, .polling_stopped = stopped,
	.polling_paused = paused,
#ifdef LIGHTSLEEP_MODULE
	.wait_forbidden = forbidden, .set_exit_latency = advertise,
#endif
};

static struct poll_limit_params params(void)
{
	return (struct poll_limit_params) {
		.halt_cost_ns = the_cpu.miss_cost_ns, .ceiling_ns = 10000000,
	};
}

void begin(void)
{
	struct poll_limit_params p;

	ops = &test_ops;
	running = true;
	memset(&machine, 0, sizeof(machine));
	is_stopped = is_paused = learns_nothing = is_killed = false;
	writers = ends_after_writers = 0;
	reported = 0;
	warnings = 0;
	calibrate_wait = 0;
	advertised_ns = 0;
	jiffies = due = (unsigned int)(-300 * HZ); /* where the kernel's begin */
	now_ns = 0;
	idle_cost_init(&the_cpu, 0);
	p = params();
	poll_limit_init(&policy, &p);
}

void find(int sleep, s64 cost_ns, s64 margin_ns)
{
	found_ns[sleep].slept_ns = 1;
	found_ns[sleep].estimate.cost_ns = cost_ns;
	found_ns[sleep].estimate.lower_ns = cost_ns - margin_ns;
	found_ns[sleep].estimate.upper_ns = cost_ns + margin_ns;
	found_ns[sleep].worst_ns = cost_ns > 0 ? 2 * cost_ns : 0;
}

int measure_found(int ret)
{
	ends_with = ret;
	return idle_cost_calibrate(false);
}

void start(int ret)
{
	ends_with = ret;
	idle_cost_start(&test_ops);
}

int measure(int ret, s64 cost_ns, s64 margin_ns)
{
	int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		find(n, cost_ns, margin_ns);
	return measure_found(ret);
}

const char *shown(void)
{
	static struct seq_file file;

	file.length = 0;
	halt_cost_show(&file, NULL);
	return file.text;
}

void programs_lose(s64 cost_ns, s64 upper_ns)
{
	the_cpu.programs.estimate.cost_ns = cost_ns;
	the_cpu.programs.estimate.upper_ns = upper_ns;
	the_cpu.programs.estimated = true;
}

/* A second in which the programs wake after each of these; a halt delays them. */
void pass_second(const u64 *cycle_ns, int cycles, u64 halt_ns)
{
	int n;

	for (n = 0; n < cycles; n++) {
		bool halts = wake_cost_begin(&the_cpu.programs.wake_cost, now_ns, true);

		the_cpu.polls += !halts;
		the_cpu.hits += !halts;
		wake_cost_end(&the_cpu.programs.wake_cost, cycle_ns[n] + (halts ? halt_ns : 0));
		now_ns += 1000000000ULL / cycles;
	}
	jiffies += HZ;
	estimate_costs(NULL);
}

static void work_when_due(void)
{
	if (time_before(jiffies, due))
		return;
	estimate_costs(NULL);
	due = jiffies + next_in;
}

/*
 * A second of cycles on a CPU that learns how long to poll: it waits, is woken, which takes longer
 * from a halt, and works. Returns which part of its idle time it polled, in 1/1000.
 */
unsigned int live_second(const u64 *wait_ns, int waits, u64 work_ns, u64 halt_ns)
{
	u64 end_ns = now_ns + 1000000000, polled_ns = 0, idle_ns = 0;
	struct poll_limit_params p;
	int n;

	for (n = 0; n < waits && now_ns < end_ns; n++) {
		u64 limit_ns = policy.limit_ns, seen_ns = wait_ns[n], cycle_ns = wait_ns[n] + work_ns;
		bool draws = limit_ns && !learns_nothing;
		bool deliberate = wake_cost_begin(&the_cpu.programs.wake_cost, now_ns, draws);

		if (!deliberate && limit_ns) {
			the_cpu.polls++;
			the_cpu.hits += wait_ns[n] <= limit_ns;
			polled_ns += min(wait_ns[n], limit_ns);
		}
		idle_ns += wait_ns[n];
		if (deliberate || wait_ns[n] > limit_ns) {
			cycle_ns += halt_ns;
			seen_ns += halt_ns - min(halt_ns, idle_cost_wakeup_ns(&the_cpu));
		}
		p = params();
		if (!deliberate)
			poll_limit_update(&policy, &p, seen_ns);
		now_ns += cycle_ns;
		wake_cost_end(&the_cpu.programs.wake_cost, cycle_ns);
	}
	now_ns = end_ns;
	jiffies += HZ;
	work_when_due();
	return polled_ns * 1000 / idle_ns;
}

void wait(unsigned int seconds) { jiffies += seconds * HZ; }
unsigned int its_time_comes(void) { calibrate_again(NULL); return next_in / HZ; }
bool programs_know(void) { return the_cpu.programs.estimated; }
u64 cost_ns(void) { return idle_cost_ns(&the_cpu); }
u64 wakeup_ns(void) { return idle_cost_wakeup_ns(&the_cpu); }
"""

FFI = cffi.FFI()
FFI.cdef("""
void begin(void); void start(int ret); int measure(int ret, int64_t cost_ns, int64_t margin_ns);
void programs_lose(int64_t cost_ns, int64_t upper_ns); bool programs_know(void);
void pass_second(const uint64_t *cycle_ns, int cycles, uint64_t halt_ns);
uint64_t cost_ns(void); uint64_t wakeup_ns(void);
void find(int sleep, int64_t cost_ns, int64_t margin_ns); int measure_found(int ret);
const char *shown(void); extern char log_line[500]; void wait(unsigned int seconds);
uint64_t idle_cost_machine_ns(void);
unsigned int live_second(const uint64_t *wait_ns, int waits, uint64_t work_ns, uint64_t halt_ns);
extern uint64_t advertised_ns; extern unsigned long next_in;
extern bool is_stopped, is_paused, learns_nothing; extern int measurements, warnings;
extern bool is_killed; extern int writers, ends_after_writers; /* of calibrate */
unsigned int its_time_comes(void); /* returns in how many seconds it comes again */
""")
LIB = simulated(FFI, SOURCE, HEADERS, NEEDS, ("-DLIGHTSLEEP_MODULE",))


@functools.cache
def of_series() -> Any:
    """Return the same as the series has it."""
    return simulated(FFI, SOURCE, HEADERS, NEEDS)

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as its idle governors and promote.c see, for one CPU, in user space.
 */
#ifndef _MODEL_KERNEL_H
#define _MODEL_KERNEL_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
typedef s64 ktime_t;

#define NSEC_PER_USEC	1000L
#define TICK_NSEC	4000000L
#define KTIME_MAX	INT64_MAX
#define U64_MAX		UINT64_MAX
#define S64_MAX		INT64_MAX

#define READ_ONCE(x)		(*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, val)	(*(volatile __typeof__(x) *)&(x) = (val))
#define likely(x)	(x)
#define unlikely(x)	(x)
#define noinline
#define __init
#define min(x, y)	({ __auto_type _x = (x); __auto_type _y = (y); _x < _y ? _x : _y; })
#define min_t(t, x, y)	((t)(x) < (t)(y) ? (t)(x) : (t)(y))
#define max_t(t, x, y)	((t)(x) > (t)(y) ? (t)(x) : (t)(y))
#define div_u64(x, y)	((u64)(x) / (y))
#define div64_u64(x, y)	((u64)(x) / (y))
#define do_div(x, y)	((x) /= (y))
#define container_of(p, t, m)	((t *)((char *)(p) - offsetof(t, m)))
#define ktime_sub(x, y)	((x) - (y))
#define ktime_add_ns(x, y)	((x) + (s64)(y))
#define ktime_to_us(x)	((s64)(x) / 1000)

/* One CPU. */
#define DEFINE_PER_CPU(type, name)	__typeof__(type) name
#define this_cpu_ptr(x)			(x)
#define per_cpu_ptr(x, cpu)		(x)
#define per_cpu(x, cpu)			(x)
#define for_each_possible_cpu(cpu)	for ((cpu) = 0; (cpu) < 1; (cpu)++)

#define CPUIDLE_STATE_MAX	10
#define CPUIDLE_FLAG_POLLING	1
#define CPUIDLE_FLAG_COUPLED	2
#define CPUIDLE_FLAG_TIMER_STOP	4
#define CPUIDLE_FLAG_PROMOTE	8

struct cpuidle_state_usage {
	unsigned long long disable;
	unsigned long long promoted;
};

struct cpuidle_state {
	u64 exit_latency_ns;
	u64 target_residency_ns;
	unsigned int flags;
};

struct cpuidle_driver {
	int state_count;
	struct cpuidle_state states[CPUIDLE_STATE_MAX];
};

struct cpuidle_device {
	bool enabled;
	bool poll_time_limit;
	int cpu;
	int last_state_idx;
	ktime_t next_hrtimer;
	u64 last_residency_ns;
	u64 forced_idle_latency_limit_ns;
	struct cpuidle_state_usage states_usage[CPUIDLE_STATE_MAX];
};

struct cpuidle_governor {
	const char *name;
	int rating;
	int (*enable)(struct cpuidle_driver *drv, struct cpuidle_device *dev);
	int (*select)(struct cpuidle_driver *drv, struct cpuidle_device *dev, bool *stop_tick);
	void (*reflect)(struct cpuidle_device *dev, int index);
};

int cpuidle_register_governor(struct cpuidle_governor *governor);
#define postcore_initcall(fn)	static void __attribute__((constructor)) start_##fn(void) { fn(); }
#define core_initcall(fn)	postcore_initcall(fn)

s64 cpuidle_governor_latency_req(unsigned int cpu);
extern struct cpuidle_device *cpuidle_devices;
struct cpuidle_driver *cpuidle_get_cpu_driver(struct cpuidle_device *dev);

u64 local_clock(void);
#define ktime_get()	((ktime_t)local_clock())

#define tick_nohz_enabled	true
bool tick_nohz_tick_stopped(void);
bool tick_nohz_idle_got_tick(void);
ktime_t tick_nohz_get_next_hrtimer(void);
ktime_t tick_nohz_get_sleep_length(ktime_t *delta_next);

struct hrtimer {
	ktime_t expires;
	int (*function)(struct hrtimer *timer);
};
enum hrtimer_restart { HRTIMER_NORESTART };
#define hrtimer_resolution	1
#define HRTIMER_MODE_ABS_PINNED_HARD	0
#define hrtimer_setup(t, fn, clock, mode)	((t)->function = (void *)(fn), (t)->expires = KTIME_MAX)
void hrtimer_start(struct hrtimer *timer, ktime_t expires, int mode);
void hrtimer_try_to_cancel(struct hrtimer *timer);

struct task_struct {
	unsigned long nvcsw, nivcsw;
};
extern struct task_struct *current;
bool need_resched(void);

#define idle_should_enter_s2idle()	false
#define nr_iowait_cpu(cpu)		0UL	/* no recording says how many tasks wait for I/O */
#define cpu_is_isolated(cpu)		false
#define housekeeping_cpu(cpu, type)	true
#define trace_cpu_idle_promote(...)	do { } while (0)

#define DEFINE_SPINLOCK(name)	int name
#define spin_lock(lock)		((void)(lock))
#define spin_unlock(lock)	((void)(lock))
#define mutex_lock(lock)	do { } while (0)
#define mutex_unlock(lock)	do { } while (0)

struct kernel_param { int unused; };
struct kernel_param_ops {
	int flags;
	int (*set)(const char *text, const struct kernel_param *kp);
	int (*get)(const char *text, const struct kernel_param *kp);
};
#define KERNEL_PARAM_OPS_FL_NOARG	0
int param_set_bool(const char *text, const struct kernel_param *kp);
#define param_get_bool	NULL
#define module_param_cb(name, ops, arg, mode)	\
	const struct kernel_param_ops *param_##name = (ops); bool *param_##name##_arg = (arg)
#define MODULE_PARM_DESC(...)

#endif

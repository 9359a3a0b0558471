# SPDX-License-Identifier: GPL-2.0-only
"""What stands in for kernel headers where poll_source.c is compiled for user space."""

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
#define pr_err(...) do { } while (0)
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

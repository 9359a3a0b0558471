// SPDX-License-Identifier: GPL-2.0-only
/*
 * cpuidle-synthetic: idle states that the user defines, and that really take
 * their exit latency.
 *
 * A test of idle latencies needs states whose latency is known, and most virtual
 * machines have none. Here, a state is an item of text,
 * name:latency_us:residency_us. The CPU does the same in all of them: it halts,
 * and once woken it is busy for the exit latency with interrupts off, as a CPU
 * that powers up would be. A fourth field makes a state that lies, as some
 * firmware does: it advertises one latency and has another, or it refuses to be
 * entered ("never"). Both serve to test the verdicts of a measurement.
 *
 * The latency must pass before the wakeup is served. On arm64 and powernv, the
 * interrupt that ends a halt stays pending, so the latency passes after the halt.
 * On x86 ("sti; hlt") and pseries (H_CEDE), that interrupt is handled within the
 * halt. There, the latency passes in the tracepoint at the beginning of its
 * handler, so hrtimer and IPI handlers are as late as the woken thread. An
 * interrupt without such a tracepoint is served first, and the latency passes
 * after the halt: it delays the woken thread, not that handler.
 *
 * Attaching to tracepoints makes the kernel patch its code, so it happens once,
 * at load.
 *
 * Where the kernel has promotion (promote.c), the driver asks for it in all states,
 * unless promote=0.
 *
 * The time that the hardware or the hypervisor needs to end a halt adds to the
 * latency. With spin=1 it does not: the CPU waits for an interrupt without halting.
 *
 * Context of synthetic_enter(): idle task, interrupts off, RCU is watching
 * (CPUIDLE_FLAG_RCU_IDLE) except within the halt. The idle loop has cleared the
 * polling flag, so a waker sends an interrupt to this CPU, unless the halt is an MWAIT,
 * which sets the flag again: then no handler is late, but the woken thread is, as much.
 * Only @owed_ns and @asleep change after load, and only their own CPU accesses them.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/cpuidle.h>
#include <linux/ctype.h>
#include <linux/interrupt.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/stringify.h>
#include <linux/sysfs.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>

#ifdef CONFIG_ARM64
#include <asm/cpuidle.h>
#include <asm/sysreg.h>
#endif

#include "idle_driver.h"

#define LATENCY_MAX_US		(100 * USEC_PER_MSEC)
#define RESIDENCY_MAX_US	(10 * USEC_PER_SEC)

/* Instead of a real latency: the state is never entered. */
#define NEVER			U32_MAX

/* What a state really takes. */
static u32 real_latency_us[CPUIDLE_STATE_MAX];

/* Exit latency that this CPU has not taken yet. */
static DEFINE_PER_CPU(u64, owed_ns);

/* No interrupt has come since this CPU began to spin. */
static DEFINE_PER_CPU(bool, asleep);

static bool spin;
module_param(spin, bool, 0444);
MODULE_PARM_DESC(spin, "wait for interrupts without halting, so that a state takes exactly its latency (default: off)");

static bool promote = true;
module_param(promote, bool, 0444);
MODULE_PARM_DESC(promote, "ask the kernel to leave states that last too long; few kernels can (default: on)");

static struct cpuidle_device __percpu *devices;
static enum cpuhp_state hotplug_state;

/* .owner stays unset, as in cpuidle-lightsleep: devices would hold references. */
static struct cpuidle_driver driver = {
	.name = "synthetic",
};

/*
 * The clock is one that advances while interrupts are off: where the TSC is not
 * stable, local_clock() stands still until the next tick.
 *
 * No cpu_relax() in these loops: a hypervisor may run something else on
 * it, and then the latency gets longer than requested.
 */
static void synthetic_pay(void)
{
	u64 ns = __this_cpu_read(owed_ns);
	u64 start_ns;

	__this_cpu_write(asleep, false);
	if (!ns)
		return;
	start_ns = ktime_get_mono_fast_ns();
	__this_cpu_write(owed_ns, 0);
	while (ktime_get_mono_fast_ns() - start_ns < ns)
		barrier();
}

/*
 * A halt but for the instruction. Where a halt takes the interrupt that ends it,
 * so does this; elsewhere the interrupt stays pending.
 */
static __cpuidle void synthetic_spin(void)
{
#ifdef CONFIG_ARM64
	struct arm_cpuidle_irq_context context;
#endif

	this_cpu_write(asleep, true);
	instrumentation_begin();
	ct_cpuidle_enter();
#ifdef CONFIG_ARM64
	/* What pseudo-NMIs mask by priority is not pending: as cpu_do_idle() does. */
	arm_cpuidle_save_irq_context(&context);
	while (!read_sysreg(isr_el1))
		barrier();
	arm_cpuidle_restore_irq_context(&context);
#else
	raw_local_irq_enable();
	while (this_cpu_read(asleep) && !need_resched())
		barrier();
	raw_local_irq_disable();
#endif
	ct_cpuidle_exit();
	instrumentation_end();
}

static int synthetic_enter(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	u32 latency_us = real_latency_us[index];

	if (latency_us == NEVER) {
		/* Where nothing else is left, the idle loop tries for ever. */
		idle_driver_pass_quiescent_state();
		return -EBUSY;
	}

	__this_cpu_write(owed_ns, (u64)latency_us * NSEC_PER_USEC);
	if (spin)
		synthetic_spin();
	else
		idle_driver_halt();
	synthetic_pay();
	return index;
}

/*
 * Where the handlers of those interrupts begin that can end a halt. Those that
 * a CPU sends to itself only, as for IRQ work, cannot.
 */
struct beginning {
	const char *name;
	void *probe;
	struct tracepoint *tracepoint;
};

#if defined(CONFIG_X86)
static void enter_vector(void *unused, int vector)
{
	synthetic_pay();
}

static void enter_irq(void *unused, int irq, struct irqaction *action)
{
	synthetic_pay();
}

static struct beginning beginnings[] = {
	{ "local_timer_entry", enter_vector },
	{ "reschedule_entry", enter_vector },
	{ "call_function_entry", enter_vector },
	{ "call_function_single_entry", enter_vector },
	{ "irq_handler_entry", enter_irq },
};
#elif defined(CONFIG_PPC64)
static void enter_exception(void *unused, struct pt_regs *regs)
{
	synthetic_pay();
}

static struct beginning beginnings[] = {
	{ "timer_interrupt_entry", enter_exception },
	{ "doorbell_entry", enter_exception },
	{ "irq_entry", enter_exception },
};
#else
static struct beginning beginnings[] = {};
#endif

/* Tracepoints are not exported one by one, but can be found by name. */
static void attach(struct tracepoint *tracepoint, void *unused)
{
	for (int i = 0; i < ARRAY_SIZE(beginnings); i++) {
		if (!strcmp(tracepoint->name, beginnings[i].name) &&
		    !tracepoint_probe_register(tracepoint, beginnings[i].probe, NULL))
			beginnings[i].tracepoint = tracepoint;
	}
}

static void attach_to_interrupts(void)
{
	for_each_kernel_tracepoint(attach, NULL);
	for (int i = 0; i < ARRAY_SIZE(beginnings); i++) {
		if (!beginnings[i].tracepoint)
			pr_warn("no tracepoint %s: its handler runs before the exit latency has passed\n",
				beginnings[i].name);
	}
}

static void detach_from_interrupts(void)
{
	for (int i = 0; i < ARRAY_SIZE(beginnings); i++) {
		if (beginnings[i].tracepoint)
			tracepoint_probe_unregister(beginnings[i].tracepoint,
						    beginnings[i].probe, NULL);
	}
	tracepoint_synchronize_unregister();
}

/* The parameter. Each of these returns what is wrong, or NULL. */

static const char *parse_name(const char *text, char *name)
{
	if (!text || !*text)
		return "the name is missing";
	for (const char *c = text; *c; c++) {
		if (!isascii(*c) || (!isalnum(*c) && !strchr("-_.", *c)))
			return "a name can have letters, digits, '-', '_' and '.' only";
	}
	if (strscpy(name, text, CPUIDLE_NAME_LEN) < 0)
		return "a name can have 15 characters at most";
	for (int i = 0; i < driver.state_count; i++) {
		if (!strcmp(driver.states[i].name, name))
			return "an earlier item has this name";
	}
	return NULL;
}

static bool parse_us(const char *text, u32 max, u32 *us)
{
	return text && isdigit(*text) && !kstrtou32(text, 10, us) && *us <= max;
}

static const char *parse_times(char **rest, struct cpuidle_state *state, u32 *real_us)
{
	const struct cpuidle_state *before = driver.state_count ? state - 1 : NULL;
	const char *real;

	if (!parse_us(strsep(rest, ":"), LATENCY_MAX_US, &state->exit_latency))
		return "latency_us must be a number from 0 to 100000";
	if (!parse_us(strsep(rest, ":"), RESIDENCY_MAX_US, &state->target_residency))
		return "residency_us must be a number from 0 to 10000000";
	if (state->target_residency < state->exit_latency)
		return "the residency is below the latency";
	if (before && state->exit_latency <= before->exit_latency)
		return "the latency must be above that of the previous item";
	if (before && state->target_residency <= before->target_residency)
		return "the residency must be above that of the previous item";

	real = strsep(rest, ":");
	if (!real)
		*real_us = state->exit_latency;
	else if (!strcmp(real, "never"))
		*real_us = NEVER;
	else if (!parse_us(real, LATENCY_MAX_US, real_us))
		return "real_latency_us must be a number from 0 to 100000, or never";
	if (*rest)
		return "there are more than four fields";
	return NULL;
}

static const char *parse_state(char *item)
{
	struct cpuidle_state *state = &driver.states[driver.state_count];
	u32 *real_us = &real_latency_us[driver.state_count];
	const char *wrong;

	if (driver.state_count == CPUIDLE_STATE_MAX)
		return "there can be " __stringify(CPUIDLE_STATE_MAX) " states at most";
	memset(state, 0, sizeof(*state));
	wrong = parse_name(strsep(&item, ":"), state->name);
	if (!wrong)
		wrong = parse_times(&item, state, real_us);
	if (wrong)
		return wrong;

	if (*real_us == NEVER)
		strscpy(state->desc, "synthetic, never entered", CPUIDLE_DESC_LEN);
	else
		snprintf(state->desc, CPUIDLE_DESC_LEN, "synthetic, takes %u us", *real_us);
	state->enter = synthetic_enter;
	state->flags = CPUIDLE_FLAG_RCU_IDLE;
	driver.state_count++;
	return NULL;
}

static int states_set(const char *text, const struct kernel_param *kp)
{
	char *copy = kstrdup(text, GFP_KERNEL);
	char *rest = copy;
	char *item;

	if (!copy)
		return -ENOMEM;
	driver.state_count = 0;
	while ((item = strsep(&rest, ","))) {
		/* Longer than any good item; parsing cuts it into pieces. */
		char whole[64];
		const char *wrong;

		strscpy(whole, item, sizeof(whole));
		wrong = parse_state(item);
		if (wrong) {
			pr_err("states: item %d, \"%s\": %s\n",
			       driver.state_count + 1, whole, wrong);
			pr_err("states: an item is name:latency_us:residency_us[:real_latency_us|:never]\n");
			kfree(copy);
			return -EINVAL;
		}
	}
	kfree(copy);
	return 0;
}

static int states_get(char *text, const struct kernel_param *kp)
{
	int at = 0;

	for (int i = 0; i < driver.state_count; i++) {
		const struct cpuidle_state *state = &driver.states[i];

		at += sysfs_emit_at(text, at, "%s%s:%u:%u:", i ? "," : "", state->name,
				    state->exit_latency, state->target_residency);
		if (real_latency_us[i] == NEVER)
			at += sysfs_emit_at(text, at, "never");
		else
			at += sysfs_emit_at(text, at, "%u", real_latency_us[i]);
	}
	return at + sysfs_emit_at(text, at, "\n");
}

static const struct kernel_param_ops states_ops = {
	.set = states_set,
	.get = states_get,
};
module_param_cb(states, &states_ops, NULL, 0444);
MODULE_PARM_DESC(states, "idle states: name:latency_us:residency_us[:real_latency_us|:never],... shallowest first, 10 at most");

/* CPU hotplug. Runs on the CPU itself. */

static int synthetic_cpu_online(unsigned int cpu)
{
	struct cpuidle_device *dev = per_cpu_ptr(devices, cpu);
	int ret;

	memset(dev, 0, sizeof(*dev));
	dev->cpu = cpu;
	ret = cpuidle_register_device(dev);
	/* A CPU without us idles as before; that is no reason to keep it offline. */
	if (ret)
		pr_warn("CPU %u does not enter the states: its idle device cannot be registered: error %d\n",
			cpu, ret);
	return 0;
}

static int synthetic_cpu_offline(unsigned int cpu)
{
	cpuidle_unregister_device(per_cpu_ptr(devices, cpu));
	return 0;
}

static int __init synthetic_init(void)
{
	int ret;

	for (int i = 0; promote && i < driver.state_count; i++)
		driver.states[i].flags |= CPUIDLE_FLAG_PROMOTE;
	if (!driver.state_count) {
		pr_err("states: is missing; give name:latency_us:residency_us[:real_latency_us|:never],...\n");
		return -EINVAL;
	}
	ret = idle_driver_register(&driver);
	if (ret)
		return ret;

	ret = -ENOMEM;
	devices = alloc_percpu(struct cpuidle_device);
	if (!devices)
		goto unregister;

	attach_to_interrupts();
	ret = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "cpuidle/synthetic:online",
				synthetic_cpu_online, synthetic_cpu_offline);
	if (ret < 0)
		goto detach;
	hotplug_state = ret;
	return 0;

detach:
	detach_from_interrupts();
	free_percpu(devices);
unregister:
	cpuidle_unregister_driver(&driver);
	return ret;
}

/* Each CPU takes back its device in a thread, so none is left in our states. */
static void __exit synthetic_exit(void)
{
	cpuhp_remove_state(hotplug_state);
	detach_from_interrupts();
	cpuidle_unregister_driver(&driver);
	free_percpu(devices);
}

module_init(synthetic_init);
module_exit(synthetic_exit);
MODULE_DESCRIPTION("cpuidle driver whose idle states the user defines");
MODULE_LICENSE("GPL");

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an idle driver needs whatever its states are: how to halt, and how to
 * get hold of the CPUs, or say why it cannot.
 *
 * A header, so that messages carry the name of the module that says them.
 */
#ifndef _DRIVERS_CPUIDLE_IDLE_DRIVER_H
#define _DRIVERS_CPUIDLE_IDLE_DRIVER_H

#include <linux/cpu.h>
#include <linux/cpuidle.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/string.h>

#include "idle_override.h"
#ifdef CONFIG_X86
#include <asm/cpufeature.h>
#endif

/*
 * Interrupts stay off from the last look of the idle loop to the instruction
 * that halts. RCU does not watch in between the two ct_ calls.
 */
static __cpuidle void idle_driver_halt(void)
{
	instrumentation_begin();
	ct_cpuidle_enter();
	arch_cpu_idle();
	ct_cpuidle_exit();
	instrumentation_end();
}

/* A CPU that neither halts nor schedules must let RCU look away now and then. */
static __cpuidle void idle_driver_pass_quiescent_state(void)
{
	instrumentation_begin();
	ct_cpuidle_enter();
	ct_cpuidle_exit();
	instrumentation_end();
}

/*
 * Does the local timer stop where the CPU halts? So it does on K8 and K10 whose firmware switched
 * C1E on. There the idle loop switches to a broadcast timer before it halts; no driver here does.
 */
static inline bool idle_driver_loses_timer(void)
{
#ifdef CONFIG_X86
	return boot_cpu_has_bug(X86_BUG_AMD_APIC_C1E);
#else
	return false;
#endif
}

/* Returns whether CPUs have a driver; copies its name, as its module may go away. */
static inline bool idle_driver_bound(char *name)
{
	const struct cpuidle_driver *bound;

	/* A module is freed after a grace period, so the name stays while preemption is off. */
	preempt_disable();
	bound = cpuidle_get_driver();
	if (bound)
		strscpy(name, bound->name, CPUIDLE_NAME_LEN);
	preempt_enable();
	return bound;
}

/* Says why the CPUs cannot be ours: -EBUSY or -ENODEV. */
static inline int idle_driver_refuse(void)
{
	const char *option = idle_override();
	char name[CPUIDLE_NAME_LEN];

	if (idle_driver_loses_timer()) {
		pr_err("the timers of these CPUs stop when they halt (AMD erratum 400): switch C1E off in the firmware\n");
		return -ENODEV;
	}
	if (compat_cpu_idle_loses_wakeups()) {
		pr_err("this kernel exports no halt that is safe in a TDX guest: use Linux 6.3 or later\n");
		return -ENODEV;
	}
	if (option) {
		pr_err("%s on the command line rules out every idle driver: boot without it\n",
		       option);
		return -EBUSY;
	}
	if (idle_driver_bound(name)) {
		pr_err("the cpuidle driver %s is in use: unload or disable it first\n", name);
		return -EBUSY;
	}
	pr_err("cpuidle is disabled, by cpuidle.off=1 on the command line or by Xen\n");
	return -ENODEV;
}

static inline int idle_driver_register(struct cpuidle_driver *driver)
{
	if (idle_override() || idle_driver_loses_timer() || compat_cpu_idle_loses_wakeups() ||
	    cpuidle_register_driver(driver))
		return idle_driver_refuse();
	return 0;
}

#endif /* _DRIVERS_CPUIDLE_IDLE_DRIVER_H */

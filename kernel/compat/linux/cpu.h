/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * arch_cpu_idle(), the architecture's way to halt, as far as a module can reach
 * it.
 *
 * It knows every special case (Xen, TDX, errata), but is exported to modules
 * only on x86, and there since "cpuidle-haltpoll: Replace default_idle() with
 * arch_cpu_idle()" (v6.3). Else, a module halts by itself, where an architecture lets it.
 */
#ifndef _LIGHTSLEEP_COMPAT_CPU_H
#define _LIGHTSLEEP_COMPAT_CPU_H

#include_next <linux/cpu.h>

#include <linux/types.h>
#ifdef CONFIG_X86
#include <asm/cpufeature.h>
#endif

#ifndef HAVE_ARCH_CPU_IDLE
#include <linux/irqflags.h>
#ifdef CONFIG_ARM64
#include <asm/barrier.h>
#include <asm/cpuidle.h>
#endif
#ifdef CONFIG_PPC64
#include <asm/machdep.h>
#endif

static __always_inline void compat_cpu_idle(void)
{
#if defined(CONFIG_X86)
	raw_safe_halt();
	raw_local_irq_disable();
#elif defined(CONFIG_ARM64)
	/*
	 * As cpu_do_idle() does, but for idle=yield and nop, with which no driver loads. WFI ends
	 * with a pending interrupt though they are masked.
	 */
	struct arm_cpuidle_irq_context context;

	arm_cpuidle_save_irq_context(&context);
	dsb(sy);
	wfi();
	arm_cpuidle_restore_irq_context(&context);
#elif defined(CONFIG_PPC64)
	/*
	 * As arch_cpu_idle() does, but for the run latch, whose functions are not exported:
	 * counters by that latch take the CPU for busy. Some platforms return with interrupts on.
	 */
	if (ppc_md.power_save)
		ppc_md.power_save();
	if (!irqs_disabled())
		raw_local_irq_disable();
#else
#error "this kernel exports no way to halt"
#endif
}

#define arch_cpu_idle compat_cpu_idle
#endif /* HAVE_ARCH_CPU_IDLE */

/*
 * Would a halt by the module lose wakeups? In a TDX guest, HLT traps, and who handles that turns
 * interrupts on before the CPU halts: arch_cpu_idle() knows another way.
 */
static inline bool compat_cpu_idle_loses_wakeups(void)
{
#if defined(CONFIG_X86) && !defined(HAVE_ARCH_CPU_IDLE)
	return boot_cpu_has(X86_FEATURE_TDX_GUEST);
#else
	return false;
#endif
}

#endif /* _LIGHTSLEEP_COMPAT_CPU_H */

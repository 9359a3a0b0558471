/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The architecture's way to halt, as far as a module can reach it.
 *
 * arch_cpu_idle() knows every special case (Xen, TDX, errata), but is exported
 * to modules only since "cpuidle-haltpoll: Replace default_idle() with
 * arch_cpu_idle()" (v6.3). Before, a module halts by itself.
 */
#ifndef _LIGHTSLEEP_COMPAT_IDLE_HALT_H
#define _LIGHTSLEEP_COMPAT_IDLE_HALT_H

#include <linux/cpu.h>
#include <linux/irqflags.h>

/**
 * idle_halt - halt until the next interrupt
 *
 * Context: interrupts off, on entry and on return; RCU is not watching.
 */
static __always_inline void idle_halt(void)
{
#if defined(HAVE_ARCH_CPU_IDLE)
	arch_cpu_idle();
#elif defined(CONFIG_X86)
	raw_safe_halt();
	raw_local_irq_disable();
#else
#error "this kernel exports no way to halt"
#endif
}

#endif /* _LIGHTSLEEP_COMPAT_IDLE_HALT_H */

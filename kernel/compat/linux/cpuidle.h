/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leaving RCU's sight for the time of a halt.
 *
 * ct_cpuidle_enter() and _exit() came with "cpuidle: Annotate poll_idle()" and
 * its series (v6.3). Before, a state with CPUIDLE_FLAG_RCU_IDLE called
 * ct_idle_enter() itself, and lockdep was not told that the halt enables
 * interrupts.
 */
#ifndef _LIGHTSLEEP_COMPAT_CPUIDLE_H
#define _LIGHTSLEEP_COMPAT_CPUIDLE_H

#include_next <linux/cpuidle.h>

#ifndef HAVE_CT_CPUIDLE_ENTER
#include <linux/context_tracking.h>

static __always_inline void ct_cpuidle_enter(void)
{
	instrumentation_end();
	ct_idle_enter();
}

static __always_inline void ct_cpuidle_exit(void)
{
	ct_idle_exit();
	instrumentation_begin();
}
#endif

/* Kernels of the series can promote. */
#ifndef CPUIDLE_FLAG_PROMOTE
#define CPUIDLE_FLAG_PROMOTE	CPUIDLE_FLAG_NONE
#endif

#endif /* _LIGHTSLEEP_COMPAT_CPUIDLE_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Did somebody choose the idle loop on the command line? Only x86 and powerpc
 * let one.
 */
#ifndef _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H
#define _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H

#include <linux/types.h>
#if defined(CONFIG_X86) || defined(CONFIG_PPC64)
#include <asm/processor.h>
#endif

/**
 * idle_override - the option of the command line that does, if there is one
 *
 * Return: the option as it was given, or NULL.
 */
static inline const char *idle_override(void)
{
#ifdef CONFIG_X86
	switch (boot_option_idle_override) {
	case IDLE_POLL:
		return "idle=poll";
	case IDLE_HALT:
		return "idle=halt";
	case IDLE_NOMWAIT:
		return "idle=nomwait";
	}
#elif defined(CONFIG_PPC64)
	if (cpuidle_disable != IDLE_NO_OVERRIDE)
		return "powersave=off";
#endif
	return NULL;
}

#endif /* _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H */

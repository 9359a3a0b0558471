/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Did somebody choose on the command line how CPUs idle?
 */
#ifndef _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H
#define _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H

#include <linux/types.h>
#if defined(CONFIG_X86) || defined(CONFIG_PPC64)
#include <asm/processor.h>
#endif
#ifdef CONFIG_ARM64
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <asm/setup.h>

/*
 * idle=yield and idle=nop are for machines on which WFI does harm. The kernel exports neither this
 * choice nor its command line, so read the file. Where that cannot be read, assume no option.
 */
static inline const char *idle_override_arm64(void)
{
	struct file *file = filp_open("/proc/cmdline", O_RDONLY, 0);
	char *line, *rest, *word;
	const char *found = NULL;
	loff_t at = 0;

	if (IS_ERR(file))
		return NULL;
	/* All zero, so a string whatever is read. */
	line = kzalloc(COMMAND_LINE_SIZE + 1, GFP_KERNEL);
	if (line && kernel_read(file, line, COMMAND_LINE_SIZE, &at) > 0) {
		rest = line;
		while ((word = strsep(&rest, "\n "))) {
			/* The last one counts. */
			if (!strcmp(word, "idle=yield"))
				found = "idle=yield";
			else if (!strcmp(word, "idle=nop"))
				found = "idle=nop";
			else if (!strcmp(word, "idle=wfi"))
				found = NULL;
		}
	}
	kfree(line);
	filp_close(file, NULL);
	return found;
}
#endif

/**
 * idle_override - the option of the command line that does, if there is one
 *
 * Context: process context.
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
#elif defined(CONFIG_ARM64)
	return idle_override_arm64();
#endif
	return NULL;
}

#endif /* _DRIVERS_CPUIDLE_IDLE_OVERRIDE_H */

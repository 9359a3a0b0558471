/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A module parameter that is a number within limits. What is not is refused, and
 * the log says what would not be.
 */
#ifndef _DRIVERS_CPUIDLE_RANGED_PARAM_H
#define _DRIVERS_CPUIDLE_RANGED_PARAM_H

#include <linux/moduleparam.h>
#include <linux/printk.h>

/**
 * ranged_param_set - take a number for a parameter
 * @text: what was written
 * @kp: the parameter; its argument is an unsigned int
 * @min: the least number
 * @max: the greatest number
 *
 * Return: 0, or a negative error, and then nothing has changed.
 */
static inline int ranged_param_set(const char *text, const struct kernel_param *kp,
				   unsigned int min, unsigned int max)
{
	int ret = param_set_uint_minmax(text, kp, min, max);

	if (ret)
		pr_err("%s: must be a number from %u to %u\n", kp->name, min, max);
	return ret;
}

#endif /* _DRIVERS_CPUIDLE_RANGED_PARAM_H */

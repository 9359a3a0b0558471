/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hrtimer_setup() came with "hrtimers: Introduce hrtimer_setup() to replace
 * hrtimer_init()" (v6.13). Before, the function was set by hand.
 */
#ifndef _LIGHTSLEEP_COMPAT_HRTIMER_H
#define _LIGHTSLEEP_COMPAT_HRTIMER_H

#include_next <linux/hrtimer.h>

#ifndef HAVE_HRTIMER_SETUP
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock_id, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock_id, mode);
	timer->function = function;
}
#endif

#endif /* _LIGHTSLEEP_COMPAT_HRTIMER_H */

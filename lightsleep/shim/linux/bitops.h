/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#ifndef _LIGHTSLEEP_SHIM_BITOPS_H
#define _LIGHTSLEEP_SHIM_BITOPS_H

#include <linux/types.h>

static inline unsigned int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}

#endif

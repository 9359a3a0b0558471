/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#ifndef _LIGHTSLEEP_SHIM_LIMITS_H
#define _LIGHTSLEEP_SHIM_LIMITS_H

#include <stdint.h>

#define U32_MAX			UINT32_MAX
#define U64_MAX			UINT64_MAX

#endif

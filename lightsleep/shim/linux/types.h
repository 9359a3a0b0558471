/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#ifndef _LIGHTSLEEP_SHIM_TYPES_H
#define _LIGHTSLEEP_SHIM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#endif

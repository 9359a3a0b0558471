/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#include <string.h>

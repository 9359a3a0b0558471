/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#ifndef _LIGHTSLEEP_SHIM_MINMAX_H
#define _LIGHTSLEEP_SHIM_MINMAX_H

#define min(x, y) ({			\
	__auto_type _x = (x);		\
	__auto_type _y = (y);		\
	_x < _y ? _x : _y; })

#endif

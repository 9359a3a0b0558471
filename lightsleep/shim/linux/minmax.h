/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel's header that the policies need, in user space. */
#ifndef _LIGHTSLEEP_SHIM_MINMAX_H
#define _LIGHTSLEEP_SHIM_MINMAX_H

#define min(x, y) ({			\
	__auto_type _x = (x);		\
	__auto_type _y = (y);		\
	_x < _y ? _x : _y; })

#define max(x, y) ({			\
	__auto_type _x = (x);		\
	__auto_type _y = (y);		\
	_x > _y ? _x : _y; })

#define min_t(type, x, y)	min((type)(x), (type)(y))
#define max_t(type, x, y)	max((type)(x), (type)(y))

#define clamp(val, lo, hi) ({		\
	__auto_type _lo = (lo);		\
	__auto_type _hi = (hi);		\
	__auto_type _val = (val);	\
	_val < _lo ? _lo : _val > _hi ? _hi : _val; })

#endif

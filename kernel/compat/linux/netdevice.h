/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Has NAPI kept packets, to merge more into them? "net: gro: decouple GRO from the NAPI layer"
 * (v6.15) moved the bitmask that says so into struct gro_node.
 */
#ifndef _LIGHTSLEEP_COMPAT_NETDEVICE_H
#define _LIGHTSLEEP_COMPAT_NETDEVICE_H

#include_next <linux/netdevice.h>

static inline bool napi_keeps_packets(const struct napi_struct *napi)
{
#ifdef HAVE_GRO_NODE
	return napi->gro.bitmask;
#else
	return napi->gro_bitmask;
#endif
}

#endif /* _LIGHTSLEEP_COMPAT_NETDEVICE_H */

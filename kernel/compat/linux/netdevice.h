/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * napi_keeps_packets() comes with our series. What NAPI keeps to merge more into
 * it moved into struct gro_node with "net: gro: decouple GRO from the NAPI
 * layer" (v6.15).
 */
#ifndef _LIGHTSLEEP_COMPAT_NETDEVICE_H
#define _LIGHTSLEEP_COMPAT_NETDEVICE_H

#include_next <linux/netdevice.h>

#ifndef HAVE_NAPI_KEEPS_PACKETS
static inline bool napi_keeps_packets(const struct napi_struct *napi)
{
#ifdef HAVE_GRO_NODE
	return napi->gro.bitmask;
#else
	return napi->gro_bitmask;
#endif
}
#endif

#endif /* _LIGHTSLEEP_COMPAT_NETDEVICE_H */

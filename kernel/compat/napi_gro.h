/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What NAPI keeps to merge more into it moved into struct gro_node with "net: gro:
 * decouple GRO from the NAPI layer" (v6.15).
 */
#ifndef _LIGHTSLEEP_COMPAT_NAPI_GRO_H
#define _LIGHTSLEEP_COMPAT_NAPI_GRO_H

#include <linux/netdevice.h>

/**
 * napi_keeps_packets - does GRO hold any? whoever asks holds NAPI_STATE_SCHED
 * @napi: the NAPI instance
 */
static inline bool napi_keeps_packets(const struct napi_struct *napi)
{
#ifdef HAVE_GRO_NODE
	return napi->gro.bitmask;
#else
	return napi->gro_bitmask;
#endif
}

#endif /* _LIGHTSLEEP_COMPAT_NAPI_GRO_H */

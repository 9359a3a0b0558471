/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What NAPI holds back. "net: gro: decouple GRO from the NAPI layer" (v6.15) moved the bitmask
 * of kept packets into struct gro_node. "net: napi: Make gro_flush_timeout per-NAPI" (v6.13) made
 * struct napi_config, which keeps the timeout of each instance.
 */
#ifndef _LIGHTSLEEP_COMPAT_NETDEVICE_H
#define _LIGHTSLEEP_COMPAT_NETDEVICE_H

#include_next <linux/netdevice.h>

/* Has it kept packets, to merge more into them? */
static inline bool napi_keeps_packets(const struct napi_struct *napi)
{
#ifdef HAVE_GRO_NODE
	return napi->gro.bitmask;
#else
	return napi->gro_bitmask;
#endif
}

/* Does a timer have it poll after its last packet, with interrupts suppressed until then? */
static inline bool napi_has_timeout(const struct napi_struct *napi)
{
#ifdef HAVE_NAPI_CONFIG
	return READ_ONCE(napi->gro_flush_timeout);
#else
	return READ_ONCE(napi->dev->gro_flush_timeout);
#endif
}

static inline bool netdev_has_netpoll(const struct net_device *dev)
{
#ifdef CONFIG_NETPOLL
	return rcu_access_pointer(dev->npinfo);
#else
	return false;
#endif
}

#endif /* _LIGHTSLEEP_COMPAT_NETDEVICE_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A CPU that was left in a shallow idle state is sent to a deeper one.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM power
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE cpuidle_promote

#if !defined(_TRACE_CPUIDLE_PROMOTE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_CPUIDLE_PROMOTE_H

#include <linux/tracepoint.h>

/* @slept_ns: since the governor was asked, in @from and shallower states. */
TRACE_EVENT(cpu_idle_promote,
	    TP_PROTO(unsigned int cpu_id, unsigned int from, unsigned int to, u64 slept_ns),
	    TP_ARGS(cpu_id, from, to, slept_ns),
	    TP_STRUCT__entry(__field(u32, cpu_id)
			     __field(u32, from)
			     __field(u32, to)
			     __field(u64, slept_ns)),
	    TP_fast_assign(__entry->cpu_id = cpu_id;
			   __entry->from = from;
			   __entry->to = to;
			   __entry->slept_ns = slept_ns;),
	    TP_printk("cpu_id=%u from=%u to=%u slept_ns=%llu", __entry->cpu_id,
		      __entry->from, __entry->to, (unsigned long long)__entry->slept_ns)
);

#endif /* _TRACE_CPUIDLE_PROMOTE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>

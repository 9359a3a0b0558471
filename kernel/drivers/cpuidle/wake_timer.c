// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wake source "timer": the CPU is woken by a timer of its own.
 *
 * The timer that paces the batch is the wake itself. It is launched when it is
 * due, and has arrived when its handler runs, so by now it is over.
 */
#include "latency_batch.h"

static void timer_launch(struct latency_batch *batch, u64 due_ns, u64 now_ns)
{
	batch->path = PATH_TIMER;
	latency_batch_launch(batch, due_ns);
	latency_batch_arrived(batch, now_ns);
}

const struct wake_source wake_timer = {
	.name = "timer",
	.local = true,
	.launch = timer_launch,
};

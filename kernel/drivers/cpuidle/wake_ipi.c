// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wake source "ipi": another CPU calls a function on the CPU that is woken.
 *
 * Since "sched, smp: Optimize send_call_function_single_ipi()" (v5.8), such a call
 * sends no interrupt if the CPU polls: its idle loop runs the function after it
 * has left the idle state. The context of the function tells the two cases apart.
 */
#include <linux/ktime.h>
#include <linux/preempt.h>
#include <linux/smp.h>

#include "latency_batch.h"

static void ipi_arrived(void *data)
{
	u64 now_ns = ktime_get_ns();
	struct latency_batch *batch = data;

	batch->path = in_hardirq() ? PATH_IPI : PATH_NONE;
	latency_batch_arrived(batch, now_ns);
}

/* Only one batch runs at a time, with one wake in flight. */
static call_single_data_t ipi_call;

static int ipi_begin(struct latency_batch *batch, struct latency_error *error)
{
	INIT_CSD(&ipi_call, ipi_arrived, batch);
	return 0;
}

static void ipi_launch(struct latency_batch *batch, u64 due_ns, u64 now_ns)
{
	latency_batch_launch(batch, ktime_get_ns());
	/* Cannot fail: the CPU is online, and the previous call has run. */
	smp_call_function_single_async(batch->request.dest, &ipi_call);
}

static void ipi_nothing(void *unused)
{
}

/*
 * The last call may still be queued, if it timed out. A CPU empties its queue as
 * a whole with interrupts off, but runs those calls first that somebody waits
 * for. So the first call here may overtake ours; the second is queued after
 * that round has begun, and runs in a later one.
 */
static void ipi_end(struct latency_batch *batch)
{
	smp_call_function_single(batch->request.dest, ipi_nothing, NULL, 1);
	smp_call_function_single(batch->request.dest, ipi_nothing, NULL, 1);
}

const struct wake_source wake_ipi = {
	.name = "ipi",
	.begin = ipi_begin,
	.launch = ipi_launch,
	.end = ipi_end,
};

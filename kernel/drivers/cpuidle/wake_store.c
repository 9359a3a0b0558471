// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wake source "store": another CPU wakes a thread on the CPU that is woken.
 *
 * If that CPU polls, a store to a flag that it watches is enough: no interrupt is
 * sent. The scheduler reports this with the tracepoint
 * sched_wake_idle_without_ipi during the wakeup. Without that report an interrupt
 * was sent, and the sample does not count. The CPU counts as awake when it has
 * left its idle state. The way from there to the thread is the same for every
 * state, and is not measured. On a CPU that is kept busy, the busy thread detects
 * the change of the word that counts the wakeups.
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>

#include "latency_batch.h"

static const char *store_unavailable(void)
{
	return idle_watch_knows_wakes() ? NULL :
	       "this kernel has no tracepoint sched_wake_idle_without_ipi";
}

static void store_arrived(struct latency_batch *batch)
{
	u64 now_ns = ktime_get_ns();
	u64 left_ns = idle_watch_period().left_ns;

	/* If it did not leave an idle state for this, it will not count. */
	latency_batch_arrived(batch, left_ns >= batch->launch_ns ? left_ns : now_ns);
}

static int store_thread(void *data)
{
	struct latency_batch *batch = data;

	complete(&batch->ready);
	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		if (latency_batch_in_flight(batch))
			store_arrived(batch);
		else
			schedule();
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

static void store_spin(struct latency_batch *batch)
{
	if (latency_batch_in_flight(batch))
		latency_batch_arrived(batch, ktime_get_ns());
}

/*
 * The path is written on this CPU, which alone reads it, and after the wake; the
 * woken CPU may be done by then.
 */
static void store_launch(struct latency_batch *batch, u64 due_ns, u64 now_ns)
{
	if (batch->request.state == LATENCY_STATE_BUSY) {
		batch->path = PATH_NONE;
		latency_batch_launch(batch, ktime_get_ns());
		return;
	}
	idle_watch_wake_begin(batch->request.src);
	latency_batch_launch(batch, ktime_get_ns());
	wake_up_process(batch->thread);
	batch->path = idle_watch_wake_end() ? PATH_NONE : PATH_IPI;
}

const struct wake_source wake_store = {
	.name = "store",
	.polling = true,
	.unavailable = store_unavailable,
	.launch = store_launch,
	.thread = store_thread,
	.spin = store_spin,
};

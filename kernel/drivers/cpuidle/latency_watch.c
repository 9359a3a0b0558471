// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the kernel itself reports about the CPU that is being woken.
 *
 * Two tracepoints are attached while the module is loaded. They watch one CPU
 * while a batch runs. cpu_idle tells which state that CPU entered, when it did,
 * and when it left: the proof that a sample woke it from the requested state. It
 * is the state that the governor chose. If the driver entered another one, only
 * the counters in sysfs show that. sched_wake_idle_without_ipi tells that a waker
 * found the CPU polling and sent no interrupt. It is not exported, so it is
 * looked up by name.
 *
 * A CPU writes its period in its idle loop with interrupts off. It reads the
 * period itself: in an interrupt, which sees it complete, or in a thread, during
 * which the CPU is not idle. So no lock is needed.
 *
 * Only the watched CPU reads the clock. The clock must not be read during a
 * suspend; no batch runs then, because its writer is frozen.
 */
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <trace/events/power.h>

#include "latency_watch.h"

#define NOBODY		(-1)

static int watched = NOBODY;
static DEFINE_PER_CPU(struct idle_period, last_period);

/* The CPU that is sending a wakeup, and whether it did so without an interrupt. */
static int waker = NOBODY;
static bool without_ipi;

static struct tracepoint *without_ipi_tracepoint;

static void saw_cpu_idle(void *data, unsigned int state, unsigned int cpu)
{
	struct idle_period *period;

	if (likely((int)cpu != READ_ONCE(watched)))
		return;

	period = this_cpu_ptr(&last_period);
	if (state == PWR_EVENT_EXIT) {
		period->left_ns = ktime_get_ns();
		return;
	}
	period->state = state;
	period->left_ns = 0;
	period->entered_ns = ktime_get_ns();
}

/* Runs on the CPU that wakes, within its wake_up_process() or its like. */
static void saw_wake_without_ipi(void *data, int cpu)
{
	if (cpu == READ_ONCE(watched) && raw_smp_processor_id() == READ_ONCE(waker))
		without_ipi = true;
}

static void find_without_ipi(struct tracepoint *tp, void *found)
{
	if (!strcmp(tp->name, "sched_wake_idle_without_ipi"))
		*(struct tracepoint **)found = tp;
}

/* On the CPU to be watched: whatever it was in, it leaves it for this. */
static void watch_this_cpu(void *unused)
{
	__this_cpu_write(last_period.state, -1);
	WRITE_ONCE(watched, smp_processor_id());
}

/**
 * idle_watch_begin - watch a CPU
 * @cpu: it is online, and stays so until idle_watch_end()
 */
void idle_watch_begin(unsigned int cpu)
{
	smp_call_function_single(cpu, watch_this_cpu, NULL, 1);
}

void idle_watch_end(void)
{
	WRITE_ONCE(watched, NOBODY);
}

/**
 * idle_watch_period - the last idle period of the watched CPU
 *
 * Context: on that CPU, in an interrupt or in a thread that is bound to it. At the
 * end of a batch the thread may lose its binding; its result is not read then.
 */
struct idle_period idle_watch_period(void)
{
	return *raw_cpu_ptr(&last_period);
}

/* Can it be told whether a wake needs an interrupt? */
bool idle_watch_knows_wakes(void)
{
	return without_ipi_tracepoint;
}

/**
 * idle_watch_wake_begin - a wake of the watched CPU is about to be sent
 * @src: this CPU
 *
 * Context: interrupts off until idle_watch_wake_end().
 */
void idle_watch_wake_begin(unsigned int src)
{
	without_ipi = false;
	WRITE_ONCE(waker, src);
}

/* Return: true if the wake needed no interrupt. */
bool idle_watch_wake_end(void)
{
	WRITE_ONCE(waker, NOBODY);
	return without_ipi;
}

int idle_watch_init(void)
{
	int ret;

	ret = register_trace_cpu_idle(saw_cpu_idle, NULL);
	if (ret)
		return ret;

	for_each_kernel_tracepoint(find_without_ipi, &without_ipi_tracepoint);
	if (without_ipi_tracepoint &&
	    tracepoint_probe_register(without_ipi_tracepoint, saw_wake_without_ipi, NULL))
		without_ipi_tracepoint = NULL;
	return 0;
}

void idle_watch_exit(void)
{
	if (without_ipi_tracepoint)
		tracepoint_probe_unregister(without_ipi_tracepoint, saw_wake_without_ipi, NULL);
	unregister_trace_cpu_idle(saw_cpu_idle, NULL);
	tracepoint_synchronize_unregister();
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * How idle CPUs are woken by others: by an interrupt, or by a store that they
 * poll for.
 *
 * Counted is by whoever wakes, who alone knows the reason: an interrupt before it
 * is sent, while the CPU is still idle; a store after it was done, which nobody
 * but the waker notices. What is looked at is in cache lines that are needed
 * anyway: rq->curr lies beside rq->idle, whose flags have mostly just been tested.
 * Calls to several CPUs come here for those only that are in the idle loop, which
 * the caller knows. What is written is one line of the CPU that is woken.
 */

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/mmu_context.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>

#include "sched.h"
#include "smp.h"

/**
 * struct wake_ledger - how often others woke a CPU
 * @by_ipi: by an interrupt, for each reason
 * @by_store: by setting TIF_NEED_RESCHED while it polled
 */
struct wake_ledger {
	atomic_long_t by_ipi[NR_WAKE_KINDS];
	atomic_long_t by_store[NR_WAKE_KINDS];
};

static DEFINE_PER_CPU_SHARED_ALIGNED(struct wake_ledger, wake_ledger);

static const char * const kind_names[NR_WAKE_KINDS] = {
	[WAKE_RESCHED] = "resched",
	[WAKE_CALL] = "call",
	[WAKE_CALL_MANY] = "call_many",
};

/*
 * Account for a wake of @cpu that is about to happen, or, if it is not @ipi,
 * has just happened: only a CPU that is idle polls. An interrupt to one that is
 * not idle is no wake. That it may become idle, or cease to be, meanwhile is of
 * no matter to a count.
 */
void wake_ledger_add(int cpu, enum wake_kind kind, bool ipi)
{
	struct wake_ledger *ledger = &per_cpu(wake_ledger, cpu);
	struct rq *rq = cpu_rq(cpu);

	if (!ipi)
		atomic_long_inc(&ledger->by_store[kind]);
	else if (rcu_access_pointer(rq->curr) == rq->idle)
		atomic_long_inc(&ledger->by_ipi[kind]);
}

static int idle_wakes_show(struct seq_file *m, void *unused)
{
	int cpu, kind;

	seq_puts(m, "cpu");
	for (kind = 0; kind < NR_WAKE_KINDS; kind++)
		seq_printf(m, " %s_ipi %s_store", kind_names[kind], kind_names[kind]);
	seq_putc(m, '\n');

	for_each_possible_cpu(cpu) {
		struct wake_ledger *ledger = &per_cpu(wake_ledger, cpu);

		seq_printf(m, "%d", cpu);
		for (kind = 0; kind < NR_WAKE_KINDS; kind++)
			seq_printf(m, " %ld %ld", atomic_long_read(&ledger->by_ipi[kind]),
				   atomic_long_read(&ledger->by_store[kind]));
		seq_putc(m, '\n');
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(idle_wakes);

static int __init wake_ledger_init(void)
{
	debugfs_create_file("idle_wakes", 0444, NULL, NULL, &idle_wakes_fops);
	return 0;
}
late_initcall(wake_ledger_init);

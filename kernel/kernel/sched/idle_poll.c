// SPDX-License-Identifier: GPL-2.0-only
/*
 * Poll for as long as it pays, before an idle CPU sets out to halt.
 *
 * A CPU that halts is slow to wake, and the way into and out of a halt costs
 * time as well: the idle loop asks a governor, which may stop the tick, and
 * reads clocks. An idle period that ends soon is therefore best spent in front
 * of all that. The idle loop calls idle_poll() once on each pass, after
 * tick_nohz_idle_enter() and before it looks for an idle state:
 *
 * 1. The CPU polls TIF_NEED_RESCHED for as long as poll_limit.c says. That file
 *    learns from the recent idle periods of this CPU and from what a wakeup from
 *    halt costs, which idle_cost.c measures on the machine and on its programs.
 * 2. If a wakeup comes in time, the idle loop ends before it has begun, and the
 *    CPU goes straight to the scheduler.
 * 3. Otherwise the idle loop goes on: it asks the governor, stops or keeps the
 *    tick, and enters an idle state. The governor hears how long it is until the
 *    next timer after the poll (tick_nohz_get_sleep_length()).
 *
 * An *idle period* lasts until a task runs. A function call from another CPU ends a
 * pass through the idle loop, too, but the period goes on, with what is left of its
 * limit. So such calls neither teach the policy nor keep a CPU from halting.
 *
 * So polling is independent of cpuidle drivers, governors and their states. A
 * request for a resume latency, 0 included, is treated as without this file: a
 * poll is never slower to wake than any state, and the governor honours the
 * request afterwards. What is called a halt here is an idle period that is left to the
 * driver. If the driver polls (haltpoll), the cost of a halt is what a poll before that
 * gains: often next to nothing, and then the CPU leaves polling to the driver.
 *
 * Context. __idle_poll() and __idle_poll_end() run in do_idle(), in the idle
 * task or in a thread that injects idle time: interrupts on, preemption off, RCU
 * watching. They may be instrumented. release_this_cpu() may be called by an interrupt.
 * Everything else runs in process context.
 *
 * Interrupts. They are on during the poll. One of them may arm a timer, or raise
 * a softirq, which runs when the interrupt returns. Nothing is missed: the tick
 * is not stopped yet, and the idle loop evaluates the next timer afterwards, with
 * interrupts off until the CPU halts.
 *
 * Wakeups. TIF_POLLING_NRFLAG is set during the poll where the architecture has
 * it, so a waker stores TIF_NEED_RESCHED and sends no interrupt. The poll reads
 * the very word that the waker changes, so there is nothing to order. After a
 * hit, do_idle() clears the flag and runs the queue of function calls after a
 * full barrier, as it does after any idle period. Where the architecture lacks
 * the flag, the waker's interrupt ends the poll.
 *
 * RCU watches during the poll, because devices may be looked at, and a poll is
 * bounded. Each pass ends with schedule_idle(), whether or not it finds a task, or
 * goes on to an idle state. Either is a quiescent state. An expedited grace period
 * interrupts a CPU that polls, and asks for one: that ends the pass, and the idle
 * period goes on. Wakeups of callback threads that RCU deferred to the idle loop
 * are done before the poll. Livepatch and sched_ext find the idle task where they do
 * without a poll: both resched an idle CPU, which ends a poll. With PREEMPT_RT, an
 * interrupt that raises a softirq wakes a thread, as ever.
 *
 * Time polled is idle time, because the poll is between tick_nohz_idle_enter() and
 * tick_nohz_idle_exit(), as a polling state of cpuidle is. Where these take
 * timestamps while the tick runs, interrupts and their softirqs are left out,
 * and time with a task of this CPU in I/O wait is iowait.
 * Elsewhere the tick, or virtual CPU accounting, sees the idle task run, which says
 * the same. What a host steals from a poll is counted as it is with idle=poll.
 *
 * A hypervisor sees a CPU that polls as busy. Where polling idle states tell theirs otherwise
 * (pseries_idle_prolog()), and on s390, which takes only its idle instruction for idle, this
 * file is not built.
 *
 * cpufreq's governors see that idle time. A driver that goes by the cycles of a CPU that
 * is not halted (intel_pstate) takes one that polls for busy, as in any polling state, and may
 * raise its frequency. tick_nohz_get_idle_calls_cpu(), by which schedutil
 * tells a CPU that is busy, does not count a poll that was hit. It counts attempts to
 * stop the tick. Without this file, short idle periods make none, either, where the tick is kept
 * in them: by menu, teo and haltpoll, and by a CPU without a driver in its first halt. Where
 * they make one (ladder, or a governor that expects a long period), a CPU that was idle in polls
 * with hits only now looks busy to schedutil, which then does not lower its frequency. That is
 * so where the CPU shares its frequency with no other.
 *
 * No idle state is entered and power:cpu_idle is silent. To the scheduler the CPU
 * is idle, with no exit latency. A tick during the poll is not one that
 * woke the CPU from an idle state, so the governor does not hear of it.
 *
 * A CPU that polls takes execution units from an SMT sibling that works. Nothing here
 * knows of that. halt_cost.c measures CPUs of different cores, if it can.
 *
 * There is no poll where somebody tells the CPU to be idle, or not to be disturbed:
 * during suspend to idle, when idle is injected (the idle loop then runs in a
 * thread), when core scheduling forces idle on a sibling, on a CPU that goes
 * offline, on CPUs that are isolated or in nohz_full=, and where a host needs
 * the core (host_contention.c). Where the idle loop polls anyway (idle=poll,
 * nohlt, cpu_idle_poll_ctrl()), nothing changes. Where the tick's broadcast has
 * expired, the poll waits for the very interrupt that the idle loop would wait for.
 *
 * Devices may join the poll (CONFIG_POLL_SOURCE): drivers/cpuidle/poll_source.c. If one
 * has work, the poll ends, and its handler runs in an interrupt as soon as interrupts
 * are on again, followed by its softirqs. To the accounting of idle time it is as the
 * device's own interrupt, which the poll takes as well. The pass ends as after a function
 * call: with a task that was woken, or with another pass, in which the period goes on. A CPU
 * that goes on to halt has its devices interrupt first, and so has one that is told to be idle.
 *
 * Nothing on the way from a poll to the task that was woken takes a decision.
 * A period is accounted for when the next one begins, when nobody waits for the CPU.
 *
 * Locking. Everything in struct idle_poll is written by its own CPU's idle task,
 * except where it or struct idle_cost says otherwise. Others only read single
 * words, so there is nothing to lock.
 */
#define pr_fmt(fmt) "idle_poll: " fmt

#include <linux/cleanup.h>
#include <linux/context_tracking_state.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/idle_poll.h>
#include <linux/init.h>
#include <linux/instrumentation.h>
#include <linux/irqflags.h>
#include <linux/kernel_stat.h>
#include <linux/minmax.h>
#include <linux/mmu_context.h>
#include <linux/percpu.h>
#include <linux/poll_source.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>
#include <linux/suspend.h>
#include <linux/tick.h>

#include "idle_poll.h"
#include "sched.h"

DEFINE_PER_CPU(struct idle_poll, idle_polls);

/* The switch, which idle_poll_sysfs.c turns. */
bool idle_poll_enabled __read_mostly;
unsigned int idle_poll_epoch __read_mostly;

static void add(u64 *statistic, u64 value)
{
	WRITE_ONCE(*statistic, *statistic + value);
}

/* Idle task only. It is switched out where a task runs. */
static unsigned long idle_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

/*
 * Has the CPU entered an idle state since @watching? RCU looks away in each, and tiny RCU,
 * which does not count that, cannot tell. Idle task, within a pass through the idle loop.
 */
#ifdef CONFIG_CONTEXT_TRACKING_IDLE
static int rcu_watching(void)
{
	return ct_rcu_watching();
}

static bool entered_state(int watching)
{
	return ct_rcu_watching() != watching;
}
#else
static int rcu_watching(void)
{
	return 0;
}

static bool entered_state(int watching)
{
	return true;
}
#endif

static bool is_free(const struct idle_poll *ip)
{
	return READ_ONCE(ip->cost.forced) == WAIT_FREE;
}

/* How long would this CPU poll by itself, where no measurement decides? Any context. */
u64 idle_poll_own_limit_ns(const struct idle_poll *ip, u64 now_ns)
{
	if (READ_ONCE(ip->cost.isolated) || host_contended(&ip->contention, now_ns))
		return 0;
	return min(READ_ONCE(ip->policy.limit_ns), POLL_MAX_NS);
}

/* How long may this CPU poll in an idle period that begins now? Idle task. */
static u64 poll_limit_ns(const struct idle_poll *ip, u64 now_ns)
{
	switch (READ_ONCE(ip->cost.forced)) {
	case WAIT_HALT:
		return 0;
	case WAIT_POLL:
		return POLL_MAX_NS;
	case WAIT_FREE:
		break;
	}
	return idle_poll_own_limit_ns(ip, now_ns);
}

/* After a time without this file: what was open then is no evidence. Idle task. */
static void begin_anew(struct idle_poll *ip)
{
	ip->epoch = READ_ONCE(idle_poll_epoch);
	ip->outcome = IDLE_ACCOUNTED;
	ip->last_ns = 0;
	ip->contention.steal_clock_ns = poll_gaps_steal_clock_ns();
	wake_cost_begin(&ip->cost.programs.wake_cost, 0, false);
}

static void learn(struct idle_poll *ip)
{
	struct poll_limit_params p = {
		.halt_cost_ns = READ_ONCE(ip->cost.miss_cost_ns),
		.ceiling_ns = POLL_MAX_NS,
	};
	u64 idle_ns = ip->end_ns - ip->start_ns;

	/* What was not polled includes the wakeup itself where the CPU halted. */
	if (ip->outcome == IDLE_ENDED && ip->halted)
		idle_ns -= min(idle_ns - ip->spent_ns, idle_cost_wakeup_ns(&ip->cost));
	poll_limit_update(&ip->policy, &p, idle_ns);
}

/*
 * The CPU waited like @how. What a measurement chose is no part of the statistics, which say
 * what polling is worth to the programs. Nor is a halt part of a measurement that found its
 * wakeup before it began. Idle task.
 */
static void count_wait(struct idle_poll *ip, enum idle_wait how)
{
	bool waited = how == WAIT_POLL || ip->halted;

	if (ip->forced == WAIT_FREE) {
		add(how == WAIT_POLL ? &ip->cost.hits : &ip->cost.halts, 1);
		if (how == WAIT_HALT)
			add(&ip->wasted_ns, ip->counted_ns);
	} else if (waited && ip->forced == how && READ_ONCE(ip->cost.forced) == how) {
		add(&ip->cost.forced_waits, 1);
	}
}

/*
 * Accounts for the last pass; true if its idle period goes on, as no task ran since.
 * Idle task.
 */
static bool account_residency(struct idle_poll *ip, u64 now_ns)
{
	poll_gaps_account(&ip->gaps, &ip->contention, now_ns, ip->last_ns);
	ip->last_ns = 0;
	if (ip->outcome == IDLE_ACCOUNTED)
		return false;
	if (ip->switches == idle_switches())
		return true;

	count_wait(ip, ip->outcome == IDLE_CAUGHT ? WAIT_POLL : WAIT_HALT);
	if (ip->learns)
		learn(ip);
	ip->outcome = IDLE_ACCOUNTED;
	return false;
}

/* An idle period begins, and with it a cycle of the experiment on the programs. */
static void begin_period(struct idle_poll *ip, u64 now_ns)
{
	bool polls = is_free(ip) && idle_poll_own_limit_ns(ip, now_ns);
	bool paused = host_contended(&ip->contention, now_ns);

	if (!ip->halted)
		wake_cost_halt_aborted(&ip->cost.programs.wake_cost);
	/* The cycles of a measurement are none of the programs'. */
	if (ip->forced == WAIT_FREE)
		wake_cost_end(&ip->cost.programs.wake_cost, now_ns - ip->cycle_start_ns);
	ip->forced = READ_ONCE(ip->cost.forced);
	ip->cycle_start_ns = now_ns;
	ip->deliberate = wake_cost_begin(&ip->cost.programs.wake_cost, now_ns, polls);
	if (ip->deliberate)
		add(&ip->deliberate_halts, 1);
	ip->learns = is_free(ip) && !ip->deliberate && !paused;
	ip->halted = false;
	ip->switches = idle_switches();
	ip->start_ns = now_ns;
	ip->spent_ns = 0;
	ip->counted_ns = 0;
}

/* Does nobody tell this CPU to be idle, or want it left alone? Idle task. */
static bool may_poll(struct idle_poll *ip, int cpu)
{
	/* On each pass, as partitions of cpusets may be made at any time. */
	bool isolated = !halt_cost_may_use(cpu);
#ifdef CONFIG_SCHED_CORE
	struct rq *rq = cpu_rq(cpu);

	/* A hint: @core is some runqueue, whatever hotplug does meanwhile. */
	if (sched_core_enabled(rq) && READ_ONCE(READ_ONCE(rq->core)->core_forceidle_count))
		return false;
#endif
	if (READ_ONCE(ip->cost.isolated) != isolated)
		WRITE_ONCE(ip->cost.isolated, isolated);
	return !isolated && !cpu_is_offline(cpu) && !idle_should_enter_s2idle();
}

/* Devices in the poll: idle task, or where a comment says else. */
static void start_sources(void)
{
	if (!poll_sources_exist())
		return;
	local_irq_disable();
	/*
	 * The switch may be off by now, and release_this_cpu() may have been here. It does not
	 * reach a CPU that goes offline, where release_cpu() may have been.
	 */
	if (idle_poll_is_on() && cpu_active(smp_processor_id()))
		poll_sources_start();
	local_irq_enable();
}

/* The poll was @hit, or not; returns whether it was, devices that are late included. */
static bool end_sources(bool hit)
{
	if (!poll_sources_exist())
		return hit;
	local_irq_disable();
	/*
	 * A CPU that goes on to halt holds nothing back: it may halt again and again
	 * without a pass that would end a hold.
	 */
	if (hit || need_resched())
		hit |= poll_sources_stop();
	else
		hit = poll_sources_release(true);
	/* The handlers run. */
	local_irq_enable();
	/* What they had to do may concern no task of this CPU: the pass ends all the same. */
	if (hit && !need_resched())
		set_tsk_need_resched(current);
	return hit;
}

/* Idle task, or a thread that injects idle time. */
static void release_sources(void)
{
	if (!poll_sources_exist())
		return;
	local_irq_disable();
	poll_sources_release(true);
	local_irq_enable();
}

/* Interrupt, or interrupts off. */
static void release_this_cpu(void *unused)
{
	poll_sources_release(false);
}

/*
 * The switch was turned off. Process context. Where there are no sources, nothing is held back,
 * and whoever registers one later finds a CPU that does not poll.
 */
void idle_poll_release_all_sources(void)
{
	if (poll_sources_exist())
		on_each_cpu(release_this_cpu, NULL, true);
}

/*
 * Polls until a wakeup, or for @for_ns; true if there was a wakeup. Idle task. It is in the
 * section of code that is idle, so that backtraces of all CPUs leave it out.
 */
static noinline bool __cpuidle poll(struct idle_poll *ip, u64 start_ns, u64 for_ns)
{
	bool first = !ip->spent_ns;
	u64 polled_ns;
	bool hit;

	instrumentation_begin();
	rcu_nocb_flush_deferred_wakeup();
	poll_gaps_begin(&ip->gaps, start_ns);
	start_sources();
	/* A tracer of latencies is to take this for idle. */
	stop_critical_timings();
	hit = poll_for_wakeup(&ip->gaps, &ip->short_waits, start_ns + for_ns, idle_poll_clock_ns,
			      poll_sources_here, poll_sources_peek);
	start_critical_timings();
	/* Its clock may step back by a little. */
	ip->end_ns = max(hit ? idle_poll_clock_ns() : 0, ip->gaps.look_ns);
	ip->last_ns = ip->end_ns - start_ns;
	ip->spent_ns += ip->last_ns;
	poll_gaps_end(&ip->gaps);

	/* Neither what the host took nor long softirqs were polled. */
	polled_ns = ip->last_ns - poll_gaps_ns(&ip->gaps, ip->last_ns);
	hit = end_sources(hit);
	if (!hit)
		tick_nohz_idle_polled();
	else /* A tick during the poll woke the CPU from no idle state. */
		tick_nohz_idle_got_tick();
	if (ip->forced == WAIT_FREE) {
		/* One for each period that was polled, as hits are. */
		add(&ip->cost.polls, first);
		add(&ip->polled_ns, polled_ns);
		ip->counted_ns += polled_ns;
	}
	instrumentation_end();
	return hit;
}

/*
 * This CPU is not to poll, maybe never: an isolated one pays for a few tests on each pass, and
 * for neither clocks nor statistics. Once it may poll, it begins anew. Idle task.
 */
static void stand_aside(struct idle_poll *ip)
{
	/* It has done all that when it stood aside before. */
	if (!ip->epoch)
		return;
	if (ip->epoch == READ_ONCE(idle_poll_epoch))
		account_residency(ip, idle_poll_clock_ns());
	ip->epoch = 0;
	ip->outcome = IDLE_ACCOUNTED;
	/* No hold begins on a CPU whose last pass did not poll. */
	release_sources();
}

void __idle_poll(int cpu, bool polls_anyway)
{
	struct idle_poll *ip = this_cpu_ptr(&idle_polls);
	u64 now_ns, limit_ns;

	/* Idle is injected. The cycle that is open is none of the programs'. */
	if (current != cpu_rq(cpu)->idle) {
		wake_cost_begin(&ip->cost.programs.wake_cost, 0, false);
		release_sources();
		return;
	}

	if (ip->polls_anyway != polls_anyway)
		WRITE_ONCE(ip->polls_anyway, polls_anyway);
	if (polls_anyway || !may_poll(ip, cpu)) {
		stand_aside(ip);
		return;
	}
	if (ip->epoch != READ_ONCE(idle_poll_epoch))
		begin_anew(ip);
	now_ns = idle_poll_clock_ns();
	if (!account_residency(ip, now_ns))
		begin_period(ip, now_ns);

	limit_ns = ip->deliberate ? 0 : poll_limit_ns(ip, now_ns);
	if (limit_ns <= ip->spent_ns)
		release_sources();
	if (limit_ns > ip->spent_ns && poll(ip, now_ns, limit_ns - ip->spent_ns))
		ip->outcome = IDLE_CAUGHT;
	else
		ip->outcome = IDLE_OPEN;
	ip->watching = rcu_watching();
}

void __idle_poll_end(void)
{
	struct idle_poll *ip = this_cpu_ptr(&idle_polls);

	if (ip->outcome == IDLE_OPEN) {
		/* The clock may step back a little, but never into what was polled. */
		ip->end_ns = max(idle_poll_clock_ns(), ip->start_ns + ip->spent_ns);
		ip->outcome = IDLE_ENDED;
		ip->halted |= entered_state(ip->watching);
	}
}

#ifdef CONFIG_POLL_SOURCE
/* Runs on the CPU, which goes offline. */
static int release_cpu(unsigned int cpu)
{
	guard(irq)();
	poll_sources_release(false);
	return 0;
}

/* Drivers have devices long before CPUs may poll. */
static int __init idle_poll_sources_init(void)
{
	int ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "sched/idle_poll:sources",
					    NULL, release_cpu);

	if (ret < 0) {
		pr_err("no poll sources: error %d\n", ret);
		return ret;
	}
	poll_source_init();
	return 0;
}
subsys_initcall(idle_poll_sources_init);
#endif

// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit test of loads that wait with a timeout.
 *
 * Where it can be, time is told by a clock of the test's own, which goes on by
 * a fixed step whenever it is read: what is expected of it is exact, on the
 * slowest of machines. The rest reads the real clock. There a wait must never
 * be too short, and of many waits the best must not be too long: anything else
 * that happens on a machine only ever adds to the others.
 */
#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/irqflags.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/limits.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/preempt.h>
#include <linux/processor.h>

#include <asm/barrier.h>

/* Far more than any store takes to arrive: the test fails, not hangs. */
#define FOREVER_NS		(10ULL * NSEC_PER_SEC)

#define WAITS			50
#define WAIT_NS			(300ULL * NSEC_PER_USEC)

/*
 * Nobody may be late by more than this without a reason from outside: several
 * batches of cpu_relax(), and on arm64 a third of the event stream's period.
 */
#define LATE_NS			(150ULL * NSEC_PER_USEC)

struct fake_clock {
	s64 now_ns;
	s64 step_ns;
	unsigned int readings;
};

static s64 fake_clock_read(struct fake_clock *clock)
{
	s64 now_ns = clock->now_ns;

	clock->readings++;
	clock->now_ns += clock->step_ns;
	return now_ns;
}

/* Nobody waits, so nobody has to know the time. */
static void condition_true_at_once(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 1 };
	u32 word = 5;

	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, VAL == 5,
							       fake_clock_read(&clock), 0));
	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, VAL == 5,
							       fake_clock_read(&clock), S64_MAX));
	KUNIT_EXPECT_EQ(test, 0, clock.readings);
}

static void timeout_zero_looks_once(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 1 };
	unsigned int looks = 0;
	u32 word = 5;

	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, (looks++, VAL == 6),
							       fake_clock_read(&clock), 0));
	KUNIT_EXPECT_EQ(test, 1, looks);
	KUNIT_EXPECT_EQ(test, 1, clock.readings);
}

/* The clock is read as often as it is documented to be, and no look is left out. */
static void timeout_by_the_clock(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 100 };
	unsigned int looks = 0;
	u32 word = 5;

	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, (looks++, VAL == 6),
							       fake_clock_read(&clock), 1000));
	KUNIT_EXPECT_EQ(test, 11, clock.readings);
	KUNIT_EXPECT_EQ(test, 10 * SMP_TIMEOUT_POLL_COUNT + 1, looks);
}

/* The longest wait there is, by a clock that has been running for long. */
static void longest_timeout(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = S64_MAX / 2, .step_ns = S64_MAX / 8 };
	unsigned int looks = 0;
	u32 word = 5;

	smp_cond_load_relaxed_timeout(&word, ++looks == 3 * SMP_TIMEOUT_POLL_COUNT,
				      fake_clock_read(&clock), S64_MAX);
	KUNIT_EXPECT_EQ(test, 3 * SMP_TIMEOUT_POLL_COUNT, looks);
}

/* A clock that fails ends the wait, whenever it does. */
static void invalid_clock(struct kunit *test)
{
	struct fake_clock stopped = { .step_ns = 0 };
	struct fake_clock fails = { .now_ns = 201, .step_ns = -100 };
	u32 word = 5;

	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, VAL == 6,
							       fake_clock_read(&stopped),
							       FOREVER_NS));
	KUNIT_EXPECT_EQ(test, 1, stopped.readings);
	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_relaxed_timeout(&word, VAL == 6,
							       fake_clock_read(&fails),
							       FOREVER_NS));
	KUNIT_EXPECT_EQ(test, 4, fails.readings);
}

static s64 store_and_read(u32 *word, struct fake_clock *clock)
{
	WRITE_ONCE(*word, 6);
	return fake_clock_read(clock);
}

/* A store that comes while the clock is read for the last time is seen. */
static void store_at_the_end(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 1 };
	u32 word = 5;

	KUNIT_EXPECT_EQ(test, 6, smp_cond_load_relaxed_timeout(&word, VAL == 6,
							       store_and_read(&word, &clock), 0));
	KUNIT_EXPECT_EQ(test, 1, clock.readings);
}

/* The same wait; the ordering cannot be tested here. */
static void acquire(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 100 };
	const u32 word = 5;

	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_acquire_timeout(&word, VAL == 5,
							       fake_clock_read(&clock), 1000));
	KUNIT_EXPECT_EQ(test, 0, clock.readings);
	KUNIT_EXPECT_EQ(test, 5, smp_cond_load_acquire_timeout(&word, VAL == 6,
							       fake_clock_read(&clock), 1000));
	KUNIT_EXPECT_EQ(test, 11, clock.readings);
}

static void condition_met_on_the_way(struct kunit *test)
{
	struct fake_clock clock = { .now_ns = 1, .step_ns = 100 };
	unsigned int looks = 0;
	u32 word = 5;

	smp_cond_load_relaxed_timeout(&word, ++looks == 3 * SMP_TIMEOUT_POLL_COUNT,
				      fake_clock_read(&clock), 1000);
	KUNIT_EXPECT_EQ(test, 3 * SMP_TIMEOUT_POLL_COUNT, looks);
	/* One by the first look of each batch, but for a look that ended it. */
	KUNIT_EXPECT_EQ(test, DIV_ROUND_UP(looks - 1, SMP_TIMEOUT_POLL_COUNT), clock.readings);
}

/* One variable of each size that can be waited on, and one with a sign; the thread sets it. */
struct remote {
	u8 byte;
	u16 half;
	u32 word;
	int number;
	unsigned long whole;
	bool ends;	/* set before the last go */
	struct completion go;
};

#define STORE_AFTER_US	500

static int store_thread(void *data)
{
	struct remote *remote = data;

	for (;;) {
		wait_for_completion(&remote->go);
		if (remote->ends)
			break;
		udelay(STORE_AFTER_US);
		WRITE_ONCE(remote->byte, 0x80);
		udelay(STORE_AFTER_US);
		WRITE_ONCE(remote->half, 0x8000);
		udelay(STORE_AFTER_US);
		WRITE_ONCE(remote->word, 0x80000000);
		udelay(STORE_AFTER_US);
		WRITE_ONCE(remote->number, -2);
		udelay(STORE_AFTER_US);
		WRITE_ONCE(remote->whole, 1UL << (BITS_PER_LONG - 1));
	}
	/* kthread_stop() needs a thread that has not ended. */
	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE);
		if (kthread_should_stop())
			break;
		schedule();
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

/* A store that does not come ends the longest of waits, too. */
static bool overdue(u64 start_ns)
{
	return ktime_get_ns() - start_ns >= FOREVER_NS;
}

/*
 * Waits for each of the five in turn. Preemption is off, so this CPU is not the
 * one that stores. Returns whether the thread has come to the end of them.
 */
static bool wait_for_stores(struct kunit *test, struct remote *remote, s64 timeout_ns)
{
	u64 start_ns, took_ns;

	remote->byte = 0;
	remote->half = 0;
	remote->word = 0;
	remote->number = -1;
	remote->whole = 0;
	complete(&remote->go);

	preempt_disable();
	start_ns = ktime_get_ns();
	smp_cond_load_relaxed_timeout(&remote->byte, VAL || overdue(start_ns),
				      ktime_get_ns(), timeout_ns);
	smp_cond_load_relaxed_timeout(&remote->half, VAL || overdue(start_ns),
				      ktime_get_ns(), timeout_ns);
	smp_cond_load_relaxed_timeout(&remote->word, VAL || overdue(start_ns),
				      ktime_get_ns(), timeout_ns);
	smp_cond_load_relaxed_timeout(&remote->number, VAL != -1 || overdue(start_ns),
				      ktime_get_ns(), timeout_ns);
	smp_cond_load_relaxed_timeout(&remote->whole, VAL || overdue(start_ns),
				      ktime_get_ns(), timeout_ns);
	took_ns = ktime_get_ns() - start_ns;
	preempt_enable();

	KUNIT_EXPECT_EQ(test, 0x80, READ_ONCE(remote->byte));
	KUNIT_EXPECT_EQ(test, 0x8000, READ_ONCE(remote->half));
	KUNIT_EXPECT_EQ(test, 0x80000000, READ_ONCE(remote->word));
	KUNIT_EXPECT_EQ(test, -2, READ_ONCE(remote->number));
	KUNIT_EXPECT_EQ(test, 1UL << (BITS_PER_LONG - 1), READ_ONCE(remote->whole));
	KUNIT_EXPECT_LT(test, took_ns, FOREVER_NS);
	return READ_ONCE(remote->whole);
}

static void store_from_another_cpu(struct kunit *test)
{
	struct remote *remote = kunit_kzalloc(test, sizeof(*remote), GFP_KERNEL);
	struct task_struct *thread;
	unsigned int here, there;

	KUNIT_ASSERT_NOT_NULL(test, remote);
	init_completion(&remote->go);

	/* The thread is to stay on a CPU of its own. */
	cpus_read_lock();
	migrate_disable();
	here = smp_processor_id();
	there = cpumask_any_but(cpu_online_mask, here);
	if (there >= nr_cpu_ids) {
		migrate_enable();
		cpus_read_unlock();
		kunit_skip(test, "there is no other CPU");
	}
	thread = kthread_create(store_thread, remote, "cond_load_kunit");
	if (IS_ERR(thread)) {
		migrate_enable();
		cpus_read_unlock();
		KUNIT_FAIL_AND_ABORT(test, "no thread: error %ld", PTR_ERR(thread));
	}
	kthread_bind(thread, there);
	wake_up_process(thread);

	if (wait_for_stores(test, remote, FOREVER_NS))
		wait_for_stores(test, remote, S64_MAX);

	remote->ends = true;
	complete(&remote->go);
	kthread_stop(thread);
	migrate_enable();
	cpus_read_unlock();
}

/* How long a wait takes that only its timeout ends. */
static u64 wait_in_vain(void)
{
	unsigned long word = 0;
	u64 start_ns = ktime_get_ns();

	smp_cond_load_relaxed_timeout(&word, VAL, ktime_get_ns(), WAIT_NS);
	return ktime_get_ns() - start_ns;
}

static void expect_in_time(struct kunit *test, const u64 *took_ns)
{
	u64 best_ns = U64_MAX;
	int n;

	for (n = 0; n < WAITS; n++) {
		KUNIT_EXPECT_GE(test, took_ns[n], WAIT_NS);
		best_ns = min(best_ns, took_ns[n]);
	}
	kunit_info(test, "%llu ns took %llu ns at best\n", WAIT_NS, best_ns);
	KUNIT_EXPECT_LT(test, best_ns, WAIT_NS + LATE_NS);
}

static void never_early_hardly_late(struct kunit *test)
{
	u64 took_ns[WAITS];
	int n;

	for (n = 0; n < WAITS; n++)
		took_ns[n] = wait_in_vain();
	expect_in_time(test, took_ns);
}

/* No interrupt comes to the rescue of a wait that nothing else would end. */
static void interrupts_off(struct kunit *test)
{
	u64 took_ns[WAITS];
	unsigned long flags;
	int n;

	for (n = 0; n < WAITS; n++) {
		local_irq_save(flags);
		took_ns[n] = wait_in_vain();
		local_irq_restore(flags);
	}
	expect_in_time(test, took_ns);
}

#ifdef cpu_poll_deadline
/*
 * arm64's WFET waits until a counter reaches a deadline. When twice the time has passed by the
 * clock, the counter has reached it, whatever the command line says (lpj=).
 */
static void deadline_of_the_counter(struct kunit *test)
{
	u64 deadline = cpu_poll_deadline(WAIT_NS);
	u64 start_ns = ktime_get_ns();

	while (ktime_get_ns() - start_ns < 2 * WAIT_NS)
		cpu_relax();
	KUNIT_EXPECT_GE(test, cpu_poll_deadline(0), deadline);
}
#endif

static struct kunit_case cond_load_timeout_cases[] = {
	KUNIT_CASE(condition_true_at_once),
	KUNIT_CASE(timeout_zero_looks_once),
	KUNIT_CASE(timeout_by_the_clock),
	KUNIT_CASE(longest_timeout),
	KUNIT_CASE(invalid_clock),
	KUNIT_CASE(store_at_the_end),
	KUNIT_CASE(acquire),
	KUNIT_CASE(condition_met_on_the_way),
	KUNIT_CASE(store_from_another_cpu),
	KUNIT_CASE(never_early_hardly_late),
	KUNIT_CASE(interrupts_off),
#ifdef cpu_poll_deadline
	KUNIT_CASE(deadline_of_the_counter),
#endif
	{}
};

static struct kunit_suite cond_load_timeout_suite = {
	.name = "cond_load_timeout",
	.test_cases = cond_load_timeout_cases,
};

kunit_test_suite(cond_load_timeout_suite);

MODULE_DESCRIPTION("KUnit test of loads that wait with a timeout");
MODULE_LICENSE("GPL");

# SPDX-License-Identifier: GPL-2.0-only
"""What holds of poll_source.c, the kernel's own file, cost a CPU that serves a disk and computes.

One task reads from a disk: it needs the CPU for a moment, and then waits for the disk. Another one
computes and sleeps, in bursts. Where the first is woken, it runs at once. Else the CPU is idle, and
polls before it halts. A hold that the second task keeps from ending has the first one wait.
"""

from __future__ import annotations

from typing import Any

import cffi
import pytest
from kernel_library import all_of, simulated
from poll_source_headers import KERNEL_H, STUBS

from lightsleep.compiled import KERNEL

SIMULATION = r"""
#include <kernel.h>
#include "poll_source.c"
#include "poll_source_budget.c"

#define POLL_NS 200000ULL	/* how long the CPU polls before it halts */
#define DISK_NS 100000ULL
#define REQUEST_NS 20000ULL	/* what each request costs the CPU */

u64 now_ns;

/* The disk has one request at a time. */
static u64 asked_ns, answers_ns, waited_ns, requests;
static bool suppressed, answered;
static u64 request_left_ns, burst_left_ns, wakes_ns;

/* 0.5 to 1.5 times @mean_ns, the same each time. */
static u64 about(u64 mean_ns)
{
	static u64 random = 1;

	random = random * 6364136223846793005ULL + 1442695040888963407ULL;
	return mean_ns / 2 + (random >> 33) % mean_ns;
}

static void serve(void)
{
	if (answered) {
		answered = false;
		waited_ns += now_ns - asked_ns;
		requests++;
		request_left_ns = about(REQUEST_NS);
	}
	suppressed = false;
}

static bool refuses;
static unsigned int starts;

static bool start(struct poll_source *source)
{
	starts++;
	if (refuses)
		return false;
	return suppressed = true;
}

static bool peek(struct poll_source *source) { return answered; }
static bool stop(struct poll_source *source) { suppressed = false; return answered; }
/* As vring_interrupt(): without work, the driver hears of nothing. */
static void handle(struct poll_source *source) { if (answered) serve(); }
static const struct poll_source_ops ops = { start, peek, stop, handle, .holds = true };
static const struct poll_source_ops ops_without_holds = { start, peek, stop, handle };
static struct poll_source disk = { .ops = &ops, .name = "disk" };

static void interrupts(void)
{
	struct hrtimer *timer = &source_cpus.hold_timer;

	while (disk.work.queued) {
		disk.work.queued = false;
		disk.work.run(&disk.work);
	}
	if (timer->active && timer->at <= (s64)now_ns) {
		timer->active = false;
		timer->active = timer->function(timer) == HRTIMER_RESTART || timer->active;
		interrupts();
	}
}

static void pass(u64 ns, u64 burst_ns)
{
	now_ns += ns;
	if (answers_ns && now_ns >= answers_ns) {
		answers_ns = 0;
		answered = true;
		if (!suppressed) {
			serve();
			poll_source_notified(&disk);
		}
	}
	if (wakes_ns && now_ns >= wakes_ns) {
		wakes_ns = 0;
		burst_left_ns = about(burst_ns);
	}
	interrupts();
}

static void work(u64 *left_ns, u64 burst_ns)
{
	u64 ns = min(*left_ns, (u64)1000);

	*left_ns -= ns;
	pass(ns, burst_ns);
}

static bool is_idle(void) { return !request_left_ns && !burst_left_ns; }

u64 holds(void) { return disk.stats.holds; }
u64 served(void) { return requests; }

/* A poll found work, and a hold follows. */
static void begin_hold(void)
{
	refuses = false;
	poll_source_init();
	hold_us = 2000;
	poll_source_register(&disk);
	poll_sources_start();
	answered = true;
	poll_sources_peek();
	poll_sources_stop();
	interrupts();
}

/* What the device sent before it was suppressed arrives only now, and turns that off. */
static void be_interrupted(void)
{
	answered = true;
	serve();
	poll_source_notified(&disk);
}

/* 1: the hold goes on after that, 2: a poll has the source, 4: suppressed in both */
unsigned int after_interrupt(bool refused)
{
	bool held, polled, quiet;
	ktime_t held_until;

	begin_hold();
	held_until = disk.held_until;
	now_ns += 1000;
	refuses = refused;
	be_interrupted();
	held = disk.state == POLL_SOURCE_HELD && disk.held_until == held_until;
	quiet = suppressed;
	poll_sources_start();
	polled = disk.state == POLL_SOURCE_POLLED;
	quiet &= suppressed;
	poll_sources_stop();
	poll_source_unregister(&disk);
	refuses = false;
	return held | polled << 1 | quiet << 2;
}

/* What the device sent before comes ahead of the poll's own, and holds. Do interrupts stay off? */
bool off_after_refusal(void)
{
	bool off;

	refuses = false;
	poll_source_init();
	hold_us = 2000;
	poll_source_register(&disk);
	answered = true;
	poll_sources_start();
	poll_sources_peek();
	poll_sources_stop();
	be_interrupted();
	refuses = true;
	interrupts();
	off = suppressed;
	poll_source_unregister(&disk);
	refuses = false;
	return off;
}

/* How often does a source that does not hold start in a poll, and after a hit and an interrupt? */
unsigned int starts_without_holds(void)
{
	disk.ops = &ops_without_holds;
	starts = 0;
	begin_hold();
	be_interrupted();
	poll_source_unregister(&disk);
	disk.ops = &ops;
	return starts;
}

/* Is the timer of a hold set, and is it after its source has gone? */
unsigned int timers(void)
{
	unsigned int set;

	begin_hold();
	set = source_cpus.hold_timer.active;
	poll_source_unregister(&disk);
	return set | source_cpus.hold_timer.active << 1;
}

/* A poll ends the first hold, a release the second. How many holds are skipped then? */
unsigned int skips_after_release(u64 until_poll_ns, u64 until_release_ns, bool halts)
{
	unsigned int skips;

	begin_hold();
	now_ns += until_poll_ns;
	poll_sources_start();
	answered = true;
	poll_sources_peek();
	poll_sources_stop();
	interrupts();
	now_ns += until_release_ns;
	poll_sources_release(halts);
	interrupts();
	skips = disk.hold.skips;
	poll_source_unregister(&disk);
	return skips;
}

bool off_after_release(bool halts)
{
	bool off;

	begin_hold();
	poll_sources_release(halts);
	off = suppressed || disk.state == POLL_SOURCE_HELD;
	poll_source_unregister(&disk);
	return off;
}

u64 usual_ns(void) { return disk.hold.gap_ns; }

/* How long does a request take on average, in ns? */
u64 request_ns(unsigned int hold, u64 burst_ns, u64 sleep_ns, u64 for_ns)
{
	u64 end_ns = for_ns;
	u64 poll_end_ns;
	bool hit;

	now_ns = waited_ns = requests = answers_ns = burst_left_ns = 0;
	answered = suppressed = false;
	source_cpus.hold_timer.active = false;
	disk.stats.holds = 0;
	poll_source_init();
	hold_us = hold;
	poll_source_register(&disk);
	wakes_ns = sleep_ns;
	request_left_ns = REQUEST_NS;
	while (now_ns < end_ns) {
		if (request_left_ns) {
			work(&request_left_ns, burst_ns);
			if (!request_left_ns) {
				asked_ns = now_ns;
				answers_ns = now_ns + about(DISK_NS);
			}
			continue;
		}
		if (burst_left_ns) {
			work(&burst_left_ns, burst_ns);
			if (!burst_left_ns)
				wakes_ns = now_ns + about(sleep_ns);
			continue;
		}
		hit = false;
		poll_sources_start();
		for (poll_end_ns = now_ns + POLL_NS; is_idle() && !hit && now_ns < poll_end_ns;) {
			pass(200, burst_ns);
			hit = poll_sources_peek();
		}
		hit |= poll_sources_stop();
		interrupts();
		if (hit || !is_idle())
			continue;
		poll_sources_release(true);
		interrupts();
		while (is_idle())
			pass(200, burst_ns);
	}
	poll_source_unregister(&disk);
	return waited_ns / requests;
}
"""

FFI = cffi.FFI()
FFI.cdef("""
uint64_t holds(void); uint64_t served(void); unsigned int timers(void);
unsigned int after_interrupt(bool refused); unsigned int starts_without_holds(void);
bool off_after_refusal(void); uint64_t usual_ns(void);
unsigned int skips_after_release(uint64_t until_poll_ns, uint64_t until_release_ns, bool halts);
bool off_after_release(bool halts);
uint64_t request_ns(unsigned int hold, uint64_t burst_ns, uint64_t sleep_ns, uint64_t for_ns);
""")
MS, SECOND = 10**6, 10**9
DEFAULT_US = 2000


@pytest.fixture(scope="module")
def lib() -> Any:
    return simulated(FFI, SIMULATION, all_of(KERNEL_H, STUBS), flags=(f"-I{KERNEL}",))


@pytest.mark.parametrize(
    ("burst_ns", "sleep_ns"),
    [(MS, MS // 5), (2 * MS, 2 * MS), (MS // 10, MS // 2), (MS // 3, MS // 10), (5 * MS, MS)],
)
def test_requests_take_hardly_longer_for_holds(lib: Any, burst_ns: int, sleep_ns: int) -> None:
    with_holds, without = (
        lib.request_ns(hold_us, burst_ns, sleep_ns, 5 * SECOND) for hold_us in (DEFAULT_US, 0)
    )
    assert with_holds <= 1.25 * without


def test_a_cpu_that_serves_a_disk_alone_holds_nearly_always(lib: Any) -> None:
    lib.request_ns(DEFAULT_US, 1, SECOND, 5 * SECOND)
    assert lib.holds() > 0.9 * lib.served()


def test_a_source_that_goes_leaves_no_timer_behind(lib: Any) -> None:
    assert lib.timers() == 1


def test_a_hold_goes_on_after_an_interrupt(lib: Any) -> None:
    assert lib.after_interrupt(False) == 1 | 2 | 4


def test_a_hold_ends_with_an_interrupt_if_the_source_refuses_another(lib: Any) -> None:
    assert lib.after_interrupt(True) == 0


def test_a_hold_that_is_refused_leaves_no_interrupt_off(lib: Any) -> None:
    assert not lib.off_after_refusal()


@pytest.mark.parametrize(("halt_ns", "skips", "usual_ns"), [(48, 0, 41), (161, 8, 45)])
def test_a_halt_without_a_poll_ends_a_hold_as_a_poll_does(
    lib: Any, halt_ns: int, skips: int, usual_ns: int
) -> None:
    assert lib.skips_after_release(40_000, halt_ns * 1000, True) == skips
    assert lib.usual_ns() == usual_ns * 1000


def test_a_cpu_that_goes_offline_tells_nothing_of_what_is_usual(lib: Any) -> None:
    """Nor does the switch of polls: somebody else chose the time."""
    assert lib.skips_after_release(40_000, 161_000, False) == 0
    assert lib.usual_ns() == 40_000


@pytest.mark.parametrize("halts", [True, False])
def test_a_release_ends_a_hold_whatever_it_is_for(lib: Any, halts: bool) -> None:
    assert not lib.off_after_release(halts)


def test_a_source_that_does_not_hold_is_not_asked_to(lib: Any) -> None:
    assert lib.starts_without_holds() == 1

# SPDX-License-Identifier: GPL-2.0-only
"""poll_gaps.h and poll_wait.h, the kernel's own files: of a poll's gaps, which are the host's?"""

from collections.abc import Iterator

import cffi
import pytest
from kernel_library import simulated

US, MS = 10**3, 10**6

# As far as these files need them: what the kernel counts and accounts on one CPU, and a clock
# that goes on with each look. Where it waits for stores, it is as arm64.
HEADERS = {
    "linux/interrupt.h": """
enum {
	HI_SOFTIRQ, TIMER_SOFTIRQ, NET_TX_SOFTIRQ, NET_RX_SOFTIRQ, BLOCK_SOFTIRQ,
	IRQ_POLL_SOFTIRQ, TASKLET_SOFTIRQ, SCHED_SOFTIRQ, HRTIMER_SOFTIRQ, RCU_SOFTIRQ,
};
""",
    "linux/kernel_stat.h": """
#include <linux/types.h>
enum { CPUTIME_SOFTIRQ, CPUTIME_IRQ, CPUTIME_STEAL };
extern struct { unsigned int softirqs[10]; } kstat;
extern struct { u64 cpustat[3]; } kcpustat;
#define kstat_this_cpu (&kstat)
#define kcpustat_this_cpu (&kcpustat)
""",
    "linux/processor.h": """
void spin_begin(void);
void spin_cpu_relax(void);
void spin_end(void);
""",
    "linux/sched.h": """
#include <stdbool.h>
#define _TIF_NEED_RESCHED 8
struct thread_info { unsigned long flags; };
struct thread_info *current_thread_info(void);
bool need_resched(void);
""",
    "asm/barrier.h": """
#ifdef WAITS_FOR_STORES
void cpu_poll_relax(unsigned long *flags, unsigned long seen, unsigned long long for_ns);
#define cpu_poll_relax cpu_poll_relax
#define SMP_TIMEOUT_POLL_COUNT 1
#endif
""",
}
SOURCE = """
#include <linux/idle_poll/poll_wait.h>
__typeof__(kstat) kstat;
__typeof__(kcpustat) kcpustat;
static struct poll_gaps gaps;
void begin(u64 now_ns) { poll_gaps_begin(&gaps, now_ns); }
void look(u64 now_ns) { poll_gaps_look(&gaps, now_ns); }
void end(void) { poll_gaps_end(&gaps); }
void ran(int softirq) { kstat.softirqs[softirq]++; }
void took(int what, u64 for_ns) { kcpustat.cpustat[what] += for_ns; }
u64 stolen_ns(u64 polled_ns) { return poll_gaps_stolen_ns(&gaps, polled_ns); }

static struct host_contention contention;
u64 said[4];
int calls;
void host_contention_add(struct host_contention *hc, u64 now_ns, u64 ran_ns, u64 gap_ns,
	u64 account_ns)
{
	said[0] = now_ns; said[1] = ran_ns; said[2] = gap_ns; said[3] = account_ns;
	(void)hc;
	calls++;
}
void account(u64 now_ns, u64 polled_ns)
{
	poll_gaps_account(&gaps, &contention, now_ns, polled_ns);
}

static struct short_waits known;
void forget_waits(void) { known = (struct short_waits) { 0 }; }
u64 waits_from_ns;
static u64 now_ns, look_takes_ns;
u64 wait_takes_ns, odd_step_takes_ns;
unsigned int odd_step, steps, waits;
static void step(u64 takes_ns) { now_ns += ++steps == odd_step ? odd_step_takes_ns : takes_ns; }
static bool has_sources;
unsigned int readings;
static struct thread_info info;
struct thread_info *current_thread_info(void) { return &info; }
u64 wake_at_ns;
bool need_resched(void) { return wake_at_ns && now_ns >= wake_at_ns; }
static bool low;
unsigned int looks_low, looks_high, raised_at;
void spin_begin(void) { low = true; }
void spin_end(void) { low = false; }
bool is_low(void) { return low; }
void spin_cpu_relax(void)
{
	step(look_takes_ns);
	if (steps == raised_at)
		low = false; /* an interrupt */
	*(low ? &looks_low : &looks_high) += 1;
}
#ifdef WAITS_FOR_STORES
void cpu_poll_relax(unsigned long *flags, unsigned long seen, unsigned long long for_ns)
{
	(void)flags; (void)seen;
	waits++;
	if (for_ns < waits_from_ns)
		spin_cpu_relax();
	else
		step(wait_takes_ns < for_ns ? wait_takes_ns : for_ns);
}
#endif
u64 reading_takes_ns;
static u64 clock_ns(void) { readings++; return now_ns += reading_takes_ns; }
static bool sources_here(void) { return has_sources; }
unsigned int work_at;
static bool peek(void) { return work_at && steps >= work_at; }
u64 poll_ns(u64 for_ns, u64 takes_ns, bool sources)
{
	now_ns = 0;
	readings = 0;
	steps = waits = looks_low = looks_high = 0;
	look_takes_ns = takes_ns;
	has_sources = sources;
	poll_gaps_begin(&gaps, 0);
	poll_for_wakeup(&gaps, &known, for_ns, clock_ns, sources_here, peek);
	poll_gaps_end(&gaps);
	return now_ns;
}
"""
HI, TIMER, NET_RX, IRQ_POLL, SCHED, RCU = 0, 1, 3, 5, 7, 9
SOFTIRQ_TIME, IRQ_TIME, STOLEN_TIME = 0, 1, 2

FFI = cffi.FFI()
FFI.cdef("""
void begin(uint64_t now_ns); void look(uint64_t now_ns); void end(void);
void ran(int softirq); void took(int what, uint64_t for_ns);
uint64_t stolen_ns(uint64_t polled_ns);
extern uint64_t said[4];
extern int calls;
void account(uint64_t now_ns, uint64_t polled_ns);
extern unsigned int readings;
void forget_waits(void);
extern uint64_t waits_from_ns;
uint64_t poll_ns(uint64_t for_ns, uint64_t takes_ns, bool sources);
extern uint64_t wait_takes_ns, wake_at_ns, reading_takes_ns, odd_step_takes_ns;
extern unsigned int odd_step, waits, looks_low, looks_high, raised_at, work_at;
bool is_low(void);
""")
LIB = simulated(FFI, SOURCE, HEADERS)
WAITING = simulated(FFI, SOURCE, HEADERS, flags=("-DWAITS_FOR_STORES",))


def poll(gap_ns: int, softirqs: tuple[int, ...] = (), took_ns: dict[int, int] | None = None) -> int:
    """Poll for 200 us around one gap, in which interrupts came; return what the host took."""
    LIB.begin(0)
    for now_ns in range(0, 100 * US, 10 * US):
        LIB.look(now_ns)
    for softirq in softirqs:
        LIB.ran(softirq)
    for what, for_ns in (took_ns or {}).items():
        LIB.took(what, for_ns)
    for now_ns in range(0, 100 * US, 10 * US):
        LIB.look(90 * US + gap_ns + now_ns)
    LIB.end()
    return int(LIB.stolen_ns(180 * US + gap_ns))


def test_a_gap_without_interrupts_is_the_hosts() -> None:
    assert poll(3 * MS) == 3 * MS
    assert poll(400 * US) == 0


@pytest.mark.parametrize("softirq", [HI, NET_RX, IRQ_POLL])
def test_softirqs_that_devices_raise_are_not_the_host(softirq: int) -> None:
    assert poll(3 * MS, (softirq,)) == 0


@pytest.mark.parametrize("softirq", [TIMER, SCHED, RCU])
def test_any_softirq_whose_time_the_kernel_accounts_is_not_the_host(softirq: int) -> None:
    assert poll(3 * MS, (softirq,), {SOFTIRQ_TIME: 3 * MS, IRQ_TIME: 5 * US}) == 0


@pytest.mark.parametrize("softirq", [TIMER, SCHED, RCU])
def test_the_tick_after_a_stolen_time_slice_excuses_only_itself(softirq: int) -> None:
    took_ns = {SOFTIRQ_TIME: 20 * US, IRQ_TIME: 5 * US}
    assert poll(3 * MS, (softirq,), took_ns) == 3 * MS - 25 * US
    assert poll(3 * MS, (softirq,)) == 3 * MS


def test_a_long_interrupt_is_not_the_host() -> None:
    assert poll(1 * MS, (), {IRQ_TIME: 1 * MS}) == 0


def test_time_that_the_tick_sampled_is_no_more_than_the_gap() -> None:
    assert poll(1 * MS, (RCU,), {SOFTIRQ_TIME: 4 * MS}) == 0


def test_the_time_after_the_last_look_counts() -> None:
    LIB.begin(0)
    LIB.look(10 * US)
    LIB.took(SOFTIRQ_TIME, 1 * MS)
    LIB.end()
    assert LIB.stolen_ns(3 * MS) == 3 * MS - 10 * US - 1 * MS


def test_what_the_host_took_is_evidence_with_a_poll_or_without() -> None:
    poll(3 * MS)
    before = LIB.calls
    LIB.account(7, 180 * US + 3 * MS)
    assert list(LIB.said) == [7, 180 * US, 3 * MS, 0]
    LIB.account(8, 0)
    assert LIB.calls == before + 1, "no poll, and nothing stolen"
    LIB.took(STOLEN_TIME, 5 * MS)
    LIB.account(9, 0)
    assert list(LIB.said) == [9, 0, 0, 5 * MS]
    LIB.account(10, 0)
    assert LIB.calls == before + 2, "what was stolen counts once"


@pytest.mark.parametrize(
    ("softirqs", "took_ns"), [((NET_RX,), {}), ((), {IRQ_TIME: 3 * MS}), ((RCU,), {IRQ_TIME: MS})]
)
def test_a_gap_is_no_time_polled_whosever_it_was(
    softirqs: tuple[int, ...], took_ns: dict[int, int]
) -> None:
    stolen_ns = poll(3 * MS, softirqs, took_ns)
    LIB.account(7, 180 * US + 3 * MS)
    assert list(LIB.said) == [7, 180 * US, stolen_ns, 0]


@pytest.mark.parametrize("look_us", [1, 60, 300])
def test_looks_at_devices_that_take_long_are_not_the_host(look_us: int) -> None:
    polled_ns = LIB.poll_ns(1 * MS, look_us * US, True)
    assert LIB.stolen_ns(polled_ns) == 0
    assert 1 * MS <= polled_ns < 1 * MS + look_us * US


@pytest.fixture
def wakes() -> Iterator[None]:
    """Let nobody wake the CPU any more, and no source have work."""
    yield
    LIB.wake_at_ns = LIB.work_at = LIB.raised_at = 0


@pytest.mark.usefixtures("wakes")
@pytest.mark.parametrize("ends_by", ["", "wake_at_ns", "work_at"])
def test_a_poll_is_at_a_low_priority_and_what_follows_is_not(ends_by: str) -> None:
    """For siblings on POWER; whoever is woken, or a device's work, is not to be slow."""
    if ends_by:
        setattr(LIB, ends_by, 50 * US if ends_by == "wake_at_ns" else 50)
    LIB.poll_ns(1 * MS, 1 * US, False)
    assert (LIB.looks_low, LIB.looks_high) == (50 if ends_by else 1008, 0)
    assert not LIB.is_low()


@pytest.mark.usefixtures("wakes")
def test_an_interrupt_raises_the_priority_until_the_next_reading_of_the_clock() -> None:
    LIB.raised_at = 20
    LIB.poll_ns(1 * MS, 1 * US, False)
    assert (LIB.looks_low, LIB.looks_high) == (1008 - 13, 13)


def test_without_sources_the_clock_is_read_seldom() -> None:
    polled_ns = LIB.poll_ns(1 * MS, 1 * US, False)
    assert 1 * MS <= polled_ns < 1 * MS + 16 * US
    assert LIB.readings == 1 + -(-1000 // 16), "one more tells what a reading takes"


@pytest.fixture
def slow_clock() -> Iterator[None]:
    """As HPET: a reading takes 1 us."""
    LIB.reading_takes_ns = 1 * US
    yield
    LIB.reading_takes_ns = 0


@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize("look_ns", [3, 15, 29, 45])
@pytest.mark.parametrize(("for_us", "share"), [(20, 0.35), (100, 0.22), (1000, 0.18)])
def test_a_slow_clock_is_read_for_a_small_part_of_a_poll(
    look_ns: int, for_us: int, share: float
) -> None:
    polled_ns = LIB.poll_ns(for_us * US, look_ns, False)
    assert LIB.readings * LIB.reading_takes_ns < share * polled_ns
    assert for_us * US <= polled_ns < for_us * US + LIB.reading_takes_ns + 16 * look_ns


@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize("reading_us", [1, 5, 20])
def test_a_slow_clock_makes_a_poll_longer_by_one_reading_at_most(reading_us: int) -> None:
    LIB.reading_takes_ns = reading_us * US
    for for_us in range(1, 100):
        assert LIB.poll_ns(for_us * US, 45, False) < (for_us + reading_us) * US + 16 * 45


@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize("reading_us", [1, 10, 100, 200])
def test_no_clock_is_so_slow_that_looks_at_it_make_a_gap(reading_us: int) -> None:
    LIB.reading_takes_ns = reading_us * US
    polled_ns = LIB.poll_ns(10 * MS, 45, False)
    assert LIB.stolen_ns(polled_ns) == 0
    assert polled_ns < 10 * MS + 300 * US


SHORT_WAITS = 4
"""So many in a row tell that waits do not wait."""


def wait(for_ns: int, takes_ns: int, odd: tuple[int, int] = (0, 0), spin_ns: int = 100) -> int:
    """Poll where waits take ``takes_ns``, and the ``odd`` step (which, ns) that; return how long.

    A step is a wait or a spin. It is the first poll of its CPU.
    """
    WAITING.forget_waits()
    WAITING.waits_from_ns = WAITING.wake_at_ns = 0
    return wait_again(for_ns, takes_ns, odd, spin_ns)


def wait_again(
    for_ns: int, takes_ns: int, odd: tuple[int, int] = (0, 0), spin_ns: int = 100
) -> int:
    """Do what wait() does, in a CPU that remembers how its last polls waited."""
    WAITING.wait_takes_ns = takes_ns
    WAITING.odd_step, WAITING.odd_step_takes_ns = odd
    return int(WAITING.poll_ns(for_ns, spin_ns, False))


def test_a_wait_for_a_store_is_followed_by_a_look_at_the_clock() -> None:
    assert wait(1 * MS, 100 * US) == 1 * MS
    assert WAITING.waits == WAITING.readings == 10


def test_no_wait_for_a_store_makes_a_gap() -> None:
    polled_ns = wait(10 * MS, 10 * MS)
    assert WAITING.waits == 40, "each for half of a gap"
    assert WAITING.stolen_ns(polled_ns) == 0


def test_where_no_wait_waits_the_clock_is_read_seldom() -> None:
    polled_ns = wait(1 * MS, 100)
    assert 1 * MS <= polled_ns < 1 * MS + 200 * 100
    assert WAITING.waits == SHORT_WAITS
    spun_ns = 1 * MS - SHORT_WAITS * 100
    assert WAITING.readings == SHORT_WAITS + -(-spun_ns // (200 * 100))


@pytest.mark.parametrize("look_ns", [1, 5, 20, 49])
def test_readings_of_the_clock_are_microseconds_apart(look_ns: int) -> None:
    """It spins for 10 us at a time, or for the most looks of a spin."""
    assert wait(1 * MS, 100, spin_ns=look_ns) < 1 * MS + 200 * look_ns
    spins = 1 * MS // min(10 * US, 1600 * look_ns)
    assert spins <= WAITING.readings <= spins + SHORT_WAITS + 6, "some at either end are shorter"


def test_the_next_polls_know_that_no_wait_waits_and_one_of_them_finds_out_anew() -> None:
    wait(1 * MS, 100)
    waits = []
    for _ in range(2 * 65):
        assert 1 * MS <= wait_again(1 * MS, 100) < 1 * MS + 200 * 100
        waits.append(WAITING.waits)
    assert waits == ([0] * 64 + [SHORT_WAITS]) * 2


def test_a_poll_for_longer_than_a_short_wait_might_have_lasted_waits() -> None:
    wait(50 * US, 100)
    assert wait_again(60 * US, 60 * US) == 60 * US
    assert WAITING.waits == WAITING.readings == 1
    wait_again(50 * US, 50 * US)
    assert WAITING.waits == 0


def test_waits_that_wait_again_are_used_again() -> None:
    wait(1 * MS, 100)
    for _ in range(64):
        wait_again(1 * MS, 100 * US)
        assert WAITING.waits == 0
    assert wait_again(1 * MS, 100 * US) == 1 * MS
    assert WAITING.waits == WAITING.readings == 10


def test_polls_too_short_for_as_many_waits_find_out_together() -> None:
    wait(1 * US, 1 * US)
    WAITING.wake_at_ns = 250
    waits = []
    for _ in range(3):
        wait_again(200 * US, 100)
        waits.append(WAITING.waits)
    assert waits == [3, 2, 0]


def test_a_wakeup_is_no_short_wait_and_reads_no_clock() -> None:
    wait(1 * US, 1 * US)
    WAITING.wake_at_ns = 2 * US
    for _ in range(10):
        wait_again(200 * US, 2 * US)
        assert (WAITING.waits, WAITING.readings) == (1, 0)


def test_a_short_poll_is_no_short_wait() -> None:
    """WFET: the event stream cut one wait, and each poll then waits for all that is left."""
    wait(8 * US, 8 * US, odd=(1, 3 * US))
    for _ in range(10):
        wait_again(8 * US, 8 * US, odd=(1, 3 * US))
        assert WAITING.waits == 2


def test_where_long_waits_wait_only_what_is_left_after_them_is_spun() -> None:
    """WFE: with less time left than a period of the event stream, it is not used."""
    wait(1 * US, 1 * US)
    WAITING.waits_from_ns = 100 * US
    for polls in range(3 * 65):
        assert 450 * US <= wait_again(450 * US, 100 * US) < 450 * US + 200 * 100
        assert WAITING.waits == 4 + (SHORT_WAITS if polls % 65 == 0 else 0)


def test_longer_waits_than_the_first_short_one_go_on() -> None:
    wait(1 * US, 1 * US)
    WAITING.waits_from_ns = 100 * US
    wait_again(305 * US, 100 * US, odd=(3, 6 * US))  # 105 us are left before it, 99 us after it
    assert wait_again(400 * US, 100 * US) >= 400 * US
    assert WAITING.waits == 3


def test_where_the_longest_wait_is_short_no_poll_waits() -> None:
    wait(300 * US, 100)
    wait_again(10 * MS, 100)
    assert WAITING.waits == 0


def test_looks_at_devices_are_no_short_waits() -> None:
    wait(1 * US, 1 * US)
    WAITING.poll_ns(1 * MS, 100, True)
    assert WAITING.waits == 0
    assert wait_again(1 * MS, 100 * US) == 1 * MS
    assert WAITING.waits == 10


@pytest.mark.parametrize("which", [1, 4])
def test_one_wait_that_ended_early_ends_no_waiting(which: int) -> None:
    assert wait(1 * MS, 100 * US, odd=(which, 1 * US)) == 1 * MS
    assert WAITING.waits == WAITING.readings == 11


@pytest.mark.parametrize(("which", "waits"), [(1, 5), (2, 6), (4, 8), (20, 4)])
def test_an_interrupt_is_no_short_wait(which: int, waits: int) -> None:
    assert wait(1 * MS, 1 * US, odd=(which, 50 * US)) >= 1 * MS
    assert WAITING.waits == waits


def test_a_clock_that_steps_back_makes_no_gap() -> None:
    LIB.begin(0)
    for now_ns in (10 * US, 9 * US, 20 * US):
        LIB.look(now_ns)
    LIB.end()
    assert LIB.stolen_ns(20 * US) == 0

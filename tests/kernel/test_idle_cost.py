# SPDX-License-Identifier: GPL-2.0-only
"""idle_cost.c, the kernel's own file: which cost counts, from when on, and for how long?"""

import errno
import tempfile
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

from lightsleep.compiled import KERNEL, compile_kernel_files

US = 1000
ASSUMED_NS = 25 * US
MINUTE_S = 60

# As far as the file needs them: one CPU, nothing runs by itself, and time goes on when it is told.
HEADERS = {
    "cpu.h": """
#define cpus_read_lock() do { } while (0)
#define cpus_read_unlock() do { } while (0)
#define for_each_online_cpu(cpu) for ((cpu) = 0; (cpu) < 1; (cpu)++)
""",
    "debugfs.h": """
#define debugfs_create_dir(name, parent) NULL
#define debugfs_create_file(name, mode, parent, data, fops) do { } while (0)
#define debugfs_remove(dentry) do { } while (0)
""",
    "jiffies.h": """
#define HZ 250
#define TICK_NSEC (1000000000L / HZ)
extern unsigned long jiffies;
#define time_before(a, b) ((long)((a) - (b)) < 0)
#define round_jiffies_relative(j) (j)
""",
    "mutex.h": """
#define DEFINE_MUTEX(name) int name
#define mutex_lock(mutex) ((void)(mutex))
#define mutex_unlock(mutex) ((void)(mutex))
""",
    "sched.h": """
#define cond_resched() do { } while (0)
#define data_race(what) (what)
""",
    "seq_file.h": """
struct seq_file;
#define seq_puts(file, text) do { } while (0)
#define seq_printf(file, ...) do { } while (0)
#define DEFINE_SHOW_ATTRIBUTE(name) int (*name##_shown)(struct seq_file *, void *) = name##_show
""",
    "timekeeping.h": """
#define NSEC_PER_USEC 1000L
u64 ktime_get_ns(void);
""",
    "workqueue.h": """
struct work_struct;
#define DECLARE_DELAYED_WORK(name, function) void (*name)(struct work_struct *) = function
extern unsigned long next_in;
#define queue_delayed_work(queue, work, delay) (next_in = (delay))
#define cancel_delayed_work_sync(work) do { } while (0)
""",
}
SOURCE = """
#include <errno.h>
#include <stddef.h>
#include <linux/minmax.h>
#define min_t(type, x, y) min((type)(x), (type)(y))
#define pr_info(...) do { } while (0)
#define pr_warn(...) do { } while (0)
#include "idle_cost.c"

unsigned long jiffies;
static u64 now_ns;
u64 ktime_get_ns(void) { return now_ns; }
bool halt_cost_may_use(unsigned int cpu) { return true; }

static struct halt_cost found_ns;
static int ends_with;
int measurements;
int halt_cost_measure(const struct halt_cost_ops *of, struct halt_cost found[HALT_COST_SLEEPS])
{
	int n;

	measurements++;
	for (n = 0; n < HALT_COST_SLEEPS; n++)
		found[n] = found_ns;
	return ends_with;
}

static struct idle_cost the_cpu;
u64 advertised_ns;
static struct idle_cost *cost_of(unsigned int cpu) { return &the_cpu; }
static unsigned int weight(void) { return 4; }
static bool learning(unsigned int cpu) { return true; }
bool is_stopped, is_paused;
unsigned long next_in;
static bool stopped(void) { return is_stopped; }
static bool paused(void) { return is_paused; }
static bool forbidden(unsigned int cpu) { return false; }
static void advertise(u64 latency_ns) { advertised_ns = latency_ns; }
static const struct idle_cost_ops test_ops = {
	.of = cost_of, .wait_weight = weight, .learns = learning, .polling_stopped = stopped,
	.polling_paused = paused,
	.wait_forbidden = forbidden, .set_exit_latency = advertise,
};

void begin(void)
{
	ops = &test_ops;
	running = true;
	results = 0;
	known_harmful = is_stopped = is_paused = false;
	calibrate_wait = 0;
	machine_cost_ns = advertised_ns = 0;
	jiffies = now_ns = 0;
	idle_cost_init(&the_cpu, 0);
}

int measure(int ret, s64 cost_ns, s64 margin_ns)
{
	ends_with = ret;
	found_ns.estimate.cost_ns = cost_ns;
	found_ns.estimate.lower_ns = cost_ns - margin_ns;
	found_ns.estimate.upper_ns = cost_ns + margin_ns;
	found_ns.worst_ns = cost_ns > 0 ? 2 * cost_ns : 0;
	return idle_cost_calibrate(true);
}

void programs_lose(s64 cost_ns)
{
	the_cpu.estimate.cost_ns = cost_ns;
	the_cpu.estimated = true;
}

/* A second in which the programs wake after each of these; a halt delays them. */
void pass_second(const u64 *cycle_ns, int cycles, u64 halt_ns)
{
	int n;

	for (n = 0; n < cycles; n++) {
		bool halts = wake_cost_begin(&the_cpu.wake_cost, now_ns, true);

		the_cpu.polls += !halts;
		the_cpu.hits += !halts;
		wake_cost_end(&the_cpu.wake_cost, cycle_ns[n] + (halts ? halt_ns : 0));
		now_ns += 1000000000ULL / cycles;
	}
	jiffies += HZ;
	estimate_costs(NULL);
}

unsigned int its_time_comes(void) { calibrate_again(NULL); return next_in / HZ; }
bool programs_know(void) { return the_cpu.estimated; }
u64 cost_ns(void) { return idle_cost_ns(&the_cpu); }
u64 wakeup_ns(void) { return idle_cost_wakeup_ns(&the_cpu); }
"""

FFI = cffi.FFI()
FFI.cdef("""
void begin(void); int measure(int ret, int64_t cost_ns, int64_t margin_ns);
void programs_lose(int64_t cost_ns); bool programs_know(void);
void pass_second(const uint64_t *cycle_ns, int cycles, uint64_t halt_ns);
uint64_t cost_ns(void); uint64_t wakeup_ns(void);
extern uint64_t advertised_ns;
extern bool is_stopped, is_paused; extern int measurements;
unsigned int its_time_comes(void); /* returns in how many seconds it comes again */
""")
with tempfile.TemporaryDirectory(prefix="lightsleep-") as _name:  # may go once it is loaded
    _folder = Path(_name)
    (_folder / "linux").mkdir()
    for _header, _text in HEADERS.items():
        (_folder / "linux" / _header).write_text(_text)
    (_folder / "test.c").write_text(SOURCE)
    _flags = ("-O2", "-shared", "-fPIC", "-Wno-unused", "-Wno-unused-parameter")
    compile_kernel_files(
        [KERNEL / "wake_cost.c", _folder / "test.c"],
        _folder / "test.so",
        (f"-I{_folder}", *_flags, "-DLIGHTSLEEP_MODULE"),
    )
    LIB: Any = FFI.dlopen(str(_folder / "test.so"))


@pytest.fixture(autouse=True)
def _anew() -> None:
    LIB.begin()


def harms() -> int:
    return int(LIB.measure(0, -20 * US, US))


# The wakeup itself.


@pytest.mark.parametrize(
    ("programs_us", "cost_us", "wakeup_us"), [(104, 104, 30), (10, 10, 10), (-5, 0, 0)]
)
def test_a_wakeup_takes_no_more_than_the_machine_and_the_programs_lose(
    programs_us: int, cost_us: int, wakeup_us: int
) -> None:
    """What a waker does, and cold caches, cost programs more: none of that is idle time."""
    assert LIB.measure(0, 30 * US, US) == 0
    assert (LIB.cost_ns(), LIB.wakeup_ns()) == (30 * US, 30 * US)
    LIB.programs_lose(programs_us * US)
    assert (LIB.cost_ns(), LIB.wakeup_ns()) == (cost_us * US, wakeup_us * US)


# What is assumed before the first result.


def test_a_busy_machine_has_an_assumed_cost() -> None:
    assert LIB.measure(-errno.EAGAIN, 0, 0) == -errno.EAGAIN
    assert (LIB.cost_ns(), LIB.advertised_ns) == (ASSUMED_NS, ASSUMED_NS)


@pytest.mark.parametrize("busy_at_first", [False, True])
def test_where_polls_do_harm_nothing_is_assumed_before_there_is_a_figure(
    busy_at_first: bool,
) -> None:
    if busy_at_first:
        LIB.measure(-errno.EAGAIN, 0, 0)
    assert harms() == -errno.EBUSY
    assert (LIB.cost_ns(), LIB.advertised_ns) == (0, 0)
    assert LIB.measure(-errno.EAGAIN, 0, 0) == -errno.EAGAIN
    assert (LIB.cost_ns(), LIB.advertised_ns) == (0, 0)
    assert LIB.measure(0, 50 * US, US) == 0
    assert (LIB.cost_ns(), LIB.advertised_ns) == (50 * US, 100 * US)


def test_once_there_is_a_figure_a_failure_changes_nothing() -> None:
    LIB.measure(0, 50 * US, US)
    assert harms() == -errno.EBUSY
    LIB.measure(-errno.EAGAIN, 0, 0)
    assert (LIB.cost_ns(), LIB.advertised_ns) == (50 * US, 100 * US)


@pytest.mark.parametrize("why", ["is_stopped", "is_paused"])
def test_where_no_cpu_is_to_poll_nothing_is_measured_unasked(why: str) -> None:
    before = LIB.measurements
    setattr(LIB, why, True)
    LIB.its_time_comes()
    assert LIB.measurements == before
    assert LIB.measure(0, 50 * US, US) == 0  # somebody asks
    setattr(LIB, why, False)
    LIB.its_time_comes()
    assert LIB.measurements == before + 2


def test_a_measurement_that_waits_for_the_host_follows_soon() -> None:
    LIB.measure(0, 50 * US, US)
    assert [LIB.its_time_comes() for _ in range(3)] == [20, 600, 600]
    LIB.is_paused = True
    assert [LIB.its_time_comes() for _ in range(3)] == [20, 20, 20]
    LIB.is_paused = False
    assert LIB.its_time_comes() == 600
    LIB.is_stopped = True
    assert LIB.its_time_comes() == 600


# How long an answer of the programs lasts.


def minutes(cycles_per_s: int, minutes: int, seed: int = 1) -> list[bool]:
    """Return whether the programs of a steady load had an answer, second by second."""
    rng = np.random.default_rng(seed)
    known = []
    for _ in range(minutes * MINUTE_S):
        cycle_ns = (rng.normal(200, 20, cycles_per_s) * US).astype(int).tolist()
        LIB.pass_second(FFI.new("uint64_t[]", cycle_ns), cycles_per_s, 100 * US)
        known.append(LIB.programs_know())
    return known


@pytest.mark.parametrize("cycles_per_s", [10, 12, 20, 35, 100, 1000])
def test_a_slow_but_steady_load_keeps_its_answer(cycles_per_s: int) -> None:
    LIB.measure(0, 30 * US, US)
    assert minutes(cycles_per_s, 8)[-1]
    assert abs(LIB.cost_ns() - 100 * US) < 20 * US
    assert all(minutes(cycles_per_s, 120, seed=2))


def test_a_load_that_nearly_ends_loses_its_answer() -> None:
    LIB.measure(0, 30 * US, US)
    assert minutes(100, 3)[-1]
    assert not minutes(2, 3)[-1]
    assert LIB.cost_ns() == 30 * US


def test_too_slow_a_load_has_no_answer() -> None:
    LIB.measure(0, 30 * US, US)
    assert not any(minutes(5, 60))

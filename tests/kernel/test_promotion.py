# SPDX-License-Identifier: GPL-2.0-only
"""Promotion in guests, and what its experiment makes of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ktap import run_selftest
from suspend import SUSPEND_APPEND, suspend_to_idle

from lightsleep.compare.analysis import Outcome, judge_claims
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.experiments.promotion import EXPERIMENT, figures
from lightsleep.lab.loads.promotions import KERNEL, Counts, counts
from lightsleep.lab.loads.silence import EXIT, Silence, complete, least_deep, silences

DEEPEST = 3
PROMOTE = "/sys/module/cpuidle/parameters/promote"


def trace(*events: tuple[int, str]) -> str:
    """Return what the kernel would have printed of CPU 1: time in us, and mark or state."""
    header = "# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"
    lines = []
    for at_us, what in events:
        time = f"{at_us // 10**6:5d}.{at_us % 10**6:06d}"
        said = (
            f"cpu_idle: state={what} cpu_id=1" if what.isdigit() else f"tracing_mark_write: {what}"
        )
        lines.append(f"          <idle>-0       [001] d..1.  {time}: {said}\n")
    return header + "".join(lines)


OUT = str(EXIT)


def test_a_cpu_that_is_promoted_step_by_step() -> None:
    text = trace(
        *((90, "1"), (95, OUT), (100, "silence")),
        *((1_000_000, "1"), (1_000_026, OUT), (1_000_028, "2"), (1_000_090, OUT)),
        *((1_000_093, "3"), (2_000_093, OUT), (2_000_099, "noise"), (2_000_100, "3")),
    )
    assert list(silences(text, 1, DEEPEST)) == [Silence(1, 93, True, 1_000_000, 3, 1_000_099)]


def test_a_cpu_that_is_stuck() -> None:
    text = trace(
        (100, "silence"), (110, "1"), (4_110, OUT), (4_112, "2"), (9_000, OUT), (9_010, "noise")
    )
    assert list(silences(text, 1, DEEPEST)) == [Silence(1, 8_900, False, 0, 2, 8_900)]


def test_deep_is_what_the_driver_does_not_ask_to_leave(tmp_path: Path) -> None:
    """As of a POWER9: snooze, stop0_lite, which it asks to leave, and two more."""
    for index in range(4):
        folder = tmp_path / f"cpu1/cpuidle/state{index}"
        folder.mkdir(parents=True)
        (folder / "disable").write_text("0\n")
    assert least_deep(1, tmp_path) == 3
    asked = [tmp_path / f"cpu1/cpuidle/state{index}/promoted" for index in (1, 3)]
    asked[0].write_text("0\n")
    assert least_deep(1, tmp_path) == 2
    asked[1].write_text("0\n")
    assert least_deep(1, tmp_path) == 3


def test_a_cpu_that_goes_through_deep_states_only() -> None:
    text = trace((100, "silence"), (110, "2"), (500, OUT), (510, "3"), (600, OUT), (610, "noise"))
    assert list(silences(text, 1, 2)) == [Silence(2, 0, True, 480, 2, 500)]


def test_a_cpu_that_was_not_misled_and_another_cpu() -> None:
    text = trace((100, "silence"), (110, "3"), (500, OUT), (510, "noise"))
    other = text.replace("cpu_id=1", "cpu_id=0")
    assert list(silences(text, 1, DEEPEST)) == [Silence(3, 0, True, 390, 1, 400)]
    assert list(silences(other, 1, DEEPEST)) == []


def test_wakes_of_a_sibling_are_counted_while_it_is_silent() -> None:
    def sibling(at_us: int) -> str:
        """Return an idle period of CPU 0."""
        return trace((at_us, "2"), (at_us + 5, OUT)).replace("cpu_id=1", "cpu_id=0")

    text = sibling(10) + trace((100, "silence"), (110, "3")) + sibling(200) + sibling(300)
    text += trace((500, OUT), (510, "noise")) + sibling(600)
    assert list(silences(text, 1, DEEPEST, 0)) == [Silence(3, 0, True, 390, 1, 400, 2)]
    assert list(silences(text, 1, DEEPEST)) == [Silence(3, 0, True, 390, 1, 400)]


@pytest.mark.parametrize(
    ("header", "ends"),
    [
        ("# entries-in-buffer/entries-written: 39/39   #P:2", False),
        ("# entries-in-buffer/entries-written: 22000/86000   #P:2", True),
        ("# tracer: function", True),
    ],
)
def test_a_trace_that_lost_its_beginning_is_no_trace(header: str, ends: bool) -> None:
    if ends:
        with pytest.raises(SystemExit, match="not complete"):
            complete(header)
    else:
        assert complete(header) == header


def test_figures_are_of_those_that_were_misled() -> None:
    found = [
        Silence(1, 90, True, 900, 3, 1_000),
        Silence(1, 110, True, 880, 5, 1_000),
        Silence(3, 0, True, 1_000, 1, 1_000),
    ]
    assert figures(found, Counts(6, 60)) == {
        "exit_shallow_us": 100,
        "longest_us": 110,
        "fooled_pct": 100 * 2 / 3,
        "deep_pct": 100 * 2_780 / 3_000,
        "wakes": 3,
        "promotions": 2,
    }


NEVER = figures([Silence(3, 0, True, 1_000, 1, 1_000)], Counts(6, 60))
MISLED = figures([Silence(1, 1_000, False, 0, 3, 1_000)], Counts(6, 60))


def outcomes(arm: dict[str, float], reference: dict[str, float]) -> list[Outcome]:
    """Return what comes of both claims about ladder, with the same figures in each round."""
    assert isinstance(EXPERIMENT.metrics, tuple)
    asked = ("lightsleep-ladder", "off")
    result = CompareResult(
        experiment="test",
        title="",
        hypothesis="",
        created="",
        environment={},
        protocol={"runs": 9},
        arms=[*asked],
        roles={"lightsleep-ladder": "treatment", "off": "baseline"},
        metrics={
            x.name: MetricResult(
                *(x.unit, x.better, x.title, x.description),
                {"lightsleep-ladder": [arm[x.name]] * 9, "off": [reference[x.name]] * 9},
            )
            for x in EXPERIMENT.metrics
        },
        claims=[x for x in EXPERIMENT.claims if (x.arm, x.reference) == asked],
    )
    shallow, misled = judge_claims(result)
    assert (shallow.claim.metrics, misled.claim.metrics) == (("exit_shallow_us",), ("fooled_pct",))
    return [shallow.outcome, misled.outcome]


def test_an_arm_that_is_never_misled_ends_no_comparison_and_proves_nothing() -> None:
    assert (NEVER["exit_shallow_us"], NEVER["longest_us"], NEVER["fooled_pct"]) == (0, 0, 0)
    assert outcomes(NEVER, NEVER) == [Outcome.OPEN, Outcome.HELD]
    assert outcomes(MISLED, NEVER) == [Outcome.OPEN, Outcome.HELD]
    # A time of 0 would be the best there is.
    assert outcomes(NEVER, MISLED)[1] is Outcome.REFUTED
    quickly = figures([Silence(1, 10, True, 990, 3, 1_000)], Counts(6, 60))
    assert outcomes(quickly, MISLED) == [Outcome.HELD, Outcome.HELD]


CPUS = "/sys/devices/system/cpu"
CPU = f"{CPUS}/cpu1/cpuidle"
ENOUGH_S = 1800.0
RT = "6.12-series-rt"
DEBUG = "6.12-series-debug"
SLOW = {KERNEL: 1, "7.3-series": 1, RT: 1, DEBUG: 20}
"""How many times as long sleeps are: the debug kernel takes 200 us to begin one."""
LONG = {f"{governor}_learns_nothing" for governor in ("menu", "teo", "ladder")}
PARTITION = "leaves_new_partitions_alone"
CPUSETS = {"7.3-series", RT, DEBUG}
"""Kernels that have cpusets: those on which no experiment runs."""
STATES = {1: "lite:1:10,mid:16:60,deep:32:120", 20: "lite:1:10,mid:30:600,deep:60:800"}
"""By SLOW: states of which sleeps of 15 us, so many times as long, mislead menu."""


def states_module(kernel: str) -> str:
    """Return the module with the states for a kernel."""
    return f"cpuidle_synthetic states={STATES[SLOW[kernel]]}"


def mislead(guest: Guest, kernel: str) -> None:
    """Make CPU 1 sleep shortly, many times, and then for long."""
    command = ("python3", "-m", "lightsleep.lab.loads.silence", "--silence-ms", "50")
    guest.run((*command, "--sleep-us", str(15 * SLOW[kernel])), timeout_s=ENOUGH_S)


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
@pytest.mark.parametrize("kernel", SLOW)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg-icount"), "promote", ENOUGH_S) as guest:
        slow = SLOW[kernel]
        guest.run(["sh", "-ec", f"echo 0 > {PROMOTE}"])
        result = run_selftest(
            guest, "promote.sh", timeout_s=ENOUGH_S, SLOW=slow, STATES=STATES[slow]
        )
        assert guest.read_text(PROMOTE) == "N\n"  # as it was found
        assert guest.run(["test", "-e", "/sys/module/cpuidle_synthetic"], check=False).rc == 1
    assert not result.failed
    skipped = LONG if SLOW[kernel] > 1 else set()
    assert set(result.skipped) == (skipped if kernel in CPUSETS else {*skipped, PARTITION})


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
def test_the_selftest_runs_with_the_states_of_a_driver_that_asks() -> None:
    """powernv does, for stop0_lite. Under emulation, its governor may err too rarely to tell."""
    machine = Machine(arch="ppc64le", kernel=KERNEL, accel="tcg")
    with boot(machine, "promote-powernv", ENOUGH_S) as guest:
        result = run_selftest(guest, "promote.sh", timeout_s=ENOUGH_S, SLOW=2)
    assert not result.failed
    assert "refuses_nonsense" in result.passed
    assert "leaves_shallow_states" not in (*result.passed, *result.skipped)


KILLED = f"""
    setsid sh /tmp/promote.sh {GUEST_MODULES} {PARTITION} > /tmp/log 2>&1 &
    until grep -q ' cgroup2 ' /proc/mounts; do :; done
    kill -- -$!
    wait $!
    echo $?
"""
"""Ends the selftest, all its processes, when it is about to make a partition."""


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
def test_a_signal_leaves_no_partition_behind() -> None:
    with boot(Machine(kernel=RT, accel="tcg-icount"), "promote-signal", ENOUGH_S) as guest:
        run_selftest(guest, "promote.sh", "refuses_nonsense")  # brings the script
        assert guest.run(["sh", "-c", KILLED]).stdout == "143\n"
        assert "cgroup2" not in guest.read_text("/proc/mounts")
        assert guest.run(["test", "-e", "/sys/module/cpuidle_synthetic"], check=False).rc == 1


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
@pytest.mark.parametrize(
    ("kernel", "append", "governor"),
    [
        (KERNEL, "isolcpus=domain,1", "ladder"),
        # menu goes by the next timer where the tick is stopped, and is not misled.
        (RT, "nohz_full=1", "ladder"),
        # ladder goes by latencies, which are short beside the sleeps of this kernel.
        (DEBUG, "isolcpus=domain,1", "menu"),
    ],
)
def test_isolated_cpus_are_left_alone(kernel: str, append: str, governor: str) -> None:
    machine = Machine(
        kernel=kernel,
        accel="tcg-icount",
        append=f"{append} cpuidle.governor={governor}",
        modules=(states_module(kernel),),
    )
    with boot(machine, "promote-isolated", ENOUGH_S) as guest:
        name = append.partition("=")[0].replace("isolcpus", "isolated")
        assert guest.read_text(f"{CPUS}/{name}") == "1\n"
        mislead(guest, kernel)
        assert counts(guest, 1).promoted == 0
    # The same without isolation: it is that which kept the CPU where it was.
    free = replace(machine, append=f"cpuidle.governor={governor}")
    with boot(free, "promote-free", ENOUGH_S) as guest:
        mislead(guest, kernel)
        assert counts(guest, 1).promoted > 0


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
@pytest.mark.parametrize("kernel", [KERNEL, RT])
def test_promotion_goes_on_after_suspend_to_idle(kernel: str) -> None:
    machine = Machine(
        kernel=kernel, accel="tcg-icount", append=SUSPEND_APPEND, modules=(states_module(kernel),)
    )
    with boot(machine, "promote-suspend", ENOUGH_S) as guest:
        for number in (1, 2):
            before = counts(guest, 1)
            mislead(guest, kernel)
            assert (counts(guest, 1) - before).promoted > 0
            suspend_to_idle(guest, number)

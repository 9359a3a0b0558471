# SPDX-License-Identifier: GPL-2.0-only
"""Polling in the idle loop, in kernels of the series: the selftest, interrupts, and governors."""

from __future__ import annotations

import time

import pytest
from ktap import run_selftest
from partitions import GROUP, isolated
from suspend import SUSPEND_APPEND, suspend_to_idle

from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, received

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

KERNEL = "6.12-series"
ENOUGH_S = 1200.0
PARAMETERS = "/sys/module/idle_poll/parameters"
CPUS = "/sys/devices/system/cpu"
SELFTEST = "idle_poll.sh"
MAY_SKIP = {
    "time_polled_is_idle_time",
    *("restores_when_switched_off", "asks_the_programs", "ignores_function_calls"),
    *("honours_a_latency_request", "survives_hotplug", "survives_switching_under_load"),
    *("measures_in_the_background", "does_not_poll_while_idle_is_injected"),
    "does_not_poll_in_suspend_to_idle",
}
"""On a busy host, where the guest loses ticks, and its CPUs leave the cores to others."""
PIPE = ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", "2000")
SPINS = "idle_poll: nothing is measured while the idle loop polls anyway"


def pipe_interrupts(guest: Guest) -> int:
    """Return how many interrupts between CPUs a pipe costs."""
    before = received(guest, *BETWEEN_CPUS)
    guest.run(PIPE, timeout_s=120)
    return received(guest, *BETWEEN_CPUS) - before


def pauses(guest: Guest) -> int:
    """Return how often CPUs left their cores to others."""
    counts = guest.run(["sh", "-c", f"cat {CPUS}/cpu*/idle_poll/contention_pauses"]).stdout
    return sum(int(x) for x in counts.split())


def check_interrupts(guest: Guest, at_most: float) -> None:
    """Check that a pipe costs few interrupts, once the host lets the guest poll."""
    before = pauses(guest)
    for _ in range(15):
        if pipe_interrupts(guest) < at_most:
            return
        time.sleep(2)  # a pause is that long, or longer
    if pauses(guest) > before:
        pytest.skip("the host needs its cores")
    pytest.fail("interrupts as without polling")


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [
        ("x86_64", KERNEL),
        ("aarch64", KERNEL),
        ("x86_64", "7.3-series"),
        *(("x86_64", f"{KERNEL}-{checks}") for checks in ("rt", "debug", "kcsan")),
    ],
)
def test_selftest(arch: str, kernel: str) -> None:
    """One boot for all: the boot is what takes long."""
    machine = Machine(arch=arch, kernel=kernel, accel="tcg")
    with boot(machine, f"idle-poll-{kernel}-{arch}", ENOUGH_S) as guest:
        off = pipe_interrupts(guest)
        result = run_selftest(guest, SELFTEST, timeout_s=ENOUGH_S)
        assert not result.failed
        assert set(result.skipped) <= MAY_SKIP
        guest.write_text(f"{PARAMETERS}/enabled", "1")
        check_interrupts(guest, off / 10)


@pytest.mark.parametrize(
    "driver", ["cpuidle_lightsleep mode=off", "cpuidle_synthetic states=C1:20:40,C6:300:900"]
)
@pytest.mark.parametrize("governor", ["menu", "teo", "ladder"])
def test_it_polls_before_any_driver_and_governor(driver: str, governor: str) -> None:
    append = f"idle_poll.enabled=1 cpuidle.governor={governor}"
    machine = Machine(kernel=KERNEL, append=append, modules=(driver,), accel="tcg")
    with boot(machine, f"idle-poll-{governor}", ENOUGH_S) as guest:
        assert guest.read_text(f"{CPUS}/cpuidle/current_governor").strip() == governor
        result = run_selftest(guest, SELFTEST, "polls_when_on", "does_not_poll_at_rest")
        assert (result.failed, result.skipped) == ({}, [])


def test_beside_a_driver_that_polls_nothing_fails() -> None:
    """A poll in front of it gains next to nothing there, so the CPUs may leave polling to it."""
    machine = Machine(kernel=KERNEL, modules=("haltpoll_rule",), accel="tcg")
    with boot(machine, "idle-poll-haltpoll", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, timeout_s=ENOUGH_S)
        assert not result.failed
        # Whatever asks for hits may skip, and what needs a driver of its own has to.
        assert "counts_halts" in result.passed


def test_suspend_to_idle_returns() -> None:
    append = f"{SUSPEND_APPEND} idle_poll.enabled=1"
    with boot(Machine(kernel=KERNEL, append=append, accel="tcg"), "suspend", ENOUGH_S) as guest:
        suspend_to_idle(guest, 1)
        result = run_selftest(guest, SELFTEST, "polls_when_on")
        assert (result.failed, result.skipped) == ({}, [])


def test_suspend_to_idle_is_not_polled() -> None:
    with boot(Machine(kernel=KERNEL, accel="tcg"), "suspend-naps", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "does_not_poll_in_suspend_to_idle")
        assert not result.failed
        assert set(result.skipped) <= MAY_SKIP


def test_an_isolated_cpu_does_not_poll() -> None:
    append = "isolcpus=1 idle_poll.enabled=1"
    machine = Machine(kernel=KERNEL, append=append, vcpus=3, accel="tcg")
    with boot(machine, "isolated", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "polls_when_on")
        assert (result.failed, result.skipped) == ({}, [])
        guest.write_text(f"{PARAMETERS}/enabled", "1")
        guest.run(["taskset", "-c", "1", *PIPE], timeout_s=120)
        for what in ("polls", "halts"):  # it pays for no account, either
            assert guest.read_text(f"{CPUS}/cpu1/idle_poll/{what}").strip() == "0"


NAPS = f"""
    [ ! -d {GROUP} ] || echo $$ > {GROUP}/cgroup.procs
    exec taskset -c 1 python3 -c "import time; [time.sleep(0.001) for _ in range(300)]"
"""


def waits(guest: Guest) -> int:
    """Return how many idle periods CPU 1 accounted for while a task waited there, 300 times."""

    def count() -> int:
        return sum(int(guest.read_text(f"{CPUS}/cpu1/idle_poll/{x}")) for x in ("hits", "halts"))

    before = count()
    guest.run(["sh", "-ec", NAPS], timeout_s=120)
    return count() - before


def test_a_cpu_that_is_isolated_at_run_time_does_not_poll() -> None:
    # The kernel on which experiments run has no cpusets.
    machine = Machine(kernel=f"{KERNEL}-rt", append="idle_poll.enabled=1", vcpus=3, accel="tcg")
    with boot(machine, "isolated-later", ENOUGH_S) as guest:
        assert waits(guest) >= 300
        with isolated(guest):
            assert waits(guest) <= 1  # the period before
        assert waits(guest) >= 250  # it begins anew


def test_an_idle_loop_that_polls_anyway_is_left_alone() -> None:
    machine = Machine(kernel=KERNEL, append="idle=poll idle_poll.enabled=1", accel="tcg")
    with boot(machine, "polls-anyway", ENOUGH_S) as guest:
        guest.run(PIPE, timeout_s=120)
        for what in ("polls", "halts", "polled_ns", "limit_ns"):
            files = f"{CPUS}/cpu[0-9]*/idle_poll/{what}"
            assert set(guest.run(["sh", "-c", f"cat {files}"]).stdout.split()) == {"0"}
        # Nothing halts, so there is nothing to measure either; the log says so once.
        assert guest.read_text(f"{PARAMETERS}/halt_cost_ns").strip() == "0"
        until_said = f"until dmesg | grep -q '{SPINS}'; do sleep 0.1; done"
        guest.run(["sh", "-c", until_said], timeout_s=ENOUGH_S)
        said = guest.run(["dmesg"]).stdout
        assert said.count(SPINS) == 1
        assert "cannot measure the halt cost" not in said


KILLED = f"""
    setsid sh /tmp/{SELFTEST} {GUEST_MODULES} survives_hotplug > /tmp/log 2>&1 &
    until [ "$(cat {CPUS}/cpu1/online)" = 0 ]; do sleep 0.01; done
    kill -s "$1" -- -$!
    wait $!
    echo $?
"""
"""Ends the selftest when it has taken a CPU offline and has a load of its own."""


def test_a_signal_leaves_settings_as_they_were() -> None:
    machine = Machine(kernel=KERNEL, accel="tcg", append="idle_poll.enabled=1")
    with boot(machine, "idle-poll-signal", ENOUGH_S) as guest:
        run_selftest(guest, SELFTEST, "refuses_nonsense")  # brings the script
        for signal in ("HUP", "TERM"):
            assert guest.run(["sh", "-c", KILLED, "sh", signal]).stdout == "143\n"
            assert guest.read_text(f"{PARAMETERS}/enabled") == "1\n"
            assert guest.read_text(f"{CPUS}/cpu1/online") == "1\n"
            assert guest.run(["pgrep", "perf"], check=False).rc == 1

# SPDX-License-Identifier: GPL-2.0-only
"""Kernels of the series: waits with a timeout end, whatever the command line says.

Under emulation WFE and WFET do not sleep: what is tested is that code gets on without the event
stream, and what KUnit's test says; not how long a real CPU sleeps.
"""

import pytest
from booted import boot
from ktap import parse

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

KERNEL = "6.12-series"
RESULTS = "/sys/kernel/debug/kunit/cond_load_timeout/results"
CPU = "/sys/devices/system/cpu"
NO_EVENT_STREAM = "clocksource.arm_arch_timer.evtstrm=0"
TOO_MANY_LOOPS = "lpj=20000000"
"""Each second has 250 jiffies, and QEMU's counter has 62.5 MHz or 1 GHz."""
ENOUGH_S = 1200.0


def kunit(guest: Guest) -> str:
    """Return the test's own part of what KUnit says."""
    text = guest.read_text(RESULTS)
    return "\n".join(line.strip() for line in text.splitlines() if line.startswith("    "))


@pytest.mark.parametrize(
    ("arch", "append", "cpu"),
    [
        ("x86_64", "", ""),
        ("aarch64", "", ""),
        ("aarch64", NO_EVENT_STREAM, ""),
        ("aarch64", TOO_MANY_LOOPS, ""),
        ("aarch64", "", "cortex-a72"),
        ("ppc64le", "", ""),
    ],
)
def test_kunit(arch: str, append: str, cpu: str) -> None:
    """A Cortex-A72 has no WFET, whatever QEMU gives the others."""
    machine = Machine(
        arch=arch, kernel=KERNEL, append=f"kunit.enable=1 {append}", cpu=cpu, accel="tcg"
    )
    with boot(machine, f"kunit-{arch}", ENOUGH_S) as guest:
        result = parse(kunit(guest))
        features = guest.run(["grep", "-m1", "Features", "/proc/cpuinfo"], check=False).stdout
    assert ("wfxt" in features.split()) is (arch == "aarch64" and not cpu)
    assert not result.failed
    assert not result.skipped
    assert "interrupts_off" in result.passed
    assert ("deadline_of_the_counter" in result.passed) is (arch == "aarch64")


@pytest.mark.parametrize("append", ["", NO_EVENT_STREAM])
@pytest.mark.parametrize("poller", ["lightsleep", "idle_poll"])
def test_an_arm64_cpu_polls_without_interrupts_and_halts_nevertheless(
    poller: str, append: str
) -> None:
    """It is woken by a store, and without one its poll ends, and it goes on to WFI."""
    module = poller == "lightsleep"
    machine = Machine(
        arch="aarch64",
        kernel=KERNEL,
        append=append if module else f"{append} idle_poll.enabled=1",
        modules=("cpuidle_lightsleep",) if module else (),
        accel="tcg",
    )
    with boot(machine, f"poll-{poller}", ENOUGH_S) as guest:
        features = guest.run(["grep", "-m1", "Features", "/proc/cpuinfo"]).stdout.split()
        assert ("evtstrm" in features) is (NO_EVENT_STREAM not in append)
        event = "sched:sched_wake_idle_without_ipi"
        pipe = ["perf", "bench", "sched", "pipe", "-l", "2000"]
        counted = guest.run(["perf", "stat", "-a", "-x,", "-e", event, *pipe])
        # On a host that is busy most polls end too early; without the series it is none at all.
        assert int(counted.stderr.split(",")[0]) > 10
        halts = f"{CPU}/cpu1/{poller}/halts"
        before = int(guest.read_text(halts))
        guest.run(["sleep", "2"])
        assert int(guest.read_text(halts)) > before

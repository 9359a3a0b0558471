# SPDX-License-Identifier: GPL-2.0-only
"""test_cpuidle_latency in guests: its selftest everywhere, with and without a device."""

from collections.abc import Iterator

import pytest
from booted import boot
from kernels import FIRST, ON_X86_64, RT
from ktap import run_selftest

from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Devices, Machine
from lightsleep.lab.kernels.config import ARCHES

pytestmark = pytest.mark.boot

SELFTEST = "test-cpuidle_latency.sh"
ENOUGH_S = 300.0
CPU1 = "/sys/devices/system/cpu/cpu1/online"

# Each load attaches to tracepoints, so the kernel patches its code; see test_synthetic.py.
ACCEL: dict[str, Wanted] = {"x86_64": "tcg-single", "aarch64": "tcg", "ppc64le": "tcg"}

WAKES = "wakes_by_timer", "wakes_by_ipi", "wakes_by_device"

SKIPPED = {
    "x86_64": ["refuses_without_a_device"],
    # A stock kernel does not spare a CPU that polls the interrupt.
    "aarch64": [
        "wakes_by_store_who_polls",
        "agrees_with_the_scheduler",
        "refuses_without_a_device",
    ],
    # The firmware's own idle driver has the CPUs.
    "ppc64le": [
        "wakes_by_store_who_polls",
        "agrees_with_the_scheduler",
        "ends_with_a_wake_that_does_not_come",
        "ends_with_a_wake_that_comes_late",
        "refuses_without_a_device",
    ],
}

SETTINGS = """
    event=events/sched/sched_wake_idle_without_ipi
    mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
    cd /sys/kernel/tracing
    cat trace_clock $event/enable $event/filter /proc/sys/kernel/sched_rt_runtime_us
    [ ! -e /sys/power/pm_test ] || cat /sys/power/pm_test
    ls instances
    cat /sys/devices/system/cpu/online
    cut -d' ' -f1 /proc/modules
"""

KILLED = f"""
    runtime=/proc/sys/kernel/sched_rt_runtime_us
    setsid sh /tmp/{SELFTEST} {GUEST_MODULES} gives_up_on_a_cpu_without_time > /tmp/log 2>&1 &
    until [ "$(cat $runtime)" = -1 ]; do sleep 0.1; done
    kill -s "$1" -- -$!
    wait $!
    echo $?
"""
"""Ends the selftest, all its processes, when it has changed a setting."""

WRITING = f"""
    setsid sh /tmp/{SELFTEST} {GUEST_MODULES} gives_up_on_a_cpu_without_time > /tmp/log 2>&1 &
    taskset -pc 0 $$ > /dev/null
    until grep -qsx dd /proc/[0-9]*/comm; do sleep 0.1; done
    kill -s TERM $!
    wait $!
    echo $?
"""
"""Ends the selftest alone, while another process of it waits for the module: CPU 1 has no time."""


@pytest.fixture(scope="module")
def plain_guest() -> Iterator[Guest]:
    """A guest without a device to measure, for all tests that leave it as they found it."""
    with boot(Machine(accel=ACCEL["x86_64"]), "latency-plain", ENOUGH_S) as guest:
        yield guest


def settings(guest: Guest) -> str:
    return guest.run(["sh", "-c", SETTINGS]).stdout


def with_device(arch: str, append: str = "", kernel: str = FIRST) -> Machine:
    device = f"virtio-rng-pci,bus={ARCHES[arch].bus}"
    return Machine(
        arch=arch,
        kernel=kernel,
        append=append,
        accel=ACCEL[arch],
        devices=Devices(device=(device,)),
    )


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [*ON_X86_64, pytest.param("aarch64", FIRST, marks=pytest.mark.more), ("ppc64le", FIRST)],
)
def test_selftest(arch: str, kernel: str) -> None:
    with boot(with_device(arch, kernel=kernel), f"latency-{arch}-{kernel}", ENOUGH_S) as guest:
        before = settings(guest)
        result = run_selftest(guest, SELFTEST)
        # Of these kernels, only this one has what that takes, CONFIG_PM_DEBUG.
        suspended = run_selftest(guest, SELFTEST, "survives_suspend") if kernel == RT else None
        after = settings(guest)
    assert not result.failed
    assert not suspended or suspended.passed == ["survives_suspend"]
    assert result.skipped == SKIPPED[arch]
    assert after == before


def test_wakes_on_arm64() -> None:
    with boot(with_device("aarch64"), "latency-arm64", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, *WAKES, "ends_with_the_cpu_that_is_woken")
    assert result.passed == [*WAKES, "ends_with_the_cpu_that_is_woken"]


@pytest.mark.more
def test_where_interrupts_are_threads() -> None:
    with boot(with_device("x86_64", "threadirqs"), "latency-threadirqs", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "wakes_by_device", "ends_with_the_device")
    assert result.passed == ["wakes_by_device", "ends_with_the_device"]


def test_without_a_device(plain_guest: Guest) -> None:
    result = run_selftest(plain_guest, SELFTEST, "wakes_by_device", "refuses_without_a_device")
    assert (result.skipped, result.passed) == (["wakes_by_device"], ["refuses_without_a_device"])


def test_a_signal_leaves_settings_as_they_were(plain_guest: Guest) -> None:
    run_selftest(plain_guest, SELFTEST, "files_are_for_root_only")  # brings the script
    before = settings(plain_guest)
    for signal in ("HUP", "TERM"):
        assert plain_guest.run(["sh", "-c", KILLED, "sh", signal]).stdout == "143\n"
        assert settings(plain_guest) == before


def test_a_signal_that_a_write_does_not_get_leaves_no_module(plain_guest: Guest) -> None:
    """As Ctrl-C, which nothing gets that a shell started in the background."""
    run_selftest(plain_guest, SELFTEST, "files_are_for_root_only")  # brings the script
    before = settings(plain_guest)
    assert plain_guest.run(["sh", "-c", WRITING]).stdout == "143\n"
    assert settings(plain_guest) == before


def test_a_driver_and_a_cpu_that_are_in_use_are_left_alone(plain_guest: Guest) -> None:
    needs_states = ("wakes_by_store_who_polls", "ends_with_a_wake_that_comes_late")
    plain_guest.insmod("cpuidle_lightsleep")
    result = run_selftest(plain_guest, SELFTEST, "files_are_for_root_only", *needs_states)
    assert (result.passed, result.skipped) == (["files_are_for_root_only"], [*needs_states])
    plain_guest.run(["rmmod", "cpuidle_lightsleep"])  # it is there
    plain_guest.write_text(CPU1, "0")
    done = plain_guest.run(["sh", f"/tmp/{SELFTEST}", GUEST_MODULES], check=False)
    assert (done.rc, done.stdout) == (4, "1..0 # SKIP needs CPUs 0 and 1, online\n")
    assert plain_guest.read_text(CPU1) == "0\n"
    plain_guest.write_text(CPU1, "1")


@pytest.mark.more
def test_ten_thousand_times_garbage() -> None:
    with boot(with_device("x86_64"), "latency-garbage", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "survives_garbage", GARBAGE=10_000)
    assert result.passed == ["survives_garbage"]

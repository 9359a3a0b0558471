# SPDX-License-Identifier: GPL-2.0-only
"""The kernel with our series, booted: what it calls, and how it wakes others."""

from __future__ import annotations

import pytest

from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.lab.loads.interrupts import CALLS, received

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

BOOT_S = 600.0
KERNEL = "6.12-series"


WITHOUT_IPI = "sched:sched_wake_idle_without_ipi"


def call_many(guest: Guest, targets: int, calls: int, wait: int) -> tuple[int, int]:
    """Call functions from CPU 0.

    Returns how many interrupts of calls there were meanwhile, and how many wakes without one.
    """
    run = "/sys/kernel/debug/test_smp_mask/run"
    call = ("taskset", "-c", "0", "sh", "-c", f"echo {targets} {calls} {wait} > {run}")
    before = received(guest, CALLS)
    counted = guest.run(["perf", "stat", "-a", "-x,", "-e", WITHOUT_IPI, *call], timeout_s=120)
    assert len(guest.read_text(run).split()) == calls
    ipis = received(guest, CALLS) - before
    return ipis, int(counted.stderr.split(",")[0])


@pytest.mark.parametrize(
    ("arch", "kernel"), [*((arch, KERNEL) for arch in ARCHES), ("x86_64", "7.3-series")]
)
def test_the_series_boots(arch: str, kernel: str) -> None:
    with boot(Machine(arch=arch, kernel=kernel, accel="tcg"), f"series-{arch}", BOOT_S) as guest:
        assert guest.run(["uname", "-r"]).stdout.strip().endswith("-series")
        guest.run(["perf", "bench", "sched", "pipe", "-l", "500"], timeout_s=120)


@pytest.mark.parametrize("wait", [0, 1])
def test_polling_cpus_are_called_without_an_interrupt(wait: int) -> None:
    machine = Machine(
        kernel=KERNEL,
        append="idle=poll",
        vcpus=3,
        accel="tcg",
        modules=("test_smp_mask pause_us=10000",),
    )
    with boot(machine, "series-polls", BOOT_S) as guest:
        calls = 200
        ipis, stores = call_many(guest, 2, calls, wait)
        # Two CPUs each time. One that the host did not let run may not be idle again in time.
        assert stores > calls
        assert ipis < calls


@pytest.mark.parametrize("wait", [0, 1])
def test_halting_cpus_are_called_by_interrupt(wait: int) -> None:
    machine = Machine(kernel=KERNEL, vcpus=3, accel="tcg", modules=("test_smp_mask",))
    with boot(machine, "series-halts", BOOT_S) as guest:
        ipis, _ = call_many(guest, 2, 100, wait)
        assert ipis > 100


@pytest.mark.parametrize(
    ("arch", "kernel", "append"),
    [
        ("x86_64", KERNEL, "idle=poll"),
        ("aarch64", KERNEL, "nohlt"),
        # From 7.3 on, CPUs without a tick depend on the context in which they are called.
        ("x86_64", "7.3-series", "idle=poll"),
    ],
)
def test_a_caller_is_not_stuck_behind_a_softirq(arch: str, kernel: str, append: str) -> None:
    machine = Machine(arch=arch, kernel=kernel, append=append, vcpus=3, accel="tcg")
    module = f"{GUEST_MODULES}/test_softirq_call.ko"
    parameters = "/sys/module/test_softirq_call/parameters"
    with boot(machine, "series-softirq", BOOT_S) as guest:
        for words in ("many=0", "many=1"):
            guest.run(["taskset", "-c", "0", "insmod", module, "cpu=1", words])
            assert guest.read_text(f"{parameters}/stuck") == "N\n"
            guest.run(["rmmod", "test_softirq_call"])
        # One call in many finds the CPU busy, and is an interrupt by itself.
        for _ in range(5):
            guest.run(["taskset", "-c", "0", "insmod", module, "cpu=1", "early=1"])
            assert guest.read_text(f"{parameters}/in_hardirq") == "Y\n"
            guest.run(["rmmod", "test_softirq_call"])


@pytest.mark.parametrize(
    ("arch", "kernel"), [("x86_64", KERNEL), ("aarch64", KERNEL), ("x86_64", "7.3-series")]
)
def test_a_caller_is_not_stuck_behind_a_softirq_of_a_cpu_about_to_halt(
    arch: str, kernel: str
) -> None:
    with boot(Machine(arch=arch, kernel=kernel, vcpus=3, accel="tcg"), "softirq", BOOT_S) as guest:
        module = f"{GUEST_MODULES}/test_softirq_call.ko"
        for many in ("many=0", "many=1"):
            # It fails, and says so, if the host kept one of both CPUs away for too long.
            insmod = f"taskset -c 0 insmod {module} cpu=1 entering=1 {many}"
            guest.run(["sh", "-c", f"for i in $(seq 20); do {insmod} && exit; done; exit 1"])
            stuck = guest.read_text("/sys/module/test_softirq_call/parameters/stuck")
            assert stuck == "N\n", many
            guest.run(["rmmod", "test_softirq_call"])
        # From 7.2 on, the kernel says so of a work on system_wq, which is to go.
        assert "work func run_nothing" not in guest.run(["dmesg"]).stdout

# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that the lab builds: their configurations, and our modules in each of them."""

from __future__ import annotations

import pytest
from ktap import SELFTESTS, SKIP_BESIDE_OTHER_WORK, run_selftest
from suspend import SUSPEND_APPEND, suspend_to_idle

from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.machine import Devices, Machine
from lightsleep.lab.kernels import build
from lightsleep.lab.kernels.config import ARCHES, BuiltKernel

CPUS = "/sys/devices/system/cpu"
ENOUGH_S = 1200.0

SCRIPTS: dict[str, tuple[Wanted, list[str]]] = {
    # On a busy host: see test_driver.py and test_driver_cost.py.
    "cpuidle-lightsleep.sh": (
        "tcg",
        ["enters_both_states", "obeys_latency_qos", "obeys_resume_latency"],
    ),
    "cpuidle-lightsleep-cost.sh": (
        "tcg",
        [
            # These need a third CPU, or an isolated one.
            *("goes_offline_while_a_measurement_waits", "leaves_isolated_cpus_alone"),
            *sorted(SKIP_BESIDE_OTHER_WORK),
        ],
    ),
    "cpuidle-synthetic.sh": ("tcg-single", []),
    "poll_source.sh": ("tcg-single", ["is_a_wake_to_learn_from", "is_interrupt_time"]),
    "poll_source_budget.sh": ("tcg-single", []),
    "test-cpuidle_latency.sh": ("tcg-single", ["refuses_without_a_device"]),
    "virtio_poll_blk.sh": (
        "tcg-single",
        [
            # There is no disk to take away: see test_poll_source.py.
            *("survives_unbinding", "survives_a_reset"),
            *("waits_for_nobody_while_a_device_is_unplugged", "survives_unplugging"),
        ],
    ),
}
"""Script -> the accelerator that is right for it (see test_synthetic.py), and what it may skip."""

NOT_SKIPPED = {"6.12-teo": {"is_interrupt_time"}}
"""Kernel -> what is skipped in all others, as they are not configured for it."""

IN_THE_IDLE_LOOP = {"poll_source.sh", "poll_source_budget.sh", "virtio_poll_blk.sh"}
"""Of a kernel with the series, the idle loop polls for these, if that pays at the moment. It never
does where QEMU runs all CPUs in one thread. test_poll_source.py says what must not be skipped."""

SHARED = {
    *("idle.sh", "ktap.sh", "lightsleep.sh", "poller.sh", "virtio_source.sh", "word_source.sh"),
}
"""No tests, but what tests share."""

NEEDS_SERIES = {"idle_poll.sh", "promote.sh"}
"""Of the kernel series, see test_idle_poll.py and test_promotion.py."""

NEEDS_PEER = {"virtio_poll_net.sh"}
"""In these guests, there is nobody to talk to: see test_poll_source.py."""

BUILT = [
    pytest.param(arch.name, kernel, id=f"{arch.name}-{name}")
    for arch in ARCHES.values()
    for name, kernel in arch.built.items()
]


@pytest.mark.parametrize(("arch", "kernel"), BUILT)
def test_rows_name_files_that_are_there(arch: str, kernel: BuiltKernel) -> None:
    base, own = build.fragments(ARCHES[arch], kernel)
    assert all(build.settings(file.read_text()) for file in (*base, *own))


@pytest.mark.parametrize(("arch", "kernel"), BUILT)
def test_a_release_ends_as_the_name_of_its_kernel(arch: str, kernel: BuiltKernel) -> None:
    _, own = build.fragments(ARCHES[arch], kernel)
    lines = [line for file in own for line in file.read_text().splitlines()]
    names = [line for line in lines if line.startswith("CONFIG_LOCALVERSION=")]
    assert names[-1] == f'CONFIG_LOCALVERSION="{kernel.name.removeprefix(kernel.version)}"'


def test_a_setting_that_did_not_take_is_named() -> None:
    wanted = "# words\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\n# CONFIG_D is not set\n"
    assert build.lost_settings(wanted, wanted) == []
    assert build.lost_settings(wanted, "CONFIG_A=y\nCONFIG_B=y\nCONFIG_D=y\n") == [
        "CONFIG_B=m",
        "# CONFIG_D is not set",
    ]
    assert build.lost_settings(wanted, "") == ["CONFIG_A=y", "CONFIG_B=m"]


def test_a_later_fragment_overrules_an_earlier_one() -> None:
    wanted = "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_A is not set\n"
    assert build.lost_settings(wanted, "CONFIG_B=y\n# CONFIG_A is not set\n") == []


def test_no_selftest_is_left_out() -> None:
    elsewhere = SHARED | NEEDS_SERIES | NEEDS_PEER
    assert set(SCRIPTS) == {x.name for x in SELFTESTS.glob("*.sh")} - elsewhere


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_may_be_skipped_is_a_test(script: str) -> None:
    text = (SELFTESTS / script).read_text()
    assert [name for name in SCRIPTS[script][1] if f"\n{name}() {{" not in text] == []


def test_what_waits_for_a_measurement_may_be_skipped_on_a_busy_host() -> None:
    script = "cpuidle-lightsleep-cost.sh"
    functions = (SELFTESTS / script).read_text().split("\n}\n")
    waiting = {x.split("() {")[0].split()[-1] for x in functions if "\n\tcalibrate" in x}
    assert len(waiting) > 3
    assert waiting <= SKIP_BESIDE_OTHER_WORK


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.more
@pytest.mark.parametrize("kernel", [x for x in ARCHES["x86_64"].built if not x.endswith("-plain")])
def test_selftests(kernel: str, script: str) -> None:
    accel, skipped = SCRIPTS[script]
    if in_the_idle_loop := "-series" in kernel and script in IN_THE_IDLE_LOOP:
        accel = "tcg"
    devices = Devices(device=("virtio-rng-pci,bus=pcie.0",))
    machine = Machine(kernel=kernel, accel=accel, devices=devices)
    with boot(machine, f"{script}-{kernel}", ENOUGH_S) as guest:
        assert "teo" in guest.read_text(f"{CPUS}/cpuidle/available_governors").split()
        result = run_selftest(guest, script, timeout_s=ENOUGH_S)
    assert not result.failed
    if not in_the_idle_loop:
        assert set(result.skipped) <= set(skipped) - NOT_SKIPPED.get(kernel, set())


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
@pytest.mark.parametrize(
    "modules",
    [(), ("cpuidle_lightsleep",), ("cpuidle_lightsleep", "virtio_poll_source")],
    ids=["stock", "lightsleep", "poll-source"],
)
def test_suspend_to_idle_returns(modules: tuple[str, ...]) -> None:
    machine = Machine(
        kernel="6.12-teo",
        append=SUSPEND_APPEND,
        modules=modules,
        accel="tcg",
    )
    with boot(machine, "suspend", ENOUGH_S) as guest:
        for number in (1, 2, 3):
            suspend_to_idle(guest, number)
        guest.run(["perf", "bench", "sched", "pipe", "-l", "1000"])
        if modules:
            states = guest.run(["sh", "-c", f"grep -h . {CPUS}/cpu*/cpuidle/state*/usage"])
            assert "0" not in states.stdout.split()


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
def test_suspend_to_idle_halts_whatever_the_latency_limit() -> None:
    machine = Machine(
        kernel="6.12-teo",
        append=SUSPEND_APPEND,
        modules=("cpuidle_lightsleep",),
        accel="tcg",
    )
    for_s = 10.0
    with boot(machine, "suspend-limit", ENOUGH_S) as guest:
        hold = "exec 3> /dev/cpu_dma_latency; printf '\\0\\0\\0\\0' >&3; sleep 1000"
        guest.run(["sh", "-c", f"({hold}) > /dev/null 2>&1 &"])
        before = polled_s(guest)
        suspend_to_idle(guest, 1, for_s)
        # Both CPUs would poll for twice as long in all.
        assert polled_s(guest) - before < for_s


def polled_s(guest: Guest) -> float:
    files = guest.run(["sh", "-c", f"cat {CPUS}/cpu*/lightsleep/polled_ns"]).stdout
    return sum(map(int, files.split())) / 1e9

# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that the lab builds: their configurations, and our modules in each of them."""

from __future__ import annotations

import pytest
from ktap import SELFTESTS, run_selftest

from lightsleep.lab import build
from lightsleep.lab.config import ARCHES, BuiltKernel
from lightsleep.lab.guest import Machine, boot

GOVERNORS = "/sys/devices/system/cpu/cpuidle/available_governors"
SCRIPTS = sorted(x.name for x in SELFTESTS.glob("*-*.sh"))
ENOUGH_S = 600.0

BUILT = [
    pytest.param(arch.name, kernel, id=f"{arch.name}-{name}")
    for arch in ARCHES.values()
    for name, kernel in arch.built.items()
]


@pytest.mark.parametrize(("arch", "kernel"), BUILT)
def test_rows_name_files_that_are_there(arch: str, kernel: BuiltKernel) -> None:
    files = [build.FRAGMENTS / f"{x}.config" for x in ("base", arch, *kernel.fragments)]
    assert all(build.settings(file.read_text()) for file in files)


@pytest.mark.parametrize(("arch", "kernel"), BUILT)
def test_a_release_ends_as_the_name_of_its_kernel(arch: str, kernel: BuiltKernel) -> None:
    names = [
        line
        for x in kernel.fragments
        for line in (build.FRAGMENTS / f"{x}.config").read_text().splitlines()
        if line.startswith("CONFIG_LOCALVERSION=")
    ]
    assert names == [f'CONFIG_LOCALVERSION="{kernel.name.removeprefix(kernel.version)}"']


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


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kernel", ARCHES["x86_64"].built)
def test_selftests(kernel: str, script: str) -> None:
    # In one thread: the more a kernel patches its code, the likelier QEMU's race; see
    # lightsleep.lab.splat.emulator_raced().
    with boot(Machine(kernel=kernel, accel="tcg-single"), f"{script}-{kernel}", ENOUGH_S) as guest:
        assert guest.run(["uname", "-r"]).stdout.strip().endswith(kernel.partition("-")[2])
        assert "teo" in guest.read_text(GOVERNORS).split()
        result = run_selftest(guest, script, timeout_s=2 * ENOUGH_S)
    assert not result.failed
    assert not result.skipped

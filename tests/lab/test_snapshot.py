# SPDX-License-Identifier: GPL-2.0-only
"""Which guests go on from a snapshot, and what becomes of one that the emulator spoils."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightsleep.lab.boot import snapshot
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.boot.vm import Hardware
from lightsleep.lab.kernels.config import ARCHES

FOLDER = Path("folder")
TCG = Accelerator("tcg", "a test")
HARDWARE = Hardware(ARCHES["x86_64"], TCG, Path("image"), Path("initramfs"), Path("root"))


def of(**changes: object) -> snapshot.Snapshot | None:
    return snapshot.of(replace(HARDWARE, machine=replace(Machine(), **changes)), FOLDER)  # type: ignore[arg-type]


def test_modules_that_are_loaded_later_make_no_difference() -> None:
    assert of(modules=("cpuidle_lightsleep mode=off",)) == of()


@pytest.mark.parametrize(
    "other",
    [
        replace(HARDWARE, arch=ARCHES["aarch64"]),
        replace(HARDWARE, accelerator=Accelerator("tcg-single", "a test")),
        replace(HARDWARE, image=Path("another")),
        replace(HARDWARE, initramfs=Path("another")),
        replace(HARDWARE, root=Path("another")),
        replace(HARDWARE, machine=Machine(vcpus=4)),
        replace(HARDWARE, machine=Machine(append="idle=poll")),
    ],
)
def test_what_a_boot_sees_makes_another_kind(other: Hardware) -> None:
    found = snapshot.of(other, FOLDER)
    assert found
    assert found != of()


@pytest.mark.parametrize(
    "other",
    [
        replace(HARDWARE, arch=ARCHES["ppc64le"]),
        replace(HARDWARE, accelerator=Accelerator("kvm", "a test")),
        replace(HARDWARE, accelerator=Accelerator("tcg-icount", "a test")),
        replace(HARDWARE, interactive=True),
        replace(HARDWARE, machine=Machine(devices=Devices(drive=("id=d0,scratch=1M",)))),
        replace(
            HARDWARE,
            machine=Machine(foreign=ForeignKernel(image=Path("bzImage"), modules=Path("m"))),
        ),
    ],
)
def test_others_boot_each_time(other: Hardware) -> None:
    assert snapshot.of(other, FOLDER) is None

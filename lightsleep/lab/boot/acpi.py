# SPDX-License-Identifier: GPL-2.0-only
"""A machine of QEMU's that ACPI describes, with an idle state (_LPI), which none of QEMU's has.

It boots by UEFI, else QEMU's tables are not for Linux. The idle state, that of devicetree.py in
other words, is in a table of ours, which Linux takes from the beginning of the initramfs.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.boot.initramfs import pack
from lightsleep.lab.kernels.config import ARCHES, Arch, lookup
from lightsleep.lab.kernels.roots import unpack

FIRMWARE_SUITE = "bookworm"
"""No newer than the oldest QEMU that is to run it."""

TABLE = """
DefinitionBlock ("", "SSDT", 2, "LSLEEP", "IDLE", 1)
{{
    Scope (\\_SB)
    {{
        // Linux looks at _LPI where the platform, of all it offers, takes that.
        Method (_OSC, 4)
        {{
            CreateDWordField (Arg3, 4, SUPP)
            SUPP &= 0x80
            Return (Arg3)
        }}

        // Residency and latency (us), enabled, loses nothing, no counter, no parent, how to enter:
        // for the first, WFI, Linux knows; for the other it is a power_state of PSCI.
        Name (IDLE, Package ()
        {{
            0, 0, 2,
            Package () {{ 1, 0, 1, 0, 0, 0, {wfi}, {none}, {none}, "WFI" }},
            Package () {{ 500, 60, 1, 0, 0, 0, {sleep}, {none}, {none}, "cpu-sleep" }}
        }})
    }}
    {cpus}
}}
"""
CPU = """
    External (\\_SB.C{0:03X}, DeviceObj)
    Scope (\\_SB.C{0:03X}) {{ Method (_LPI) {{ Return (\\_SB.IDLE) }} }}
"""
REGISTER = "ResourceTemplate () {{ Register ({}) }}"


def firmware(arch: Arch) -> Path:
    """Return UEFI for ``arch``. Raises LightsleepError where it cannot be fetched."""

    def build(scratch: Path) -> None:
        tree = scratch / "tree"
        own = lookup("firmware on a host", ARCHES, platform.machine())  # it is for any
        unpack(own, FIRMWARE_SUITE, FIRMWARE_SUITE, [arch.efi_package], tree)
        (tree / arch.efi_image).rename(scratch / "firmware.fd")
        shutil.rmtree(tree)

    key = cache.digest(FIRMWARE_SUITE, arch.efi_package, arch.efi_image)
    return cache.entry(f"efi-{arch.name}-{key}", build, needs_mb=500) / "firmware.fd"


def with_idle_state(initramfs: Path, vcpus: int) -> Path:
    """Return ``initramfs`` with a table that gives each of ``vcpus`` CPUs an idle state.

    Raises LightsleepError where a program is missing or does not do it.
    """
    host.need("iasl")
    table = TABLE.format(
        wfi=REGISTER.format("FFixedHW, 32, 0, 0xFFFFFFFF, 3"),
        sleep=REGISTER.format("FFixedHW, 32, 0, 1, 3"),
        none=REGISTER.format("SystemMemory, 0, 0, 0, 0"),
        cpus="".join(CPU.format(number) for number in range(vcpus)),
    )

    def build(scratch: Path) -> None:
        stage = scratch / "stage"
        folder = stage / "kernel/firmware/acpi"
        folder.mkdir(parents=True)
        source = scratch / "idle.asl"
        source.write_text(table)
        host.run(["iasl", "-p", folder / "idle", source], "compiling a table of ACPI")
        pack(stage, scratch / "initramfs")
        with (scratch / "initramfs").open("ab") as out, initramfs.open("rb") as rest:
            shutil.copyfileobj(rest, out)
        shutil.rmtree(stage)

    key = cache.digest(initramfs.parent.name, table)
    return cache.entry(f"initramfs-{key}", build, needs_mb=20) / "initramfs"

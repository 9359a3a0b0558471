# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's selftests of membarrier, futexes and CPU hotplug, in a kernel with our series."""

from __future__ import annotations

from pathlib import Path

import pytest
from intree import copy

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.boot.guest import boot
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels.build import any_tree
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.lab.kernels.source import kernel_source

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

KERNEL = "6.12-series"
TESTS = "tools/testing/selftests"
SUITES = ("membarrier", "futex", "cpu-hotplug")
PROGRAMS = ("membarrier", "futex/functional")
HOTPLUG = "cpu-hotplug/cpu-on-off-test.sh"
PASSED = 0


def selftests(arch_name: str) -> Path:
    """Return the folder of the kernel's selftests, with programs that are linked statically."""
    arch = ARCHES[arch_name]
    tree = any_tree(arch, arch.built[KERNEL]).path
    archive = kernel_source()

    def build(scratch: Path) -> None:
        wanted = [f"*/{TESTS}/{x}" for x in (*SUITES, "kselftest*.h")]
        # It knows more commands than the distribution's.
        wanted.append("*/include/uapi/linux/membarrier.h")
        host.run(
            ["tar", "-xJf", archive, "-C", scratch, "--strip-components=1", "--wildcards", *wanted],
            "unpacking selftests",
        )
        for folder in PROGRAMS:
            for source in sorted((scratch / TESTS / folder).glob("*.c")):
                host.run(
                    host.contained(
                        [
                            *("env", "-i", "PATH=/usr/bin:/bin", f"{arch.triplet}-gcc", "-static"),
                            *("-O2", "-s", "-pthread", "-D_GNU_SOURCE=", "-I/mnt/include/uapi"),
                            *(f"-I/mnt/{TESTS}", f"-I/mnt/{TESTS}/futex/include"),
                            *("-o", f"/mnt/{TESTS}/{folder}/{source.stem}"),
                            *(f"/mnt/{TESTS}/{folder}/{source.name}", "-lrt"),
                        ],
                        *("--bind", str(tree), "/", "--bind", str(scratch), "/mnt"),
                        *("--tmpfs", "/tmp"),
                    ),
                    f"compiling {source.name}",
                )

    name = f"selftests-{cache.digest(str(tree), *SUITES)}"
    return cache.entry(name, build, needs_mb=50) / TESTS


@pytest.mark.parametrize("arch", ["x86_64"])
def test_selftests(arch: str) -> None:
    tests = selftests(arch)
    programs = [
        x.with_suffix("") for folder in PROGRAMS for x in sorted((tests / folder).glob("*.c"))
    ]
    machine = Machine(arch=arch, kernel=KERNEL, append="idle_poll.enabled=1", vcpus=4, accel="tcg")
    became: dict[str, int] = {}
    with boot(machine, "kselftest", 300) as guest:
        # What the hotplug test takes for granted.
        guest.run(["mkdir", "/run/bin"])
        for applet in ("awk", "mount"):
            guest.run(["ln", "-s", "/usr/bin/busybox", f"/run/bin/{applet}"])
        for program in (*programs, tests / HOTPLUG):
            copy(guest, program, f"/run/{program.name}")
            path = {"PATH": "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            command = ["bash"] if program.suffix == ".sh" else []
            guest.run(["chmod", "+x", f"/run/{program.name}"])
            done = guest.run(
                [*command, f"/run/{program.name}"], timeout_s=300, check=False, env=path
            )
            print(program.name, done.rc, done.stdout[-600:], done.stderr[-300:], sep="\n")
            became[program.name] = done.rc
    assert len(became) > 10
    assert became == dict.fromkeys(became, PASSED)

# SPDX-License-Identifier: GPL-2.0-only
"""The lab with real kernels in a real QEMU, and with guests that go wrong."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import booted
import pytest
from kernels import RC, seldom

from lightsleep.compiled import compile_to
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import guest
from lightsleep.lab.boot.agent import CommandTimeout
from lightsleep.lab.boot.guest import Guest, GuestFailed, boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.config import ARCHES, KERNELS
from lightsleep.lab.kernels.modules import build_modules

pytestmark = pytest.mark.boot

TCG = Machine(accel="tcg")
ENOUGH_S = 300.0  # a loaded machine is slow; that fails no test
OTHERS = [
    seldom(arch.name, kernel)
    for arch in ARCHES.values()
    for kernel in arch.kernels
    if kernel != TCG.kernel
]
"""All but the kernel that other tests here boot on each architecture."""
NAPS = ["taskset", "-c", "1", "sh", "-c", "for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.02; done"]
CPUIDLE = "/sys/devices/system/cpu/cpu{}/cpuidle"
POWERNV = [("snooze", 0, 0), ("stop0_lite", 1, 10), ("stop0", 2, 20), ("stop1", 5, 50)]
"""Name, latency and residency (us) that skiboot gives POWER9's states in its device tree."""


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guest, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


def test_a_guest_runs_commands(booted_guest: Guest) -> None:
    assert booted_guest.run(["uname", "-m"]).stdout == "x86_64\n"
    assert booted_guest.run(["perf", "--version"]).stdout.startswith("perf version")
    assert booted_guest.run(["cat"], stdin="back").stdout == "back"
    assert booted_guest.run(["nproc"]).stdout == "2\n"


def test_a_guest_halts_without_mwait(booted_guest: Guest) -> None:
    flags = booted_guest.run(["grep", "-m1", "^flags", "/proc/cpuinfo"]).stdout.split()
    assert "lm" in flags
    assert "monitor" not in flags


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for the guest")
def test_flags_are_right_behind_an_instruction_of_the_kernels_allocator(
    booted_guest: Guest, tmp_path: Path
) -> None:
    """QEMU 7.2 computes them from the sum in rcx: an interrupt may then return into a trap."""
    program, source = tmp_path / "flags", tmp_path / "flags.c"
    source.write_text(r"""
        #include <stdio.h>

        int main(void)
        {
            unsigned long memory[2] __attribute__((aligned(16))) = { 0x1234, 0x5678 };
            unsigned long flags, rax = 0x5fc4db40, rdx = 0, rbx = 0x77, rcx = 0x99;

            asm volatile("pushq $0x202; popfq; jmp 1f; 1: addq %%rax, %%rcx;"
                         "xorq (%%rsi), %%rbx; lock cmpxchg16b (%%rsi); pushfq; popq %0"
                         : "=r" (flags), "+a" (rax), "+d" (rdx), "+b" (rbx), "+c" (rcx)
                         : "S" (memory) : "memory", "cc");
            printf("%lx\n", flags & 0x300);
        }
    """)
    compile_to(program, source.name, ["-O1", "-static", source])
    script = "base64 -d > /tmp/flags && chmod +x /tmp/flags && /tmp/flags"
    text = base64.b64encode(program.read_bytes()).decode()
    assert booted_guest.run(["sh", "-c", script], stdin=text).stdout == "200\n"


def test_a_guest_can_import_the_probing_half(booted_guest: Guest) -> None:
    done = booted_guest.run(["python3", "-m", "lightsleep", "scan", "--json"], timeout_s=ENOUGH_S)
    assert isinstance(json.loads(done.stdout), dict)


def compiles(guest: Guest) -> list[str]:
    """Return the Python files that a guest compiles when it runs lightsleep."""
    done = guest.run(["python3", "-v", "-m", "lightsleep", "--version"], timeout_s=ENOUGH_S)
    assert "import 'lightsleep.cli'" in done.stderr
    return re.findall(r"code object from '?(\S+\.py)\b(?!c)", done.stderr)


def test_a_guest_compiles_no_python(booted_guest: Guest) -> None:
    assert not compiles(booted_guest)
    file = "/usr/lib/python3/dist-packages/lightsleep/cli.py"
    booted_guest.run(["sh", "-c", f"cp {file} /tmp/before && echo >> {file}"])
    assert compiles(booted_guest) == [file]
    booted_guest.run(["cp", "/tmp/before", file])
    assert not compiles(booted_guest)


def test_a_command_that_fails_quotes_what_it_said(booted_guest: Guest) -> None:
    with pytest.raises(LightsleepError, match=r"ls /nowhere: exit status 2.*No such file"):
        booted_guest.run(["ls", "/nowhere"])
    assert booted_guest.run(["ls", "/nowhere"], check=False).rc == 2


def test_a_command_over_its_time_is_killed_and_the_guest_lives(booted_guest: Guest) -> None:
    with pytest.raises(CommandTimeout, match=r"(?s)S: sleep 1000.*nanosleep"):
        booted_guest.run(["sleep", "1000"], timeout_s=1)
    assert booted_guest.run(["pgrep", "sleep"], check=False).stdout == ""


def test_files_of_a_guest(booted_guest: Guest) -> None:
    booted_guest.write_text("/tmp/x", "ü")
    assert booted_guest.read_text("/tmp/x") == "ü"
    with pytest.raises(LightsleepError, match="Invalid argument"):
        booted_guest.write_text("/proc/sys/kernel/panic", "garbage")


def test_a_module_that_is_not_there_lists_what_is(booted_guest: Guest) -> None:
    with pytest.raises(
        LightsleepError, match=r"(?s)cannot load 'no-such-module x=1'.*modules there"
    ):
        booted_guest.insmod("no-such-module x=1")


def test_time_stands_still_in_a_paused_guest(booted_guest: Guest) -> None:
    def uptime() -> float:
        return float(booted_guest.read_text("/proc/uptime").split()[0])

    start, before = time.monotonic(), uptime()
    booted_guest.vm.pause()
    time.sleep(5)
    booted_guest.vm.resume()
    assert uptime() - before < time.monotonic() - start - 4
    assert len(booted_guest.vm.vcpu_threads()) == 2


@pytest.mark.parametrize("arch", [arch.name for arch in ARCHES.values() if arch.snapshots])
def test_a_guest_goes_on_where_one_like_it_had_booted(arch: str) -> None:
    seen = []
    for _ in range(2):
        with booted.boot(Machine(arch=arch, accel="tcg", pin=True), timeout_s=ENOUGH_S) as alike:
            # The beginning, whose times no other boot has; what comes later may differ.
            disk = "dd if=/dev/vda iflag=direct bs=1M count=4 status=none | cksum"
            looked = f"dmesg | head -n 100; ls /root; {disk}"
            told = alike.run(["sh", "-c", looked], ENOUGH_S).stdout
            seen.append((told, alike.vm.console()[:5000]))
            alike.write_text("/root/own", "what the next one must not find")
            alike.insmod("cpuidle_lightsleep")  # which fails where it is loaded
    assert seen[0] == seen[1]
    assert f" {4 << 20}\n" in seen[0][0]  # of the disk itself, and not of what was read before
    assert "Linux version" in seen[0][1]


def runs_our_files(guest: Guest) -> None:
    """Its kernel is the one that was asked for, and takes a module and the Python files."""
    kernel = guest.machine.kernel
    assert guest.run(["uname", "-m"]).stdout == f"{guest.machine.arch}\n"
    version = [int(x) for x in re.findall(r"\d+", guest.run(["uname", "-r"]).stdout)[:2]]
    if kernel in ("backports", RC):  # whatever they have, it is newer than the release's own
        assert version > [6, 12]
    else:
        assert version == [int(x) for x in kernel.removesuffix("-rt").split(".")]
    assert not compiles(guest)
    # On POWER9 the kernel's own driver is there first; being refused by it is being loaded.
    done = guest.run(["insmod", f"{GUEST_MODULES}/other_driver.ko"], check=False)
    assert done.rc == 0 or "Device or resource busy" in done.stderr


@pytest.mark.parametrize(("arch", "kernel"), OTHERS)
def test_every_kernel_boots_and_takes_our_modules(arch: str, kernel: str) -> None:
    with boot(Machine(arch=arch, kernel=kernel, accel="tcg"), timeout_s=ENOUGH_S) as other:
        runs_our_files(other)


def scan(guest: Guest) -> dict[str, Any]:
    command = ["python3", "-m", "lightsleep", "scan", "--json"]
    found = json.loads(guest.run(command, timeout_s=ENOUGH_S).stdout)
    assert isinstance(found, dict)
    return found


def usage(guest: Guest, cpu: int, state: int) -> int:
    return int(guest.read_text(f"{CPUIDLE.format(cpu)}/state{state}/usage"))


def test_arm64_halts_without_a_driver_and_takes_ours() -> None:
    with booted.boot(Machine(arch="aarch64", accel="tcg"), timeout_s=ENOUGH_S) as arm64:
        stock = scan(arm64)
        assert stock["kernel"]["arch"] == "aarch64"
        assert stock["cpuidle"]["driver"] is None
        assert [x["states"] for x in stock["cpus"]] == [[], []]

        arm64.insmod("cpuidle_lightsleep mode=off")
        ours = scan(arm64)
        assert ours["cpuidle"]["driver"] == "lightsleep"
        assert [[x["name"] for x in cpu["states"]] for cpu in ours["cpus"]] == [
            ["POLL", "HALT"]
        ] * 2
        before = usage(arm64, 1, 1)
        arm64.run(NAPS)
        assert usage(arm64, 1, 1) >= before + 10
        arm64.run(["rmmod", "cpuidle_lightsleep"])
        runs_our_files(arm64)


def test_powernv_enters_every_state_that_its_firmware_advertises() -> None:
    with boot(Machine(arch="ppc64le", accel="tcg"), timeout_s=ENOUGH_S) as power9:
        found = scan(power9)
        assert found["kernel"]["arch"] == "ppc64le"
        assert found["cpuidle"]["driver"] == "powernv_idle"
        for cpu in found["cpus"]:
            states = [(x["name"], x["latency_us"], x["residency_us"]) for x in cpu["states"]]
            assert states == POWERNV

        numbers = range(len(POWERNV))
        for only in numbers:
            for state in numbers:
                knob = f"{CPUIDLE.format(1)}/state{state}/disable"
                power9.write_text(knob, str(int(state != only)))
            before = [usage(power9, 1, state) for state in numbers]
            power9.run(NAPS)
            for state in numbers:
                entered = usage(power9, 1, state) - before[state]
                # The CPU may have been in another state when that was disabled: counted late.
                assert entered >= 10 if state == only else entered <= 1

        with pytest.raises(LightsleepError, match="the cpuidle driver powernv_idle is in use"):
            power9.insmod("cpuidle_lightsleep")
        runs_our_files(power9)


def test_a_kernel_and_a_drive_of_ones_own() -> None:
    """A drive without a format makes QEMU warn, in words like the kernel's."""
    packaged = roots.kernel_tree(ARCHES["x86_64"], KERNELS["6.12"])
    machine = dataclasses.replace(
        TCG,
        foreign=ForeignKernel(image=packaged.image, modules=packaged.modules),
        devices=Devices(drive=("id=d0,scratch=1M",), device=("virtio-blk-pci,drive=d0",)),
        pin=True,
    )
    with boot(machine, timeout_s=ENOUGH_S) as own:
        assert own.run(["uname", "-r"]).stdout == f"{packaged.release}\n"
        own.run(["modprobe", "null_blk", "nr_devices=1"])
        assert own.run(["test", "-b", "/dev/nullb0"]).rc == 0
        assert own.run(["lsblk", "-bno", "SIZE", "/dev/vdb"]).stdout.strip() == str(1 << 20)
        vcpus = own.vm.vcpu_threads()
        assert all(len(os.sched_getaffinity(thread)) == 1 for thread in vcpus)


def test_a_panic_is_reported_at_once_with_its_log(own_logs: Path) -> None:
    with pytest.raises(GuestFailed) as raised, booted.boot(TCG, "crash", ENOUGH_S) as crashing:
        crashing.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout_s=ENOUGH_S)
    assert "the guest went away" in raised.value.message  # and not: no answer in time
    assert "sysrq triggered crash" in raised.value.message
    assert "lightsleep lab shell --arch x86_64 --kernel 6.12" in raised.value.message
    assert "sysrq triggered crash" in (own_logs / "crash-1.console.log").read_text()


def test_a_boot_that_fails_is_reported_at_once() -> None:
    machine = Machine(accel="tcg", append="rdinit=/nonexistent")
    with pytest.raises(GuestFailed, match="the guest went away"), boot(machine, "x", ENOUGH_S):
        pass


def test_what_qemu_complains_of_is_quoted() -> None:
    hardware = dataclasses.replace(guest.prepare(TCG), image=Path("/nonexistent"))
    broken = Guest(TCG, hardware)
    try:
        with pytest.raises(GuestFailed, match="could not open kernel file"):
            broken.wait(ENOUGH_S)
    finally:
        broken.close()


@pytest.mark.parametrize(
    "arch", ["x86_64", *(pytest.param(x, marks=pytest.mark.more) for x in ("aarch64", "ppc64le"))]
)
def test_a_shell_takes_commands_and_ends(arch: str) -> None:
    guest.prepare(Machine(arch=arch, accel="tcg"))  # what cannot be fetched is an error here
    with subprocess.Popen(
        [sys.executable, "-m", "lightsleep", "lab", "shell", "--arch", arch, "--accel", "tcg"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin
        stdout = process.stdout
        assert stdout
        seen = b""
        while b"guest:~# " not in seen:
            data = stdout.read(4096)
            assert data
            seen += data
        process.stdin.write(b"echo answer $((6 * 7))\rexit\r")
        assert b"answer 42" in b"".join(iter(lambda: stdout.read(4096), b""))
        assert process.wait(ENOUGH_S) == 0


def test_a_boot_that_hangs_meets_its_deadline(own_logs: Path) -> None:
    with pytest.raises(GuestFailed, match=r"not booted within 0\.5 s"), boot(TCG, "hang", 0.5):
        pass
    assert (own_logs / "hang-1.console.log").exists()


@pytest.mark.parametrize("then", ["true", "sleep 1000"])
def test_a_splat_fails_the_run(then: str) -> None:
    with (
        pytest.raises(GuestFailed, match="WARNING: made up"),
        booted.boot(TCG, "x", ENOUGH_S) as ill,
    ):
        ill.run(["sh", "-c", f"echo 'WARNING: made up' > /dev/kmsg; {then}"], timeout_s=ENOUGH_S)


SOURCE = """\
#include <linux/module.h>
static int answer;
module_param(answer, int, 0444);
static int __init trivial_init(void) { return answer == 42 ? 0 : -EINVAL; }
module_init(trivial_init);
MODULE_LICENSE("GPL");
"""


@pytest.mark.parametrize(("name", "kernel"), [seldom("x86_64", x) for x in KERNELS])
def test_modules_build_for_every_kernel(name: str, kernel: str, tmp_path: Path) -> None:
    arch = ARCHES[name]
    tree = roots.kernel_tree(arch, KERNELS[kernel])
    (tmp_path / "Kbuild").write_text("obj-m := trivial.o\n")
    (tmp_path / "trivial.c").write_text(SOURCE)
    (module,) = build_modules(arch, tree, tmp_path, {"W": "1"})
    assert module.name == "trivial.ko"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["Kbuild", "trivial.c"]

    (tmp_path / "trivial.c").write_text("int broken(void) { return missing; }\n")
    with pytest.raises(LightsleepError, match=r"(?s)building modules.*'missing' undeclared"):
        build_modules(arch, tree, tmp_path)

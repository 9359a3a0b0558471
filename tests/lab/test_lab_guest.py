# SPDX-License-Identifier: GPL-2.0-only
"""A start that the emulator spoiled is tried again; one that the kernel spoiled is not."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pytest

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.boot import accel, devicetree, emulator, guest, vm
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.agent import AgentGone, Completed
from lightsleep.lab.boot.guest import EmulatorRaced, Guest, GuestFailed
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.boot.vm import VM, Hardware, with_files
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.lab.kernels.roots import KernelTree

RACED = """\
[    1.669117] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[    1.669576] RIP: 0010:sched_clock_cpu+0x9/0x190
[    1.669810] Code: 90 90 f3 0f 1e fa 41 54 55 53 66 <90> e8 c1 ed f0 ff 48 03
[    1.671848] Kernel panic - not syncing: Fatal exception in interrupt
"""
LATE = "[    0.02] Kernel panic - not syncing: IO-APIC + timer doesn't work!\n"
SAID = "qemu-system-x86_64: WARNING: Image format was not specified"
ASSERTION = (
    "qemu-system-x86_64: ../system/physmem.c:2671: iotlb_to_section: Assertion "
    "`section_index < d->map.sections_nb' failed."
)
BOOTING = "[    0.500000] a kernel that is not done booting\n"
LOADED = "[    1.500000] a module, in a guest that has booted\n"
RELEASE = "6.12.0-said"
STARTED = "[    0.000000] a kernel that has a console\n"
BROKEN = RACED.replace("53 66 <90>", "53 cc <90>")
HARDWARE = Hardware(
    ARCHES["x86_64"], Accelerator("tcg", "a test"), Path("image"), Path("initramfs"), Path("root")
)


def boots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *logs: str, said: str = SAID
) -> list[str]:
    """Let the next boots leave these consoles; an empty one is a boot that went well."""
    left, closed = list(logs), []

    class FakeVM:
        def __init__(self, _: Hardware, waits: bool = False) -> None:
            self.log = left.pop(0)
            self.agent = self.log

        def console(self) -> str:
            return self.log or STARTED

        def said(self) -> str:
            return said

        def save(self, memory: Path, console: Path) -> None:
            memory.write_text("")

        def restore(self, memory: Path, console: Path) -> None:
            closed.append(f"restored {memory.parent.name}")

        def close(self) -> None:
            closed.append(self.log)

    class FakeAgent:
        def __init__(self, log: str, _: Callable[[], None]) -> None:
            self.log = log

        def hello(self, _: float) -> str:
            if self.log and LOADED not in self.log:
                raise AgentGone("the guest went away")
            return RELEASE

        def clock_ns(self, _: float) -> int:
            if self.log:
                raise AgentGone("the guest went away")
            return 0

        def run(self, *_: object) -> Completed:
            if self.log:
                raise AgentGone("the guest went away")
            return Completed(0, "", "", 0.0)

    monkeypatch.setattr(guest, "VM", FakeVM)
    monkeypatch.setattr(guest, "Agent", FakeAgent)
    monkeypatch.setattr(guest, "LOGS", tmp_path)
    return closed


@pytest.mark.parametrize("words", ["quiet", "ro quiet nohlt", "loglevel=3"])
@pytest.mark.parametrize("interactive", [False, True])
def test_no_option_keeps_warnings_from_the_console(words: str, interactive: bool) -> None:
    """What the kernel complains about is to fail the run; a shell may be as quiet as one likes."""
    machine = replace(HARDWARE.machine, append=words)
    hardware = replace(HARDWARE, machine=machine, interactive=interactive)
    assert hardware.cmdline().endswith(words if interactive else f"{words} loglevel=7")
    assert "loglevel" not in HARDWARE.cmdline()


@pytest.mark.parametrize("interactive", [False, True])
def test_nor_does_a_kernel_of_ones_own(interactive: bool) -> None:
    """What it has as its own default, nobody looks at."""
    foreign = replace(HARDWARE.machine, foreign=ForeignKernel(tree=Path("linux")))
    hardware = replace(HARDWARE, machine=foreign, interactive=interactive)
    assert ("loglevel=7" in hardware.cmdline()) is not interactive


@pytest.mark.parametrize(
    ("append", "ends"),
    [("debug", "loglevel=7 debug"), ("debug quiet", "loglevel=7 debug quiet loglevel=7")],
)
def test_of_a_kernel_of_ones_own_more_may_be_asked_for(append: str, ends: str) -> None:
    """Of these options the kernel takes the last one."""
    foreign = replace(HARDWARE.machine, foreign=ForeignKernel(tree=Path("linux")), append=append)
    assert replace(HARDWARE, machine=foreign).cmdline().endswith(ends)


SKIBOOT = "[    0.034911512,5] OPAL v7.1-106-g785a5e307 starting...\n"
UEFI = "UEFI firmware starting.\nEFI stub: Booting Linux Kernel...\n"


@pytest.mark.parametrize("log", ["", "\n", SKIBOOT, UEFI])
def test_a_kernel_without_a_console_is_not_taken_for_one_that_has_nothing_to_say(
    log: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, "", "")
    monkeypatch.setattr("lightsleep.lab.boot.guest.VM.console", lambda _: log)
    with pytest.raises(
        GuestFailed, match=r"kernel is on its console ttyS0.*CONFIG_PRINTK.*x86_64\.config"
    ):
        Guest(Machine(), HARDWARE).wait()
    Guest(Machine(), replace(HARDWARE, interactive=True)).wait()


@pytest.mark.parametrize(
    "line", ["Linux version 7.3.0 (a@b)\r\n", "[    0.000000][    T0] x\n", "[    1.250000] x\n"]
)
def test_a_kernel_is_known_by_its_first_line_or_by_its_times(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, "")
    monkeypatch.setattr("lightsleep.lab.boot.guest.VM.console", lambda _: SKIBOOT + line)
    Guest(Machine(), HARDWARE).wait()


@pytest.mark.parametrize("release", [None, RELEASE])
def test_a_guest_of_the_kernel_that_was_named(
    release: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, "")
    Guest(Machine(), replace(HARDWARE, release=release)).wait()


def test_a_guest_of_another_kernel_than_was_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The image of an arm64 kernel does not say what it is."""
    boots(monkeypatch, tmp_path, "")
    with pytest.raises(
        LightsleepError,
        match=rf"^image is kernel {RELEASE}, but the folder of its modules is named 6\.12\.0-mine: "
        "finish the build of its tree, or give the modules that belong to it, in a folder "
        f"{RELEASE}$",
    ):
        Guest(Machine(), replace(HARDWARE, release="6.12.0-mine")).wait()


def test_what_the_emulator_spoiled_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = boots(monkeypatch, tmp_path, RACED, "")
    started = Guest(Machine(), HARDWARE)
    started.wait()
    assert closed == [RACED]
    assert [x.read_text() for x in tmp_path.iterdir()] == [RACED]
    assert started.spoiled == [
        "guest: the guest went away; that was QEMU's emulation, not the kernel"
    ]


def test_so_is_what_it_ended_with_an_assertion_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = boots(monkeypatch, tmp_path, BOOTING, "", said=ASSERTION)
    Guest(Machine(), HARDWARE).wait()
    assert closed == [BOOTING]


def test_so_is_a_guest_that_it_spoiled_as_modules_were_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = boots(monkeypatch, tmp_path, LOADED + RACED, RACED, "")
    started = Guest(Machine(modules=("a", "b")), HARDWARE)
    started.wait()
    assert not closed
    started.load()
    assert closed == [LOADED + RACED, RACED]


def test_one_that_was_spoiled_as_it_went_on_boots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    closed = boots(monkeypatch, tmp_path, "", "", RACED, "")
    for expected in ([], ["restored snapshots"], ["restored snapshots"] * 2 + [RACED]):
        Guest(Machine(), HARDWARE, snapshots=folder).wait()
        assert closed == expected


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boots(monkeypatch, tmp_path, RACED, RACED, RACED)
    with pytest.raises(EmulatorRaced, match=r"went away; .*QEMU's emulation") as raised:
        Guest(Machine(), HARDWARE).wait()
    said = raised.value.format_message()
    assert said.endswith("so it was in each of 3 boots: it may be the kernel after all")


def test_nor_once_for_each_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boots(monkeypatch, tmp_path, RACED, RACED, LOADED + RACED, "")
    started = Guest(Machine(modules=("a",)), HARDWARE)
    started.wait()
    with pytest.raises(EmulatorRaced) as raised:
        started.load()
    assert "in each of 3 boots" in raised.value.format_message()
    assert len(started.spoiled) == guest.REBOOTS


def test_boots_that_did_not_end_alike_do_not_blame_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, LATE, RACED, LATE)
    with pytest.raises(EmulatorRaced, match="did not run it in time") as raised:
        Guest(Machine(), HARDWARE).wait()
    assert "in each of" not in raised.value.format_message()


def test_nor_where_somebody_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = boots(monkeypatch, tmp_path, RACED, "")
    with pytest.raises(EmulatorRaced) as raised:
        Guest(Machine(), HARDWARE, reboots=0).wait()
    assert closed == []
    assert "in each of" not in raised.value.format_message()


def test_what_the_kernel_spoiled_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boots(monkeypatch, tmp_path, BROKEN, "")
    with pytest.raises(GuestFailed, match=r"went away\n") as raised:
        Guest(Machine(), HARDWARE).wait()
    assert not isinstance(raised.value, EmulatorRaced)


@pytest.mark.parametrize("name", ["kvm", "tcg-single", "tcg-icount"])
def test_where_no_emulator_races_a_kernel_that_dies_alike_is_not_tried_again(
    name: Literal["kvm", "tcg-single", "tcg-icount"],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    boots(monkeypatch, tmp_path, RACED, "")
    hardware = replace(HARDWARE, accelerator=Accelerator(name, "a test"))
    with pytest.raises(GuestFailed, match=r"went away\n") as raised:
        Guest(Machine(), hardware).wait()
    assert not isinstance(raised.value, EmulatorRaced)


def test_a_host_that_was_late_is_not_called_an_emulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, LATE, "")
    started = Guest(Machine(), replace(HARDWARE, accelerator=Accelerator("kvm", "a test")))
    started.wait()
    assert started.spoiled == [
        "guest: the guest went away; that was its host, which did not run it in time, not the "
        "kernel"
    ]


def test_what_qemu_says_is_shown_and_no_complaint_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, "", BROKEN)
    started = Guest(Machine(), HARDWARE)
    monkeypatch.setattr(started.vm, "ended", lambda _: None, raising=False)
    started.check()
    with pytest.raises(GuestFailed, match=f"QEMU said: {SAID}"):
        Guest(Machine(), HARDWARE).wait()


def test_a_panic_that_is_just_being_printed_is_told_by_all_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its first line does not say whether it was QEMU's emulation."""
    boots(monkeypatch, tmp_path, "")
    started, console = Guest(Machine(), HARDWARE), RACED.splitlines()[0]

    def ended(within_s: float) -> int | None:
        nonlocal console
        if not within_s:
            return None
        console = RACED
        return 0

    monkeypatch.setattr(started.vm, "console", lambda: console)
    monkeypatch.setattr(started.vm, "ended", ended, raising=False)
    with pytest.raises(EmulatorRaced, match="guest: the guest has ended"):
        started.check()


def test_of_a_console_on_the_terminal_no_log_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, LOADED, said="")
    started = Guest(Machine(), replace(HARDWARE, interactive=True))
    # Its own copy of the console is empty.
    monkeypatch.setattr(started.vm, "console", str)
    started.load()
    with pytest.raises(GuestFailed) as raised:
        started.run(["true"])
    assert raised.value.message == ("guest: the guest went away\nthe console was on the terminal")
    assert not list(tmp_path.iterdir())


def test_where_no_console_can_be_kept_the_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, BROKEN)
    (tmp_path / "file").touch()
    monkeypatch.setattr(guest, "LOGS", tmp_path / "file" / "logs")
    with pytest.raises(GuestFailed) as raised:
        Guest(Machine(), HARDWARE).wait()
    assert "Fatal exception in interrupt" in raised.value.message
    assert "console: not kept: [Errno" in raised.value.message


def test_a_guest_that_has_ended_has_no_cpu_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots(monkeypatch, tmp_path, "")
    booted = Guest(Machine(), HARDWARE)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    monkeypatch.setattr(booted.vm, "vcpu_threads", lambda: [ended.pid], raising=False)
    monkeypatch.setattr(booted.vm, "process", ended, raising=False)
    with pytest.raises(GuestFailed, match="the guest has ended"):
        booted.vcpu_time()


@pytest.mark.parametrize("command", [Guest.pause, Guest.resume])
def test_a_guest_that_ended_between_commands_fails_with_its_console(
    command: Callable[[Guest], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone() -> None:
        raise LightsleepError("QEMU failed to execute 'stop': EOFError()")

    boots(monkeypatch, tmp_path, "", "")
    ends, lives = Guest(Machine(), HARDWARE, "ends"), Guest(Machine(), HARDWARE, "lives")
    monkeypatch.setattr(guest, "ENDING_S", 0.01)
    with subprocess.Popen(["true"]) as ended, subprocess.Popen(["sleep", "100"]) as runs:
        ended.wait()
        for one, process in ((ends, ended), (lives, runs)):
            vm = SimpleNamespace(
                pause=gone,
                resume=gone,
                process=process,
                console=lambda: RACED,
                said=lambda: "",
            )
            vm.ended = partial(VM.ended, cast(VM, vm))
            monkeypatch.setattr(one, "vm", vm)
        with pytest.raises(EmulatorRaced, match="ends: the guest has ended") as raised:
            command(ends)
        assert "Oops: int3: 0000 [#1]" in raised.value.message
        with pytest.raises(LightsleepError, match=r"^lives: QEMU failed to execute 'stop'"):
            command(lives)
        runs.kill()


@pytest.mark.parametrize("name", ["menu/teo", "/", "../x", "x" * 1000, "\N{SNOWMAN}" * 1000])
def test_a_console_is_kept_whatever_its_arm_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "LOGS", tmp_path / "logs")
    files = [guest.keep(log, name) for log in ("first", "second")]
    assert [file.read_text() for file in files] == ["first", "second"]
    assert sorted((tmp_path / "logs").iterdir()) == files


def test_the_command_that_repeats_a_guest_names_its_accelerator() -> None:
    assert "--accel tcg-icount" in Machine(accel="tcg-icount").command()
    assert "--accel" not in Machine().command()


@pytest.mark.parametrize(("name", "own"), [("kvm", "host"), ("tcg", "max,-monitor")])
def test_the_cpu_is_of_the_model_asked_for_whatever_runs_it(
    monkeypatch: pytest.MonkeyPatch, name: Literal["kvm", "tcg"], own: str
) -> None:
    kernel = SimpleNamespace(image=Path("image"))
    monkeypatch.setattr(guest, "_kernel", lambda *_: kernel)
    monkeypatch.setattr(guest, "_modules", lambda *_: [])
    monkeypatch.setattr(guest, "guest_root", lambda *_: SimpleNamespace(squashfs=Path("root")))
    monkeypatch.setattr(guest, "initramfs", lambda *_: Path("initramfs"))
    monkeypatch.setattr(accel, "choose", lambda *_: Accelerator(name, "a test"))
    monkeypatch.setattr(emulator, "recent", lambda arch: arch)
    for asked, given in (("", own), ("qemu64", "qemu64")):
        argv = guest.prepare(Machine(cpu=asked)).argv()
        assert argv[argv.index("-cpu") + 1] == given


def test_a_module_that_is_none_of_ours_is_noticed_before_a_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(*modules: str) -> list[Path]:
        return guest._modules(ARCHES["x86_64"], tree, Machine(modules=modules), lambda _: None)

    tree = cast(KernelTree, SimpleNamespace())
    built = [Path("cpuidle_lightsleep.ko"), Path("test_smp_mask.ko")]
    monkeypatch.setattr(guest, "project_modules", lambda *_: built)
    assert prepare() == prepare("cpuidle-lightsleep mode=off", "test_smp_mask") == built
    with pytest.raises(LightsleepError, match="no module 'foo'; there are: cpuidle_lightsleep"):
        prepare("test_smp_mask", "foo x=1")


def test_an_image_that_is_built_anew_is_noticed_before_it_is_booted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = tmp_path / "bzImage"
    machine = Machine(foreign=ForeignKernel(image=image))
    monkeypatch.setattr(guest, "_named", lambda *_: SimpleNamespace())
    monkeypatch.setattr(guest, "lacks_modprobe", lambda _: "")
    monkeypatch.setattr(guest, "_kernel", lambda *_: SimpleNamespace(release="6.12.0", image=image))
    monkeypatch.setattr(guest, "_modules", lambda *_: [])
    monkeypatch.setattr(guest, "_image", lambda tree, _: tree.image)
    monkeypatch.setattr(guest, "guest_root", lambda *_: SimpleNamespace(squashfs=Path("root")))
    monkeypatch.setattr(guest, "initramfs", lambda *_: Path("initramfs"))
    monkeypatch.setattr(accel, "choose", lambda *_: Accelerator("kvm", "a test"))
    monkeypatch.setattr(emulator, "recent", lambda arch: arch)
    image.write_text("#1 SMP")
    os.utime(image, ns=(1, 1))
    hardware = guest.prepare(machine)
    hardware.check_image()
    image.write_text("#1 SMP")  # of the same build, to itself
    with pytest.raises(LightsleepError, match=r"bzImage is not the kernel .* built anew"):
        VM(hardware)
    image.unlink()
    with pytest.raises(LightsleepError, match=r"bzImage is not the kernel .* built anew"):
        VM(hardware)


def test_a_device_tree_has_the_threads_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(name: str, build: Callable[[Path], None], needs_mb: int) -> Path:
        names.add(name)
        build(tmp_path)
        return tmp_path

    names, asked = set[str](), list[Sequence[str]]()
    monkeypatch.setattr(host, "need", lambda _: None)
    monkeypatch.setattr(host, "run", lambda argv, _: asked.append(argv))
    monkeypatch.setattr(emulator, "version", lambda _: "a test")
    monkeypatch.setattr(cache, "entry", entry)
    arch, tcg = ARCHES["aarch64"], Accelerator("tcg", "a test")
    for threads in (1, 2):
        machine = Machine(arch="aarch64", vcpus=4, threads=threads, idle_state="devicetree")
        devicetree.with_idle_state(arch, tcg, machine)
    smp = [argv[argv.index("-smp") + 1] for argv in asked if "-smp" in argv]
    assert smp == ["4,cores=4,threads=1", "4,cores=2,threads=2"]
    assert len(names) == 2


def test_devices_are_added_one_by_one() -> None:
    devices = Devices(device=("virtio-rng-pci", "edu,addr=7"), drive=("id=d",))
    argv = replace(HARDWARE, machine=Machine(devices=devices)).argv()
    assert argv[-6:-4] == ["-drive", "if=none,id=d"]
    assert argv[-4:] == ["-device", "virtio-rng-pci", "-device", "edu,addr=7"]


def test_a_drive_has_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    devices, files = with_files(Devices(drive=("id=a,scratch=2M", "id=b,driver=null-co")))
    (file,) = files
    assert devices.drive == (f"id=a,file=/dev/fd/{file},format=raw", "id=b,driver=null-co")
    content = Path(f"/dev/fd/{file}").read_bytes()
    assert len(content) == 2 << 20
    assert not any(content.startswith(bytes(4096), at) for at in range(0, 2 << 20, 4096))
    assert not list(tmp_path.iterdir())
    os.close(file)


def test_what_is_to_measure_a_disk_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/dev/shm")
    if not vm.in_memory(shared):
        pytest.skip("/dev/shm is not in memory here")
    monkeypatch.setattr(cache, "folder", lambda: shared)
    for past in ("cache=none", "cache.direct=on"):
        with pytest.raises(LightsleepError, match=r"^the cache folder /dev/shm is in memory, and "):
            with_files(Devices(drive=(f"id=a,scratch=1M,{past}",)))
    _, files = with_files(Devices(drive=("id=a,scratch=1M",)))
    os.close(*files)


def test_without_space_no_drive_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        synced.append("")
        if len(synced) > 1:
            raise OSError(errno.ENOSPC, "No space left")

    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(
        LightsleepError, match=r"cannot create a drive's file under .*No space left"
    ):
        with_files(Devices(drive=("id=a,scratch=1M", "id=b,scratch=1M")))
    assert sorted(Path("/proc/self/fd").iterdir()) == before

# SPDX-License-Identifier: GPL-2.0-only
"""Whether the lab uses KVM, and what it says where it does not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import accel, guest
from lightsleep.lab.boot.foreign import ForeignTree
from lightsleep.lab.boot.machine import ForeignKernel, Machine
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.config import ARCHES, KERNELS
from lightsleep.lab.kernels.roots import BootFiles

X86 = ARCHES["x86_64"]


def test_another_architecture_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    tree = roots.KernelTree(KERNELS["6.12"], Path("/nowhere"), "6.12")
    chosen = accel.choose("auto", X86, tree)
    assert (chosen.name, chosen.reason) == ("tcg", "a x86_64 guest on a riscv64 host")
    with pytest.raises(LightsleepError, match="use --accel tcg"):
        accel.choose("kvm", X86, tree)


def test_no_permission_for_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = roots.KernelTree(KERNELS["6.12"], Path("/nowhere"), "6.12")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(accel, "KVM", tmp_path / "kvm")
    assert accel.choose("auto", X86, tree).reason == "no /dev/kvm"
    (tmp_path / "kvm").write_text("")
    monkeypatch.setattr("lightsleep.lab.boot.accel.os.access", lambda *_: False)
    assert "group kvm" in accel.choose("auto", X86, tree).reason


@pytest.mark.parametrize(
    ("prints", "name", "reason"),
    [
        ("echo VFS: Unable to mount root fs", "kvm", "kernel 6.12.9 boots under it"),
        (
            "echo Booting from ROM; sleep 99",
            "tcg",
            "kernel 6.12.9 hung for 1 s (last line: 'Booting from ROM')",
        ),
        ("sleep 99", "tcg", "hung for 1 s (before its first line of output)"),
        (
            "echo KVM internal error. Suberror: 1; echo EAX=0; sleep 99",
            "tcg",
            "it stopped kernel 6.12.9 (last line: 'KVM internal error. Suberror: 1')",
        ),
        ("echo assertion failed; exit 6", "tcg", "with kernel 6.12.9, ended with status 6"),
    ],
)
def test_kvm_is_judged_by_a_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prints: str, name: str, reason: str
) -> None:
    qemu = tmp_path / X86.qemu
    qemu.write_text(f"#!/bin/sh\n{prints}\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(accel, "PROBE_S", 1.0)
    verdict = accel.probe(X86, roots.KernelTree(KERNELS["6.12"], tmp_path, "6.12.9"))
    assert verdict.name == name
    assert reason in verdict.reason


BOOTS, HANGS = "echo VFS: Unable to mount root fs", "echo Booting; sleep 99"


@pytest.mark.parametrize(
    ("own", "debian", "name", "reason"),
    [
        (BOOTS, HANGS, "kvm", "kernel 7.4.0-mine boots under it"),
        (
            HANGS,
            BOOTS,
            "kvm",
            "kernel 6.12.9 boots under it, although kernel 7.4.0-mine hung for 1 s (last line: "
            "'Booting')",
        ),
        (
            HANGS,
            HANGS,
            "tcg",
            "/dev/kvm is there, but kernel 6.12.9 hung for 1 s (last line: 'Booting')",
        ),
    ],
)
def test_a_kernel_of_ones_own_that_fails_under_kvm_is_not_emulated_for_that(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: str,
    debian: str,
    name: str,
    reason: str,
) -> None:
    qemu = tmp_path / X86.qemu
    qemu.write_text(f'#!/bin/sh\ncase "$*" in */mine*) {own};; *) {debian};; esac\n')
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(accel, "KVM", tmp_path)
    monkeypatch.setattr(accel, "PROBE_S", 1.0)
    monkeypatch.setattr("lightsleep.lab.boot.accel.emulator.version", lambda _: "QEMU")
    mine = ForeignTree("7.4.0-mine", tmp_path / "mine", tmp_path, "mine", None)
    stock = SimpleNamespace(release="6.12.9", image=tmp_path / "stock", key="stock")
    chosen = accel.choose("auto", X86, mine, lambda: cast(BootFiles, stock))
    assert (chosen.name, chosen.reason) == (name, reason)


def test_where_debians_kernel_cannot_be_had_one_of_ones_own_that_fails_is_emulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_network() -> BootFiles:
        raise LightsleepError("fetching packages: no mirror answers\nits output")

    monkeypatch.setattr(accel, "KVM", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    fails = accel.Accelerator("tcg", f"{accel.BUT}kernel 7.4.0-mine hung for 20 s")
    monkeypatch.setattr(accel, "_judged", lambda *_: fails)
    mine = ForeignTree("7.4.0-mine", tmp_path / "mine", tmp_path, "mine", None)
    chosen = accel.choose("auto", X86, mine, no_network)
    assert chosen.name == "tcg"
    assert chosen.reason == (
        "/dev/kvm is there, but kernel 7.4.0-mine hung for 20 s, and there is none of Debian's to "
        "try KVM with: fetching packages: no mirror answers"
    )
    with pytest.raises(LightsleepError, match=r"KVM cannot be used: .*no mirror answers; use"):
        accel.choose("kvm", X86, mine, no_network)


@pytest.mark.parametrize(
    ("machine", "asks"),
    [
        (Machine(), False),
        (Machine(kernel="rc"), False),
        (Machine(kernel="6.12-series"), True),
        (Machine(foreign=ForeignKernel(tree=Path("linux"))), True),
    ],
)
def test_a_kernel_that_is_not_debians_does_not_judge_kvm_alone(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, asks: bool
) -> None:
    def choose(*given: Any) -> accel.Accelerator:
        if stock := given[-1]:
            stock()
        return accel.Accelerator("kvm", "a test")

    noted = list[str]()
    monkeypatch.setattr(accel, "choose", choose)
    monkeypatch.setattr(guest, "any_tree", lambda *_: None)
    tree = ForeignTree("7.4.0-mine", Path("image"), Path("modules"), "mine", None)
    assert guest._emulation(machine, X86, tree, None, noted.append)[0].name == "kvm"
    assert noted == (["kernel 6.12 of Debian, to try KVM with"] if asks else [])

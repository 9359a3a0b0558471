# SPDX-License-Identifier: GPL-2.0-only
"""Which QEMU emulates a guest: the host's own, or a newer one that is not installed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.config import ARCHES, Arch

POWER = ARCHES["ppc64le"]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))


def of_version(tmp_path: Path, version: str) -> Arch:
    """Return the architecture with a QEMU that says it is of that version."""
    qemu = tmp_path / POWER.qemu
    qemu.write_text(f"#!/bin/sh\necho QEMU emulator version {version}\n")
    qemu.chmod(0o755)
    return replace(POWER, qemu=str(qemu))


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", 7),
        ("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)", 10),
    ],
)
def test_the_version_is_the_number_before_the_point(line: str, number: int) -> None:
    assert emulator.major(line) == number


def test_a_version_without_a_number_is_an_error() -> None:
    with pytest.raises(LightsleepError, match="version has no number"):
        emulator.major("a QEMU of our own")


def test_a_recent_qemu_of_the_host_is_used(tmp_path: Path) -> None:
    arch = of_version(tmp_path, "10.0.13")
    assert emulator.recent(arch) == arch


def test_elsewhere_a_newer_one_runs_with_its_own_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[str] = []

    def unpack(arch: Arch, suite: str, target: str, packages: list[str], into: Path) -> None:
        unpacked.extend((suite, *packages))
        (into / "lib64").mkdir(parents=True)
        loader = into / "lib64/ld-linux-made-up.so.2"
        loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$QEMU_MODULE_DIR"\n')
        loader.chmod(0o755)

    monkeypatch.setattr(roots, "unpack", unpack)
    arch = emulator.recent(of_version(tmp_path, "7.2.22"))
    assert unpacked == [emulator.SUITE, POWER.qemu_package, "base-files"]
    tree = Path(arch.qemu).parent / "tree"
    said = subprocess.run([arch.qemu, "-m", "a b"], capture_output=True, text=True, check=True)
    words = said.stdout.splitlines()
    assert words[:3] == ["--argv0", POWER.qemu, "--library-path"]
    assert words[3].startswith(f"{tree}/usr/lib/")
    assert words[4] == f"{tree}/usr/bin/{POWER.qemu}"
    assert words[-3:-1] == ["-m", "a b"]
    assert words[-1] == f"{words[3]}/qemu"

# SPDX-License-Identifier: GPL-2.0-only
"""What a result says about the machine that runs the guests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest
from comparisons import made_up

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.run import facts


def test_a_result_has_what_decides_on_the_host_what_a_halt_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "version", lambda _: "10.0")
    said = {name: f"its {name}" for name in facts.HALT_FACTS if name != "halt_poll_ns"}
    for name, text in said.items():
        file = tmp_path / facts.HALT_FACTS[name][0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    monkeypatch.setattr(facts, "SYS", tmp_path)
    found = facts.host_facts(cast(Arch, None))
    assert found | said == found
    assert "halt_poll_ns" not in found  # without KVM
    schema = json.loads(FORMAT.described.read_text())
    described = schema["properties"]["environment"]["properties"]["host"]["properties"]
    assert described.keys() >= facts.HALT_FACTS.keys()


def test_a_result_has_the_cpus_that_the_lab_might_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under taskset, or in a container with a cpuset, these are not all."""
    monkeypatch.setattr(emulator, "version", lambda _: "10.0")
    monkeypatch.setattr(facts, "SYS", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = facts.host_facts(cast(Arch, None))
    assert (found["cpus"], found["cpus_allowed"]) == (16, 2)


CPUIDLE = "/sys/devices/system/cpu/cpuidle"
GUEST_FILES = {
    "/proc/cmdline": "console=ttyS0\n",
    "/proc/cpuinfo": "model name : Example CPU 9000\n",
    f"{CPUIDLE}/current_driver": "haltpoll\n",
    f"{CPUIDLE}/current_governor": "menu\n",
    "/proc/modules": "virtio_blk 1 0 - Live 0x0\nsquashfs 1 0 - Live 0x0\n",
}


class GuestOfFiles:
    """A guest that has only these files."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def run(self, argv: list[str], check: bool = True) -> Completed:
        if argv[0] == "test":
            assert not check
            return Completed(int(argv[-1] not in self.files), "", "", 0.0)
        return Completed(0, "said\n", "", 0.0)

    def read_text(self, path: str) -> str:
        if path not in self.files:
            raise LightsleepError(f"FileNotFoundError: {path}")
        return self.files[path]


@pytest.mark.parametrize(
    ("gone", "there", "changed"),
    [
        ([], {}, {}),
        (["/proc/modules"], {}, {"modules": []}),
        (
            [f"{CPUIDLE}/current_driver", f"{CPUIDLE}/current_governor"],
            {},
            {"cpuidle_driver": "none", "governor": "none"},
        ),
        (
            [f"{CPUIDLE}/current_governor"],
            {f"{CPUIDLE}/current_governor_ro": "ladder\n"},
            {"governor": "ladder"},
        ),
    ],
    ids=["all", "no modules", "no cpuidle", "older than 5.9"],
)
def test_a_guest_of_a_kernel_with_fewer_options_says_what_it_has(
    gone: list[str], there: dict[str, str], changed: dict[str, object]
) -> None:
    files = {path: text for path, text in GUEST_FILES.items() if path not in gone} | there
    found = facts.guest_facts(cast(Guest, GuestOfFiles(files)))
    assert found == {
        "kernel": "said",
        "kernel_build": "said",
        "cmdline": "console=ttyS0",
        "cpu_model": "Example CPU 9000",
        "cpuidle_driver": "haltpoll",
        "governor": "menu",
        "modules": ["squashfs", "virtio_blk"],
        **changed,
    }


def test_a_host_without_an_idle_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older kernels tell the governor in another file, and none may be there."""
    monkeypatch.setattr(facts, "SYS", tmp_path)
    monkeypatch.setattr(emulator, "version", lambda _: "10.0")
    cpuidle = tmp_path / "devices/system/cpu/cpuidle"
    cpuidle.mkdir(parents=True)
    (cpuidle / "current_driver").write_text("none\n")
    (cpuidle / "current_governor_ro").write_text("menu\n")
    found = facts.host_facts(cast(Arch, None))
    assert (found["cpuidle_driver"], found["cpuidle_governor"]) == (None, "menu")
    (cpuidle / "current_governor").write_text("none\n")
    result = made_up()
    result.environment["host"] = found = facts.host_facts(cast(Arch, None))
    assert found["cpuidle_governor"] is None
    (tmp_path / "x.json").write_text(json.dumps(result.document()))
    assert load(tmp_path / "x.json", FORMAT).environment["host"] == found

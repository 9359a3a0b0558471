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
from lightsleep.lab.boot import emulator
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

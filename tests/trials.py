# SPDX-License-Identifier: GPL-2.0-only
"""A machine in a folder on which ``lightsleep try`` runs, and what runs it there."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_modules
import pytest
from click.testing import CliRunner, Result
from processes import runs
from scan_trees import plant, unfold
from schemas import validator

from lightsleep.cli import main
from lightsleep.compare.result import FORMAT
from lightsleep.trial import process, switchback

MODULE = "lib/modules/6.12.0/updates/dkms/cpuidle_lightsleep.ko"
CPU = "sys/devices/system/cpu"
DRIVER = f"{CPU}/cpuidle/current_driver"
EXECUTE = process.execute


VALID = validator(json.loads(FORMAT.described.read_text()))


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guest without a cpuidle driver, where lightsleep and haltpoll are installed."""
    root = plant(unfold("no-cpuidle", tmp_path / "machine"), f"{MODULE}: module")
    plant(root, "lib/modules/6.12.0/kernel/drivers/cpuidle/cpuidle-haltpoll.ko: module")
    plant(root, f"{CPU}/cpuidle/available_governors: ladder menu haltpoll")
    prepare(root, monkeypatch)
    return root


def prepare(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules.install(root, monkeypatch)
    monkeypatch.setattr("lightsleep.trial.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.trial.cli.need_root", lambda _: None)
    monkeypatch.setattr(switchback, "LEAST_S", 0.1)
    monkeypatch.setattr(switchback, "LATE", math.inf)
    monkeypatch.setattr(process, "execute", in_equal_time)


def in_equal_time(
    argv: Sequence[str], limit_s: float | None = None, what: str = "the command"
) -> tuple[float, float, str]:
    """Run a command that takes the same time always.

    Of real times the control differs by chance in 1 of 20 trials, as it must.
    """
    _, _, output = EXECUTE(argv, limit_s, what)
    return 0.02, 0.01, output


def attempt(*words: str) -> Result:
    result = CliRunner().invoke(main, ["try", *words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def tried(*words: str) -> dict[str, Any]:
    result = attempt("--json", *words)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    VALID.validate(document)
    return document


def teller(root: Path) -> list[str]:
    """A command that is ten times faster by its own account where lightsleep is bound."""
    return [
        "sh",
        "-c",
        f"case $(cat {root / DRIVER}) in lightsleep) echo t 1;; *) echo t 10;; esac",
    ]


def runs_on(pid: int) -> bool:
    """Return whether a process still runs after a while: a killed one may take its time to go."""
    deadline = time.monotonic() + 60
    while runs(pid) and time.monotonic() < deadline:
        pass
    return runs(pid)

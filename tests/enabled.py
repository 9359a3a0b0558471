# SPDX-License-Identifier: GPL-2.0-only
"""A machine in a folder on which lightsleep can be enabled, and how to call its commands."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import fake_modules
import pytest
from click.testing import CliRunner, Result
from scan_trees import plant, unfold
from schemas import validator

from lightsleep.cli import main
from lightsleep.enable import boot_files

MODULE = "lib/modules/6.12.0/updates/dkms/cpuidle_lightsleep.ko"
HALTPOLL = "lib/modules/6.12.0/kernel/drivers/cpuidle/cpuidle-haltpoll.ko"
PARAMETERS = "sys/module/cpuidle_lightsleep/parameters"

OPTIONS, LOAD = boot_files.OPTIONS_FILE, boot_files.LOAD_FILE


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guest without a cpuidle driver, where the modules of two are installed."""
    root = plant(unfold("no-cpuidle", tmp_path / "machine"), f"{MODULE}: module")
    plant(root, f"{HALTPOLL}: module")
    fake_modules.install(root, monkeypatch)
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.enable.cli.need_root", lambda _: None)
    return root


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, list(words), env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


VALID, CHANGED = (
    validator(json.loads(resources.files("lightsleep.enable").joinpath(name).read_text()))
    for name in ("status.schema.json", "enable.schema.json")
)


def status() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("status", "--json").stdout)
    VALID.validate(document)
    return document


def mode(root: Path) -> str:
    return (root / PARAMETERS / "mode").read_text().strip()

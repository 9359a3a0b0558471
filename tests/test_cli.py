# SPDX-License-Identifier: GPL-2.0-only
"""What all verbs have in common: standard output, and what can be wrong with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from measurements import made_up

from lightsleep.files import write_json


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result file, and nothing else in its folder."""
    path = tmp_path_factory.mktemp("results") / "result.json"
    write_json(path, made_up().to_json())
    return path


def lightsleep(
    words: str, result: Path, stdout: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the folder of ``result``, standard output being a file."""
    with Path(stdout).open("wb") as file:
        return subprocess.run(
            [sys.executable, "-m", "lightsleep", *words.split()],
            cwd=result.parent,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | environment,
            stdout=file,
            stderr=subprocess.PIPE,
        )


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "scan --help",
        "scan --json",
        "scan -v",
        "lab list",
        "report --json result.json",
        "report -o - result.json",
    ],
)
def test_full_disk(words: str, result: Path) -> None:
    done = lightsleep(words, result, "/dev/full")
    assert done.stderr == b"Error: cannot write standard output: No space left on device\n"
    assert done.returncode == 1


def test_full_disk_of_python_without_a_buffer(result: Path) -> None:
    done = lightsleep("scan -v", result, "/dev/full", PYTHONUNBUFFERED="1")
    assert done.stderr == b"Error: cannot write standard output: No space left on device\n"
    assert done.returncode == 1


def test_another_error_is_not_blamed_on_standard_output(result: Path) -> None:
    done = lightsleep("report nowhere.json", result, "/dev/full")
    assert done.stderr == b"Error: cannot read nowhere.json: No such file or directory\n"
    assert done.returncode == 1

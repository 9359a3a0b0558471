# SPDX-License-Identifier: GPL-2.0-only
"""The profile for tuned calls lightsleep, and takes "nothing to do" for success."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

from lightsleep.enable.change import LOAD_FILE

PROFILE = ROOT / "contrib/tuned/lightsleep"


def called(
    tmp_path: Path, *words: str, status: int = 0, at_boot: bool = False, files: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run the script with a command that notes what it is told; return its status and the notes.

    What it is asked for in JSON is not noted.
    """
    notes, command = tmp_path / "notes", tmp_path / "lightsleep"
    document = json.dumps({"active": True, "at_boot": at_boot, "files": files}, indent=1)
    command.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'status --json' ] && echo '{document}' && exit 4\n"
        f'echo "$@" >> {notes}\nexit {status}\n'
    )
    command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [PROFILE / "script.sh", *words], env=environment, stdout=subprocess.PIPE, check=False
    )
    return done.returncode, notes.read_text() if notes.exists() else ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["start"], "enable\n"),
        (["stop"], "disable\n"),
        (["stop", "full_rollback"], "disable\n"),
        (["verify", "ignore_missing"], "status\n"),
    ],
)
def test_it_tells_lightsleep_what_tuned_tells_it(
    words: list[str], told: str, tmp_path: Path
) -> None:
    assert called(tmp_path, *words) == (0, told)
    assert called(tmp_path, *words, status=1)[0] == 1
    assert called(tmp_path, *words, status=4)[0] == (4 if words[0] == "verify" else 0)


@pytest.mark.parametrize("word", ["start", "stop"])
@pytest.mark.parametrize("at_boot", [True, False])
def test_what_an_administrator_enabled_at_every_boot_stays(
    at_boot: bool, word: str, tmp_path: Path
) -> None:
    """Also where a blacklist keeps the driver away."""
    files = (f"/{LOAD_FILE}",)
    assert called(tmp_path, word, at_boot=at_boot, files=files) == (0, "")
    assert called(tmp_path, "verify", at_boot=at_boot, files=files) == (0, "status\n")


def test_what_somebody_else_loads_at_boot_is_not_persistence(tmp_path: Path) -> None:
    assert called(tmp_path, "start", at_boot=True) == (0, "enable\n")


def test_it_reads_what_status_prints() -> None:
    """The script looks for a text, as tuned's machines may have no tool for JSON."""
    schema = json.loads((ROOT / "lightsleep/enable/status.schema.json").read_text())
    assert "files" in schema["required"]
    looked_for = re.findall(r"\*'(.*)'\*\)", (PROFILE / "script.sh").read_text())
    assert looked_for == [json.dumps(f"/{LOAD_FILE}")]


def test_it_refuses_the_rest(tmp_path: Path) -> None:
    assert called(tmp_path, "reload") == (2, "")


def test_the_profile_names_its_script() -> None:
    profile = configparser.ConfigParser(interpolation=None)
    profile.read(PROFILE / "tuned.conf")
    folder, _, name = profile["script"]["script"].rpartition("/")
    assert folder == "${i:PROFILE_DIR}"
    assert (PROFILE / name).stat().st_mode & 0o111

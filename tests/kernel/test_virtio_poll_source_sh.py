# SPDX-License-Identifier: GPL-2.0-only
"""What virtio_poll_source.sh makes of its devices: its functions run here, on files of a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ktap import SELFTESTS

FAILED = 1
SCRIPT = SELFTESTS / "virtio_poll_source.sh"
TOO_LONG_S = 20


def ran(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands after the functions of the script, which is told of no device."""
    functions, _, _ = SCRIPT.read_text().partition("\nif [ ")
    _, _, files = SCRIPT.read_text().partition("\nREPORT=$(mktemp)\n")
    files, _, _ = files.partition("\ntrap ")
    script = f"""
        {functions.replace('$(dirname "$0")', str(SELFTESTS))}
        rm "$LOAD"
        LOAD={folder}/load REPORT={folder}/report
        {files}
        {commands}
    """
    # All of its processes end with it, whatever they wait for.
    return subprocess.run(
        ["timeout", str(TOO_LONG_S), "sh", "-c", script, str(SCRIPT), str(folder)],
        text=True,
        capture_output=True,
        check=False,
    )


def test_what_the_last_read_finds_wrong_is_told(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    done = ran(
        tmp_path,
        f"""
        read_disk() {{
            [ -e "$BUSY" ] || {{ echo right; return; }}
            touch {begun}
            while [ -e "$BUSY" ]; do sleep 0.01; done
            echo wrong
        }}
        start_reading disk
        while [ ! -e {begun} ]; do sleep 0.01; done
        ends_well
        """,
    )
    assert (done.returncode, done.stdout) == (FAILED, "read wrong, not right\n")


def test_reads_that_all_find_the_same_are_no_complaint(tmp_path: Path) -> None:
    done = ran(tmp_path, "read_disk() { echo same; }; start_reading disk; sleep 0.1; ends_well")
    assert (done.returncode, done.stdout) == (0, "")

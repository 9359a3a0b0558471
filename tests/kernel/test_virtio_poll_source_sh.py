# SPDX-License-Identifier: GPL-2.0-only
"""What virtio_poll_source.sh makes of its devices: its functions run here, on files of a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("queues", "polls", "status"), [(2, True, 0), (2, False, FAILED), (1, False, 0)]
)
def test_a_cpu_that_goes_offline_was_polling_its_queue(
    tmp_path: Path, queues: int, polls: bool, status: int
) -> None:
    """Where CPUs share a queue, another one may have its interrupts."""
    (tmp_path / "cpu1").mkdir()
    (tmp_path / "cpu1/online").write_text("1\n")
    (tmp_path / "possible").write_text("0-1\n")
    (tmp_path / "table").write_text("cpu name state polls\n1 virtio0-req.1 on 3\n")
    masks = tmp_path / "masks"
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path} TABLE={tmp_path}/table ROUNDS=3
        loaded() {{ :; }}
        start_reading() {{ :; }}
        ends_well() {{ :; }}
        virtio_of() {{ echo virtio0; }}
        queues_of() {{ echo {queues}; }}
        taskset() {{
            echo "$1 $(cat {tmp_path}/cpu1/online)" >> {masks}
            {"sed -i '$s/3$/4/' $TABLE" if polls else ":"}
        }}
        survives_hotplug
        """,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert masks.read_text() == 3 * "2 1\n"

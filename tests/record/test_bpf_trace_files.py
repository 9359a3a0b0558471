# SPDX-License-Identifier: GPL-2.0-only
"""What becomes of the files of CPUs where the keeper is killed, or the disk takes no more."""

from __future__ import annotations

import errno
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bpf_cpus import IPI, NUMBERS, ROOM, Cpu, idle
from recordings import rows_of

from lightsleep.record import keeper, run, sidecar, trace_file
from lightsleep.record.bpf import pages, trace

pytest_plugins = "bpf_cpus"
pytestmark = pytest.mark.usefixtures("closed")


@pytest.fixture
def order(tmp_path: Path) -> dict[str, Any]:
    """What a keeper was to do that has copied 300 periods, and then was killed."""
    scratch = tmp_path / ".lightsleep-x" / "trace"
    scratch.parent.mkdir()
    files = pages.files_of({"buffers": {"0": 2, "3": 2}}, scratch)
    cpu = Cpu(tmp_path)
    for number in range(300):
        idle(cpu, 10**9 + number * 1000)
        cpu.copy()
    cpu.ring.copy_the_rest()
    cpu.file.rename(files[0])
    files[3].touch()
    formats = {name: trace.described(number, name) for name, number in NUMBERS.items()}
    order = {
        "buffers": {"0": 2, "3": 2},
        "formats": formats,
        "scratch": str(scratch),
        "output": str(tmp_path / "trace.dat"),
    }
    Path(f"{scratch}.json").write_text("{}")
    trace_file.head_of(scratch).write_bytes(trace_file.head(order, {}, Path("/proc")))
    return order


def taken_away(trace: Path) -> str:
    """Return what is in the document beside a trace, and remove it, as it describes nothing."""
    text = sidecar.beside(trace).read_text()
    sidecar.beside(trace).unlink()
    return text


@pytest.mark.parametrize("killed", ["before", "while writing", "in the middle of a page"])
def test_who_finishes_for_another_loses_nothing(
    tmp_path: Path, order: dict[str, Any], killed: str
) -> None:
    scratch, output = Path(order["scratch"]), Path(order["output"])
    if killed == "while writing":
        scratch.write_bytes(b"half of it")
    if killed == "in the middle of a page":
        with pages.file_of(scratch, 0).open("ab") as file:
            file.write(b"x" * 100)
    assert run._finish_for(order, wanted=True)["failed"] is None
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert taken_away(output) == "{}"
    rows, metadata = rows_of(output)
    assert len(rows) == 300
    assert metadata.seen == {0}
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_who_finishes_for_another_follows_no_link(tmp_path: Path, order: dict[str, Any]) -> None:
    folder = Path(order["scratch"]).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    report = run._finish_for(order, wanted=True)
    assert report["failed"] == f"cannot write {order['output']}: Not a directory"
    assert not Path(order["output"]).exists()
    assert sidecar.beside(tmp_path / "moved" / "trace").exists()


def test_what_cannot_be_finished_can_be_restored(
    tmp_path: Path, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, output = Path(order["scratch"]), Path(order["output"])

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_file, "assemble", full)
    assert keeper.finish(order, {}) == f"cannot write {output}: No space left on device"
    said = run._restore(scratch, output, "-i .lightsleep-x/trace.head ")
    _, _, command = said.partition("This makes a trace of them: ")
    subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert taken_away(output) == "{}"
    rows, _ = rows_of(output)
    assert len(rows) == 300


def test_a_disk_that_takes_no_more_ends_a_recording_and_keeps_it(tmp_path: Path) -> None:
    cpu = Cpu(tmp_path)
    rings = pages.Rings.__new__(pages.Rings)
    rings._rings, rings._flags, rings.refused = {0: cpu.ring}, {0: pages.CHOSEN}, None
    rings._control = cpu.line
    for number in range(ROOM + 1):
        cpu.write(IPI, 1 + number)
    with Path("/dev/full").open("wb", buffering=0) as full:
        cpu.ring.file = full.fileno()
        rings._for_all(pages.Ring.copy)
    assert rings.refused == "No space left on device"
    assert cpu.word(pages.FLAGS) == pages.OFF
    head = cpu.word(pages.HEAD)
    cpu.write(IPI, 10_000)
    assert cpu.word(pages.HEAD) == head
    rings.copy_the_rest()
    assert rings.lost == {}

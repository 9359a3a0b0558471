# SPDX-License-Identifier: GPL-2.0-only
"""How long a recording is, before it is read."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import PIPE, RECORDINGS
from test_ctf import EVENT, IDS, made, needs_babeltrace

from lightsleep.periods import expected, perf_data
from lightsleep.periods.source import open_recording


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((RECORDINGS / name).read_bytes()))
    return path


def span_ns(path: Path) -> int:
    recording = open_recording(path)
    for _ in recording.batches:
        pass
    return recording.metadata.span_ns


@pytest.mark.parametrize("name", ["ftrace.txt.gz", "pipe.txt.gz", "perf-script.txt.gz"])
def test_of_a_text(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    assert expected.of_text(path) == pytest.approx(span_ns(path), rel=0.1)


@pytest.mark.parametrize("text", ["", "\n", "no event\n" * 30_000])
def test_nobody_knows(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    assert expected.of_text(path) is None
    assert perf_data.expected_ns(path) is None
    assert expected.of_ctf(tmp_path) is None


@needs_babeltrace
def test_of_a_trace_in_ctf(tmp_path: Path) -> None:
    known = gzip.decompress(PIPE.read_bytes()).decode().splitlines()
    lines = [x for x in known if (event := EVENT.match(x)) and event[4] in IDS][4:2000]
    trace = made(tmp_path / 'a "trace"', lines)
    assert expected.of_ctf(trace) == pytest.approx(span_ns(trace), rel=0.01)


@pytest.mark.skipif(not shutil.which("perf"), reason="perf is not installed")
def test_of_a_perf_data(tmp_path: Path) -> None:
    path = unpacked("perf.data.gz", tmp_path)
    if subprocess.run(["perf", "script", "-i", path], capture_output=True).returncode:
        pytest.skip("this perf is older than the file")
    assert perf_data.expected_ns(path) == pytest.approx(span_ns(path), rel=0.1)


def test_what_perf_says_of_a_perf_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "perf"
    program.write_text(
        "#!/bin/sh\n"
        'echo "# captured on    : Wed Nov 25 20:13:00 2026"\n'
        'echo "# time of first sample : 20.000500"\n'
        'echo "# time of last sample : 23.500750"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert perf_data.expected_ns(tmp_path / "perf.data") == 3_500_250_000


def test_of_a_perf_data_perf_gets_no_endless_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "perf"
    program.write_text('#!/bin/sh\necho "# arch : $(ulimit -d)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = perf_data.architecture(tmp_path / "perf.data")
    assert found == str(expected.MEMORY_BYTES >> 10)


def test_it_is_asked_only_for_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpacked("ftrace.txt.gz", tmp_path)
    assert open_recording(path).metadata.expected_ns is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert open_recording(path).metadata.expected_ns == expected.of_text(path)

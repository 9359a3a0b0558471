# SPDX-License-Identifier: GPL-2.0-only
"""Recordings with a program that takes the place of trace-cmd."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from lightsleep.record import run, tracing

OF_THIS_ONE = {"schema": "of this one"}
"""The document beside a trace."""

# Does with a folder what trace-cmd does with tracefs; "broken" in its name makes it fail,
# "late" keeps it from tracing, with "slow" it takes its time at the end, and "hangs" has none.
FAKE = """#!{python}
import os, shutil, signal, sys, time
words = sys.argv[1:]
if "broken" in {name!r}:
    sys.exit("no such event")
output = words[words.index("-o") + 1]
instance = {tracing!r} + "/instances/" + words[words.index("-B") + 1]
os.makedirs(instance + "/events/power/cpu_idle")
os.makedirs(instance + "/per_cpu/cpu1")
open(instance + "/per_cpu/cpu1/stats", "w").write("entries: 1\\noverrun: 5\\ndropped events: 2\\n")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open(output + ".cpu0", "w").write("events")
open(instance + "/events/power/cpu_idle/enable", "w").write("1\\n")
open(instance + "/tracing_on", "w").write("0\\n" if "late" in {name!r} else "1\\n")
signal.sigwait([signal.SIGINT])
time.sleep(1 if "slow" in {name!r} else 600 if "hangs" in {name!r} else 0)
shutil.rmtree(instance)
open(output, "w").write(" ".join(words))
"""


class Gone(io.StringIO):
    """A terminal that is gone."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def tracefs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like tracefs, and programs that take it for one."""
    folder = tmp_path / "tracing"
    (folder / "instances").mkdir(parents=True)
    for event in tracing.EVENTS:
        (folder / "events" / event.name.replace(":", "/")).mkdir(parents=True)
    (folder / "kprobe_events").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    fake(programs, folder, "trace-cmd")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def traced(tracefs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tracefs that the command takes for this machine's."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    return tracefs


def fake(programs: Path, folder: Path, name: str) -> None:
    program = programs / "trace-cmd"
    program.write_text(FAKE.format(python=sys.executable, tracing=str(folder), name=name))
    program.chmod(0o755)


def record(folder: Path, output: Path) -> run.Recording:
    """Record for a moment."""
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    options = tracing.probe_options(None)
    with run.recording(folder, words, options, scratch, output, OF_THIS_ONE) as running:
        running.begin()
        assert list((folder / "instances").iterdir())
    return running


def removed_probes(folder: Path) -> list[str]:
    """Return the probes that were added, all of which must have been removed."""
    lines = (folder / "kprobe_events").read_text().splitlines()
    added = [x.split()[0].partition(":")[2] for x in lines if not x.startswith("-:")]
    assert sorted(added) == sorted(x.removeprefix("-:") for x in lines if x.startswith("-:"))
    return added

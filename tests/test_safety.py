# SPDX-License-Identifier: GPL-2.0-only
"""What runs as root on other people's machines: whatever it is told and finds, it refuses in words,
changes nothing that it was not asked to change, and opens nothing to anybody."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fake_modules
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT
from scan_trees import plant, unfold

from lightsleep.cli import main
from lightsleep.scan.archive import record
from lightsleep.scan.collect import collect
from lightsleep.scan.requests import with_request
from lightsleep.settings import restorer
from lightsleep.trial import process, switchback
from lightsleep.watch import cli as watch_cli
from lightsleep.watch import draw, openmetrics, pace
from lightsleep.watch.rates import rates
from lightsleep.watch.reading import Reader

PACKAGE = ROOT / "lightsleep"
ROOMS = ("enable", "scan", "settings", "trial", "watch")
MODULE = "lib/modules/6.12.0/updates/dkms/cpuidle_lightsleep.ko"
CPU = "sys/devices/system/cpu"


# Each example leaves the machine of its test as it was, or the test fails.
def examples(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.function_scoped_fixture])


# What a shell can hand to a program: everything but NUL.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = plant(unfold("no-cpuidle", tmp_path / "machine"), f"{MODULE}: module")
    fake_modules.install(root, monkeypatch)
    for name in ("trial", "enable", "watch"):
        monkeypatch.setattr(f"lightsleep.{name}.cli.ROOT", root)
    for name in ("trial", "enable"):
        monkeypatch.setattr(f"lightsleep.{name}.cli.need_root", lambda _: None)
    monkeypatch.setattr(switchback, "LEAST_S", 0.01)
    monkeypatch.setattr(process, "execute", lambda *_: (0.01, 0.001, "t 5"))
    hurried = {"sleep": lambda _: None, "time": time.time, "process_time": time.process_time}
    monkeypatch.setattr(pace, "time", SimpleNamespace(**hurried, monotonic=time.monotonic))
    return root


def told(*words: str) -> Result:
    result = CliRunner().invoke(main, list(words), env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2, 4)
    if result.exit_code in (1, 2):
        assert "Error: " in result.stderr
    return result


# Options.

WORDS = {
    "try": (
        *(
            "-n",
            "1",
            "2",
            "0",
            "-s",
            "lightsleep",
            "lightsleep:fixed:50us",
            "as-is",
            "qos:1us",
            ",",
        ),
        *("governor:menu+qos:0", "sysfs:/sys/x=1", "sysfs:/sys/../etc/passwd=x", "-m", "t_us=(.)"),
        *("t=(", "=", ",", "t=x:rate", "wall_s=x", "--switchback", "10ms", "--for", "300ms", "0s"),
        *("--metric-command", "'", "$(reboot)", ";", "--control", "--no-control", "--seed", "-1"),
        *("7", "--json", "--module", "/dev/null", "/", "--enable", "-o", "--", "true", "|", "\n"),
    ),
    "enable": (
        *("lightsleep", "lightsleep:fixed:9us", "haltpoll", "governor:menu", "qos:1us", "as-is"),
        *("+", "--persist", "--later", "--now", "--module", "/dev/null", "/", "--json", "--"),
        *("lightsleep:1us;reboot", "lightsleep:`id`", "sysfs:/sys/x=1", ".."),
    ),
    "disable": ("--json", "--", "x", "-x"),
    "status": ("--json", "--", "x", "-x"),
    "watch": (
        *("-c", "0-1", "3-0", "99", "-i", "0.1", "nan", "-1", "1e9", "--sort", "wakes", "x"),
        *("--top", "1", "0", "--json", "--openmetrics", "/", "/dev/full", "-n", "--", ""),
    ),
}


@pytest.mark.parametrize("verb", WORDS)
@examples(25)
@given(data=st.data())
def test_no_words_trip_a_command(verb: str, root: Path, data: st.DataObject) -> None:
    before = fake_modules.snapshot(root)
    words = data.draw(st.lists(st.sampled_from(WORDS[verb]) | TEXT, max_size=7))
    last = ["-n", "1", "-i", "0.1"] if verb == "watch" else []
    with contextlib.chdir(root.parent):  # where a file is written that has no folder
        result = told(verb, *last, *words)
    if result.exit_code == 0 and (verb == "enable" or "--enable" in words):
        assert told("disable").exit_code in (0, 4)
    assert not (root / "run/lightsleep/journal").exists()
    assert fake_modules.snapshot(root) == before


# Files.

LINES = st.sampled_from(
    (
        *("{}", "[]", "7", "null", '"x"', '{"boot_id": 1}', '{"knob": "/sys/x", "old": "1"}'),
        '{"module": "x", "old": null, "new": "reboot"}',
        '{"file": "/etc/passwd", "old": "x", "new": "y"}',
        '{"knob": "/etc/passwd", "old": "x", "new": "y"}',
    )
)


@examples(12)
@given(
    name=st.sampled_from(["journal", "kept", "lock"]),
    first=st.sampled_from([b"", json.dumps({"boot_id": restorer.boot_id()}).encode() + b"\n"]),
    lines=st.lists(LINES),
    rest=st.binary(max_size=20),
)
def test_no_record_trips_a_command(
    root: Path, name: str, first: bytes, lines: list[str], rest: bytes
) -> None:
    before = fake_modules.snapshot(root)
    file = root / "run/lightsleep" / name
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    file.write_bytes(first + "".join(f"{line}\n" for line in lines).encode() + rest)
    for verb in (["status"], ["try", "-n", "1", "--", "true"], ["enable"], ["disable"]):
        told(*verb)
    file.unlink(missing_ok=True)
    if told("status", "--json").exit_code == 0:
        told("disable")
    assert fake_modules.snapshot(root) == before


@examples(40)
@given(name=st.sampled_from(restorer.FILES), content=st.binary(max_size=60))
def test_a_file_of_somebody_else_stays(root: Path, name: str, content: bytes) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    for verb in (["enable", "--persist"], ["status"], ["disable"]):
        told(*verb)
    assert file.read_bytes() == content
    file.unlink()


NUMBERS = st.binary(max_size=30) | st.integers(0, 2**64).map(lambda x: f"{x}\n".encode())


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    root = unfold("lightsleep-guest", tmp_path / "watched")
    rows = ("  CPU0 CPU1 CPU2 CPU3", "LOC: 1 1 1 1 timer", "24: 0 0 0 7 PCI-MSI nvme")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    each = [f"cpu{n} 0 0 0 100 0 0 0 5" for n in range(4)]
    stat_rows = ("cpu 0 0 0 0 0 0 0 0", *each, "intr 1")
    plant(root, "\n".join(f"proc/stat: {row}" for row in stat_rows))
    # Under another driver, there are only the files of each state.
    shutil.rmtree(root / f"{CPU}/cpu1/lightsleep")
    return root


WATCHED = (
    *(f"{CPU}/cpu1/cpuidle/state1/{name}" for name in ("usage", "time", "name", "latency")),
    *(f"{CPU}/cpu2/lightsleep/{name}" for name in ("polls", "stat")),
    *("proc/interrupts", "proc/stat", f"{CPU}/online", f"{CPU}/cpuidle/current_driver"),
)


@examples(200)
@given(name=st.sampled_from(WATCHED), first=NUMBERS, second=NUMBERS)
def test_no_counter_trips_watch(watched: Path, name: str, first: bytes, second: bytes) -> None:
    file = watched / name
    was = file.read_bytes() if file.exists() else None
    try:
        with contextlib.closing(Reader(watched, None)) as reader:
            before = reader.read()
            for content in (first, second):
                file.write_bytes(content)
                after = reader.read()
                watch_cli.document(before, after)
                openmetrics.text(after)
                for width in (None, 40):
                    found = rates(before, after)
                    draw.lines(after, found, 1.0, sort="wakes", rows=2, width=width)
                before = after
    finally:
        file.unlink(missing_ok=True)
        if was is not None:
            file.write_bytes(was)


# What others may see.


def test_a_recording_names_no_process(tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path / "machine"), "dev/cpu_dma_latency: 0")
    plant(root, "proc/812/comm: secretive")
    (root / "proc/812/fd").mkdir()
    (root / "proc/812/fd/3").symlink_to(root / "dev/cpu_dma_latency")
    archive = tmp_path / "x.tar.gz"
    first, tree = collect(root)
    found = with_request(first, lambda: collect(root)[0], root)
    assert found.latency_request
    assert found.latency_request.holders == ["secretive (812)"]
    record(tree, archive)
    assert b"secretive" not in gzip.decompress(archive.read_bytes())


def test_a_result_that_names_a_command_is_its_owners(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told("try", "-n", "1", "-o", str(file), "--", "true", "--password=x")
    assert "--password=x" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def sources() -> Iterator[Path]:
    for room in ROOMS:
        yield from (PACKAGE / room).rglob("*.py")


FORBIDDEN_CALLS = {"system", "popen", "getoutput", "getstatusoutput", "eval", "exec"}
FORBIDDEN_MODULES = {"socket", "socketserver", "http", "asyncio", "urllib", "multiprocessing"}


@pytest.mark.parametrize("file", [*sources()], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_shell_and_no_network(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert name not in FORBIDDEN_CALLS, f"{file}:{node.lineno}"
            assert not [x for x in node.keywords if x.arg == "shell"], f"{file}:{node.lineno}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(x.name for x in node.names)]
            found = {name.partition(".")[0] for name in names} & FORBIDDEN_MODULES
            assert not found, f"{file}:{node.lineno}"

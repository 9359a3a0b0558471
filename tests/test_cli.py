# SPDX-License-Identifier: GPL-2.0-only
"""What all verbs have in common: standard output, and what can be wrong with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import comparisons
import pytest
from click.testing import CliRunner
from measurements import made_up
from paths import ROOT

from lightsleep.cli import main
from lightsleep.files import write_json
from lightsleep.lab.run import protocol


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result file, and nothing else in its folder."""
    path = tmp_path_factory.mktemp("results") / "result.json"
    write_json(path, made_up().document())
    return path


def lightsleep(
    words: str, result: Path, stdout: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the folder of ``result``, standard output being a file."""
    with Path(stdout).open("wb") as file:
        return subprocess.run(
            [sys.executable, "-m", "lightsleep", *words.split()],
            cwd=result.parent,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=file,
            stderr=subprocess.PIPE,
        )


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "scan --json",
        "scan -v",
        "report -o - result.json",
    ],
)
def test_full_disk(words: str, result: Path) -> None:
    done = lightsleep(words, result, "/dev/full")
    assert done.stderr == b"Error: cannot write standard output: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        "scan --record -",
        "measure -o -",
        "measure --csv -",
        "record -o -",
        "report x.json --parquet -",
        "report x.json --perfetto -",
        "replay x.dat -o -",
        "try -o - true",
        "watch --openmetrics -",
        "lab compare idle -o -",
    ],
)
def test_a_file_is_no_standard_output(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 2
    assert "'-' is not standard output here: name a file" in done.output
    assert not list(tmp_path.iterdir())


def test_a_file_may_be_called_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["scan", "--record", "./-"]).exit_code == 0
    assert [x.name for x in tmp_path.iterdir()] == ["-"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_file(closed: str) -> None:
    """What is opened next must not take its place."""
    script = f'"$0" -m lightsleep scan {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("kernel" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_full_disk_of_python_without_a_buffer(result: Path) -> None:
    done = lightsleep("scan -v", result, "/dev/full", PYTHONUNBUFFERED="1")
    assert done.stderr == b"Error: cannot write standard output: No space left on device\n"
    assert done.returncode == 1


VERB = """
import sys, tempfile, time, types
import click
from lightsleep import cli

@click.command()
def verb():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        try:
            print("begun", flush=True)
            time.sleep(600)
        finally:
            time.sleep(0.5)  # a second signal comes meanwhile
            print("saved", flush=True)

sys.modules["a_verb"] = types.SimpleNamespace(verb=verb)
cli.VERBS["verb"] = ("a_verb", "verb", "")
cli.main(["verb"])
"""


START = """
import os, signal, sys
from lightsleep.__main__ import start

class Interrupts:
    @staticmethod
    def find_spec(name, *_):
        if name == "lightsleep.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts)
signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop(1)))
start()
"""


@pytest.mark.parametrize(
    ("handler", "status"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)]
)
def test_ctrl_c_while_the_command_line_starts_has_no_traceback(handler: str, status: int) -> None:
    command = [sys.executable, "-c", START, handler, "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (status, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_verb_that_is_ended_twice_saves_its_work_and_leaves_no_scratch_files(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", VERB, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)
        saved, said = process.communicate(timeout=60)
        assert (process.returncode, saved) == (128 + number, b"saved\n")
        assert said == (b"\ninterrupted\n" if number == signal.SIGINT else b"")
    assert not list(tmp_path.iterdir())


def test_another_error_is_not_blamed_on_standard_output(result: Path) -> None:
    done = lightsleep("report nowhere.json", result, "/dev/full")
    assert done.stderr == b"Error: cannot read nowhere.json: No such file or directory\n"
    assert done.returncode == 1


COMPARE = """
from lightsleep.cli import main
from lightsleep.lab.run import protocol
from comparisons import made_up
protocol.compare = lambda *_: made_up()
main(["lab", "compare", "idle", "-o", "/dev/full"])
"""


def test_a_disk_too_full_for_file_and_table_says_so_of_the_file() -> None:
    paths = os.pathsep.join(str(x) for x in (ROOT / "tests", ROOT))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", COMPARE],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.stderr == b"Error: cannot write /dev/full: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
def test_what_standard_output_cannot_spell_is_replaced(
    charset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = comparisons.made_up()
    made.environment["host"]["other_load_pct"] = 0.0
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    done = CliRunner(charset=charset).invoke(main, ["lab", "compare", "idle"])
    assert done.exit_code == 0, done.exception
    assert "? 5.98 " in done.stdout
    assert "faster" in done.stdout


def test_a_line_that_a_program_reads_ends_in_no_blanks() -> None:
    lines = CliRunner().invoke(main, ["lab", "list"]).stdout.splitlines()
    assert len({len(line) for line in lines}) > 5
    assert lines == [line.rstrip() for line in lines]


def test_cut_cells_are_spelled_in_ascii(result: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    narrow = {"PYTHONIOENCODING": "ascii", "COLUMNS": "30"}
    assert lightsleep("lab list", result, str(out), **narrow).returncode == 0
    assert out.read_text("ascii")


def test_a_page_is_utf_8_whatever_standard_output_is(result: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = lightsleep("report -o - result.json", result, str(out), PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "\u2714" in out.read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ["report", ""],
        ["report", "result.json", "-o", ""],
        ["replay", ""],
        ["replay", "result.json", "--measured", ""],
        ["enable", "--module", ""],
        ["lab", "shell", "--kernel-tree", ""],
        ["lab", "shell", "--modules", ""],
        ["lab", "shell", "--image", ""],
        ["scan", "--root", ""],
        ["measure", "-o", ""],
        ["lab", "series", "6.12", ""],
    ],
    ids=" ".join,
)
def test_no_name_is_not_the_current_folder(words: list[str]) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert "'' names no file" in done.stderr

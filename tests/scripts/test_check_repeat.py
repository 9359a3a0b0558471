# SPDX-License-Identifier: GPL-2.0-only
"""make check, run again and again: what is counted, what is run again, what a page says."""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from paths import ROOT
from programs_here import loaded

COMMIT = "0123abc"
PRINTED = """\
==> linters
All checks passed!
........................................ [100%]
  /x/tests/lab/test_ktap.py:67: UserWarning: x.sh, tried again: two; two: # why
=========================== short test summary info ============================
SKIPPED [1] tests/kernel/test_a.py:36: no packages
4126 passed, 1 skipped, 5 warnings in 131.88s (0:02:11)
tests/kernel/test_driver.py::test_selftest[6.12] PASSED [ 3%]
  /x/tests/ktap.py:104: UserWarning: idle.sh, tried again: polls, halts; polls: # no hit; halts:
  /x/tests/ktap.py:104: UserWarning: idle.sh, tried again: polls; polls: # no hit
=========================== short test summary info ============================
"""
BAD = """\
FAILED tests/kernel/test_series.py::test_all[6.12 a b] - AssertionError: 2 passed in 3s
ERROR tests/lab/test_lab_boot.py::test_a_guest_runs_commands - OSError
====== 1 failed, 251 passed, 6 skipped, 8 warnings, 1 error in 1082.68s (0:18:02) =======
"""
GOOD = """\
====== 251 passed, 6 skipped, 7 warnings in 731.51s (0:12:11) =======
====== 5 passed, 1 warning in 96.60s (0:01:36) =======
"""


checks = loaded("scripts/check_repeat.py")


class Make:
    """Takes the place of ``make check``; ``bad`` says which runs fail."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.runs, self.untracked, self.printed = bad, 0, b"", ""

    def run(
        self, command: list[str], stdout: Any = None, **_: Any
    ) -> subprocess.CompletedProcess[bytes]:
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 0, self.untracked)
        assert command == ["make", "--no-print-directory", "check"]
        self.runs += 1
        failed = self.runs in self.bad
        stdout.write(self.printed or PRINTED + (BAD if failed else GOOD))
        return subprocess.CompletedProcess(command, 2 if failed else 0)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    made = Make(bad={2})
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(checks, "commit", lambda: COMMIT)
    return made


def test_what_a_run_did_is_in_what_it_printed() -> None:
    again = ["idle.sh polls", "idle.sh halts"]
    assert checks.counted(PRINTED + GOOD) == (3, 4126 + 256, 7, [], again)
    parts, passed, skipped, failed, _ = checks.counted(PRINTED + BAD)
    assert (parts, passed, skipped) == (2, 4126 + 251, 7)
    assert failed == [
        "tests/kernel/test_series.py::test_all[6.12 a b]",
        "tests/lab/test_lab_boot.py::test_a_guest_runs_commands",
    ]
    assert checks.counted("make: *** [Makefile:122: lint] Error 1\n") == (0, 0, 0, [], [])


def test_what_was_skipped_is_in_what_it_printed() -> None:
    printed = "SKIPPED [2] tests/a.py:3: no KVM: it hung\nSKIPPED [1] tests/a.py:3: no KVM: it hung"
    assert checks.skips_of(printed) == {"tests/a.py:3: no KVM: it hung": 3}
    assert checks.skips_of(PRINTED + GOOD) == {"tests/kernel/test_a.py:36: no packages": 1}


def test_what_failed_ends_nothing_and_is_listed(tmp_path: Path, make: Make) -> None:
    result = CliRunner().invoke(checks.main, ["3", str(tmp_path)])
    assert result.exit_code == 1
    assert make.runs == 3
    assert result.output.splitlines()[-1].startswith("1 of 3 runs failed; ")
    assert "run 2: exit status 2 after 0 s, 4377 tests passed; failed: tests/k" in result.output
    assert (tmp_path / "3.log").read_text().endswith(GOOD)


def test_runs_of_the_same_commit_are_not_run_again(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(checks.main, ["2", str(tmp_path)]).exit_code == 1
    assert CliRunner().invoke(checks.main, ["3", str(tmp_path)]).exit_code == 1
    assert make.runs == 3
    monkeypatch.setattr(checks, "commit", lambda: "another")
    assert CliRunner().invoke(checks.main, ["1", str(tmp_path)]).exit_code == 0
    assert make.runs == 4
    for dirty in ("another-dirty", None):
        monkeypatch.setattr(checks, "commit", lambda now=dirty: now)
        assert CliRunner().invoke(checks.main, ["1", str(tmp_path)]).exit_code == 0
    assert make.runs == 6
    monkeypatch.setattr(checks, "commit", lambda: COMMIT)
    make.untracked = b"tests/test_new.py\n"
    for _ in range(2):
        assert CliRunner().invoke(checks.main, ["1", str(tmp_path)]).exit_code == 0
    assert make.runs == 8


def test_a_run_without_a_test_is_not_kept(tmp_path: Path, make: Make) -> None:
    make.printed = "make: *** [Makefile:122: lint] Error 1\n"
    result = CliRunner().invoke(checks.main, ["2", str(tmp_path)])
    assert result.exit_code == 1
    assert f"ended before any test did: see {tmp_path / '1.log'}" in result.output
    assert not (tmp_path / "checks.json").exists()


def test_a_check_of_a_command_that_was_killed_is_not_run_beside(tmp_path: Path, make: Make) -> None:
    with (tmp_path / "lock").open("w") as left:
        fcntl.flock(left, fcntl.LOCK_EX)
        result = CliRunner().invoke(checks.main, ["1", str(tmp_path)])
    assert result.exit_code == 1
    assert "still runs: end it first" in result.output
    assert make.runs == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"commit": "0123abc", "runs": [{"x": 1}]}'])
@pytest.mark.usefixtures("make")
def test_a_damaged_document_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "checks.json").write_text(text)
    assert CliRunner().invoke(checks.main, ["1", str(tmp_path)]).exit_code == 0
    assert len(json.loads((tmp_path / "checks.json").read_text())["runs"]) == 1


def test_sources_that_change_meanwhile_count_for_neither_commit(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "commit", lambda: str(make.runs))
    result = CliRunner().invoke(checks.main, ["2", str(tmp_path)])
    assert result.exit_code == 1
    assert "the sources have changed during this run" in result.output
    assert not (tmp_path / "checks.json").exists()


@pytest.mark.usefixtures("make")
def test_a_page_says_what_failed_in_which_run(tmp_path: Path) -> None:
    CliRunner().invoke(checks.main, ["2", str(tmp_path)])
    page = tmp_path / "page.md"
    kept = ["--kept", str(tmp_path / "checks.json"), str(page)]
    assert CliRunner().invoke(checks.main, kept).exit_code == 0
    text = page.read_text()
    assert "1 of 2 runs failed." in text
    runs = text.partition("skipped |")[2].splitlines()  # the first table
    first, second = (line for line in runs if line.startswith(("| 1 | 20", "| 2 | 20")))
    assert "| none | idle.sh polls, idle.sh halts |" in first
    assert "test_series.py::test_all[6.12 a b], tests/lab/" in second


@pytest.mark.usefixtures("make")
def test_a_page_says_which_tests_were_skipped(tmp_path: Path) -> None:
    CliRunner().invoke(checks.main, ["2", str(tmp_path)])
    document = json.loads((tmp_path / "checks.json").read_text())
    assert "| 1 | tests/kernel/test_a.py:36: no packages | 2 of 2 |" in checks.page_of(document)
    for each in document["runs"]:
        del each["skips"]
    assert "Which tests were skipped was not recorded." in checks.page_of(document)


def test_a_run_that_was_ended_before_it_was_done_is_a_hole(tmp_path: Path, make: Make) -> None:
    def ended(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def page() -> str:
        return str(checks.page_of(json.loads((tmp_path / "checks.json").read_text())))

    make.bad = set()
    assert CliRunner().invoke(checks.main, ["1", str(tmp_path)]).exit_code == 0
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(checks, "run", ended)
            assert CliRunner().invoke(checks.main, ["3", str(tmp_path)]).exit_code == 1
    assert "Not in a row" not in page()  # the series ends there
    document = json.loads((tmp_path / "checks.json").read_text())
    assert len(document["ended"]) == 2
    document["runs"][0]["began"] = "2026-11-27T02:20:09+00:00"
    document["ended"] = ["2026-11-27T02:37:48+00:00", "2026-11-27T02:37:49+00:00"]
    (tmp_path / "checks.json").write_text(json.dumps(document))
    assert CliRunner().invoke(checks.main, ["3", str(tmp_path)]).exit_code == 0
    assert "and 2 runs were ended before they were done." in page()
    assert page().count("between runs") == 1


def run_at(began: str, seconds: int) -> Any:
    return checks.Run(began, seconds, 0, 3, 4464, 0, [], [])


def test_a_pause_between_runs_is_a_hole() -> None:
    first, second, third = (
        run_at("2026-11-27T02:20:09+00:00", 1059),
        run_at("2026-11-27T03:00:01+00:00", 996),
        run_at("2026-11-27T03:16:38+00:00", 989),
    )
    said = "Not in a row: between runs 1 and 2, 22 min 13 s passed."
    assert checks.in_a_row([first, second, third], []) == said
    ended = ["2026-11-27T02:40:00+00:00"]
    assert checks.in_a_row([first, second, third], ended) == (
        "Not in a row: between runs 1 and 2, 22 min 13 s passed, and 1 run was ended before it was "
        "done."
    )
    assert checks.in_a_row([second, third], ended) == "Each run began as the one before it ended."
    assert checks.in_a_row([first], ended) == ""


def test_the_page_is_of_the_kept_result(tmp_path: Path) -> None:
    kept, page = ROOT / "benchmarks/check-repeat.json", tmp_path / "page.md"
    assert CliRunner().invoke(checks.main, ["--kept", str(kept), str(page)]).exit_code == 0
    assert page.read_text() == (ROOT / "docs/check-figures.md").read_text()


@pytest.mark.usefixtures("make")
def test_a_run_that_ended_early_says_so(tmp_path: Path, make: Make) -> None:
    make.printed = "FAILED tests/test_a.py::test_b\n1 failed, 4125 passed in 131.88s (0:02:11)\n"
    make.bad = {1}
    result = CliRunner().invoke(checks.main, ["1", str(tmp_path)])
    assert "failed: tests/test_a.py::test_b, only 1 of 3 parts were run" in result.output


def test_it_says_what_it_needs() -> None:
    result = CliRunner().invoke(checks.main, [])
    assert result.exit_code == 2
    assert "say how many RUNS" in result.output

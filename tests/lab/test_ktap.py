# SPDX-License-Identifier: GPL-2.0-only
"""What is read from a selftest's output: a test that went missing must not look like success."""

import re
import subprocess
from typing import cast

import pytest
from ktap import SELFTESTS, Result, parse, run_selftest

from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest

WHOLE = "KTAP version 1\n1..3\nok 1 one\n# why\n# not\nnot ok 2 two\nok 3 three # SKIP\n"


def test_results_and_the_output_of_a_failure() -> None:
    result = parse(WHOLE)
    assert result.passed == ["one"]
    assert result.skipped == ["three"]
    assert result.failed == {"two": "# why\n# not"}


@pytest.mark.parametrize("cut", [0, 10, 20, 30, 54])
def test_a_plan_not_carried_out_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="planned"):
        parse(WHOLE[:cut])


class FakeGuest:
    """Prints one answer after the other; remembers which tests were asked for."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def write_text(self, *_: object) -> None:
        pass

    def check(self) -> None:
        pass

    def run(self, argv: list[str], **_: object) -> Completed:
        self.asked.append(argv[argv.index("sh") + 3 :])
        answer = self.answers.pop(0)
        found = parse(answer)
        status = 1 if found.failed else 0 if found.passed else 4
        return Completed(status, answer, "", 0.0)


AGAIN = "1..1\nok 1 two\n"
STILL = "1..1\n# broken\nnot ok 1 two\n"


def test_a_test_that_the_host_disturbed_is_run_again_alone() -> None:
    guest = FakeGuest(WHOLE, AGAIN)
    with pytest.warns(UserWarning, match=r"x\.sh, tried again: two; two: # why"):
        result = run_selftest(cast(Guest, guest), "x.sh")
    assert result == Result(["one", "two"], ["three"], {})
    assert guest.asked == [[], ["two"]]


def test_a_test_that_failed_does_not_pass_by_skipping() -> None:
    skips = "1..1\nok 1 two # SKIP\n"
    guest = FakeGuest(WHOLE, skips, skips, skips)
    with pytest.warns(UserWarning, match="tried again"):
        result = run_selftest(cast(Guest, guest), "x.sh")
    assert result == Result(["one"], ["three"], {"two": "# why\n# not"})
    guest = FakeGuest(WHOLE, skips, AGAIN)
    with pytest.warns(UserWarning, match=r"x\.sh skipped: three"):
        result = run_selftest(cast(Guest, guest), "x.sh")
    assert result == Result(["one", "two"], ["three"], {})


def test_a_test_that_fails_each_time_has_failed() -> None:
    guest = FakeGuest(WHOLE, STILL, STILL)
    with pytest.warns(UserWarning, match="tried again"):
        result = run_selftest(cast(Guest, guest), "x.sh", tries=3)
    assert result == Result(["one"], ["three"], {"two": "# broken"})
    assert guest.answers == []


def ran(tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the shell library on this machine."""
    functions = "good() { :; }; skips() { skip no disk; }; bad() { fail broken; }"
    functions += "; language() { env | grep ^LC_ALL=; }"
    script = f". {SELFTESTS}/ktap.sh; {functions}; run_tests {tests}"
    return subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=False)


def test_each_test_says_last_how_long_it_took() -> None:
    lines = re.sub(r"(?m)^# \d+ s$", "# N s", ran("good bad").stdout).splitlines()
    assert lines[2:] == ["# N s", "ok 1 good", "# broken", "# N s", "not ok 2 bad"]


@pytest.mark.parametrize(
    ("tests", "status"),
    [("good", 0), ("good skips", 0), ("skips skips", 4), ("skips bad", 1), ("good bad", 1)],
)
def test_a_script_of_which_all_tests_skip_has_not_passed(tests: str, status: int) -> None:
    done = ran(tests)
    assert (done.returncode, done.stderr) == (status, "")
    assert len(parse(done.stdout).skipped) == tests.split().count("skips")


def test_tools_print_english_whoever_runs_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests look for words of an error, which the C library translates."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert "# LC_ALL=C\n" in ran("language").stdout

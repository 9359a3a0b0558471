# SPDX-License-Identifier: GPL-2.0-only
"""try on a machine in a folder: commands that tell under which setting they run."""

import contextlib
import errno
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_modules
import pytest
from click.testing import CliRunner
from pages import Page
from scan_trees import plant, unfold
from trials import MODULE, attempt, prepare, teller, tried

from lightsleep.cli import main
from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.trial import cli, process, reading, run


def test_the_help_says_how_often_the_command_runs() -> None:
    said = " ".join((cli.try_settings.help or "").split())
    arms = ["as-is", "lightsleep", "as-is-again"]
    runs = sum(map(len, run.schedule(arms, cli.ROUNDS, random.Random(1))))
    assert f"by default, {runs} runs in all, as root" in said


def test_the_setting_holds_during_the_command_and_never_else(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fake_modules.snapshot(root)
    file = tmp_path / "result.json"
    options = ["-n", "6", "-m", r"t_ms=t (\d+)", "-o", str(file), "-s", "lightsleep,haltpoll"]
    monkeypatch.setenv("SUDO_UID", "12")
    monkeypatch.setenv("SUDO_GID", "34")
    document = tried(*options, "--", *teller(root))
    assert document["arms"] == ["as-is", "lightsleep", "haltpoll", "as-is-again"]
    first = next(iter(document["metrics"]))
    assert first == "t_ms"
    samples = document["metrics"][first]["samples"]
    assert samples["lightsleep"] == [1.0] * 6
    assert samples["as-is"] == samples["haltpoll"] == samples["as-is-again"] == [10.0] * 6
    assert document["metrics"][first]["unit"] == "ms"
    assert len(document["protocol"]["order"]) == 6 + document["protocol"]["warmup"]
    assert fake_modules.snapshot(root) == before
    assert json.loads(file.read_text()) == document
    assert load(file, FORMAT).document() == document
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # the command may hold a password
    if os.geteuid() == 0:
        assert (file.stat().st_uid, file.stat().st_gid) == (12, 34)


@pytest.mark.parametrize("settings", ["lightsleep", "haltpoll,lightsleep"])
def test_its_result_has_the_page_of_every_comparison(
    settings: str, root: Path, tmp_path: Path
) -> None:
    """It begins with what came of all settings, and not with one that is named first."""
    file, page = tmp_path / "result.json", tmp_path / "report.html"
    words = ["-n", "6", "-s", settings, "-m", r"t_ms=t (\d+)", "-o", str(file)]
    outcome = tried(*words, "--", *teller(root))["outcome"]
    result = CliRunner().invoke(main, ["report", str(file), "-o", str(page)])
    assert result.exit_code == 0, result.output
    shown = Page(page.read_text()).text
    assert "Idle settings for sh -c" in shown
    assert "as-is-again" in shown
    assert outcome["sentence"] in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "Measured, 6 rounds" not in shown


@pytest.mark.parametrize(
    ("control", "settings", "needed"),
    [
        ("--control", "lightsleep", 10),
        ("--no-control", "lightsleep", 6),
        ("--no-control", "lightsleep,lightsleep:fixed:50us", 7),
    ],
)
def test_too_few_rounds_to_enable_anything_are_refused_first(
    control: str, settings: str, needed: int, root: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    words = ["--enable", control, "-s", settings, "--", "touch", str(seen)]
    refused = attempt("-n", str(needed - 1), *words)
    assert refused.exit_code == 2
    assert f"--enable needs --rounds {needed} or more" in refused.output
    assert not seen.exists()
    assert attempt("-n", str(needed), *words).exit_code == 4


@pytest.mark.parametrize(("numbers", "needed"), [(7, 10), (8, 11)])
def test_with_many_numbers_the_control_needs_more_rounds(
    numbers: int, needed: int, root: Path, tmp_path: Path
) -> None:
    """It is compared in each of them."""
    seen = tmp_path / "seen"
    words = [x for n in range(numbers) for x in ("-m", f"n{n}=t (\\d+):lower")]
    refused = attempt("-n", str(needed - 1), "--enable", *words, "--", "touch", str(seen))
    assert refused.exit_code == 2
    assert f"--enable needs --rounds {needed} or more" in refused.output
    assert not seen.exists()
    said = attempt("-n", "2", *words, "--", *teller(root)).stdout
    assert f"try again with {needed} or more." in " ".join(said.split())


def test_the_winner_is_enabled(root: Path) -> None:
    options = ["-n", "10", "--enable", "-s", "lightsleep:fixed:50us", "-m", r"t=t (\d+):lower"]
    result = attempt(*options, "--", *teller(root))
    assert result.exit_code == 0
    assert "lightsleep disable" in result.output
    parameters = root / "sys/module/cpuidle_lightsleep/parameters"
    assert (parameters / "poll_limit_us").read_text() == "50\n"


def test_without_a_winner_nothing_is_enabled_and_the_status_says_so(root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-n", "10", "--enable", "--json", "--", "true")
    assert result.exit_code == 4
    assert "no setting won, so nothing is enabled" in result.stderr
    outcome = json.loads(result.stdout)["outcome"]
    assert outcome["winner"] is None
    assert "in every run" in outcome["sentence"]
    assert fake_modules.snapshot(root) == before


def test_the_document_names_the_winner(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    document = tried("-n", "10", "-m", r"t=t (\d+):lower", "-o", str(file), "--", *teller(root))
    assert document["outcome"]["winner"] == "lightsleep"
    assert json.loads(file.read_text())["outcome"] == document["outcome"]


def test_options_after_the_command_are_its_own(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {seen}\n')
    script.chmod(0o755)
    tried("-n", "1", "--no-control", str(script), "-n", "7", "-o", "out", "--seed", "x")
    assert set(seen.read_text().splitlines()) == {"-n 7 -o out --seed x"}


def test_a_winner_that_could_not_be_enabled_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "dev/cpu_dma_latency: 2000000000"
    root = plant(unfold("intel-laptop", tmp_path / "machine"), text)
    prepare(root, monkeypatch)
    seen = tmp_path / "seen"
    result = attempt("--enable", "-s", "governor:teo,qos:10us", "--", "touch", str(seen))
    assert result.exit_code == 2
    assert "qos:10us cannot be enabled" in " ".join(result.output.split())
    assert not seen.exists()


def test_the_file_that_was_tried_is_enabled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / MODULE).unlink()
    built = plant(tmp_path / "kernel", "cpuidle_lightsleep.ko: vermagic=6.12.0 SMP")
    monkeypatch.setattr("lightsleep.scan.loading.KERNEL", built)
    result = attempt("-n", "10", "--enable", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0, result.output
    assert f"insmod {built / 'cpuidle_lightsleep.ko'}" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "exit status 1"),
        (["sh", "-c", "kill -9 $$"], "signal SIGKILL"),
        (["sh", "-c", "kill -62 $$"], "signal 62"),
        (["echo", "nothing"], "nothing in the output matches"),
        (["echo", "t 1e999"], "is not a number"),
    ],
)
def test_a_command_that_fails(command: list[str], said: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-m", r"t=t (\S+):lower", "--", *command)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert "warm-up" in result.output
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("setting", "planted", "said"),
    [
        (
            "lightsleep",
            "refused: cpuidle_lightsleep",
            "Key was rejected by service Find out whether Secure Boot is on",
        ),
        ("lightsleep", "ignored: cpuidle_lightsleep", "but the module is not loaded"),
        ("sysfs:/sys/module/m/value=1", "sys/module/m/value: 0", "Device or resource busy"),
    ],
)
def test_what_only_the_kernel_refuses_runs_nothing_either(
    setting: str,
    planted: str,
    said: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even in an order that begins with the machine as it was found."""

    def write(name: str, value: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)

    arms = [cli.BASELINE, setting, cli.CONTROL]
    orders = (run.schedule(arms, cli.ROUNDS, random.Random(seed)) for seed in range(99))
    seed = next(seed for seed, order in enumerate(orders) if order[0][0] != setting)
    monkeypatch.setattr("lightsleep.settings.restorer._write", write)
    before, seen = fake_modules.snapshot(plant(root, planted)), tmp_path / "seen"
    result = attempt("--seed", str(seed), "-s", setting, "--", "touch", str(seen))
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert f"{setting}, before the first run: cannot " in shown
    assert said in shown
    assert not seen.exists()
    assert fake_modules.snapshot(root) == before


def test_what_comes_before_the_first_run_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver measures when it is loaded, which may take seconds."""
    told: list[tuple[str, float, bool]] = []

    @contextlib.contextmanager
    def progress() -> Iterator[Callable[[str, float, float | None], None]]:
        yield lambda what, done, _total: told.append(
            (what, done, (root / "sys/module/cpuidle_lightsleep").exists())
        )

    monkeypatch.setattr("lightsleep.terminal.progress", progress)
    tried("-n", "6", "--no-control", "-s", "lightsleep", "--", "true")
    assert told[:2] == [("as-is", 0, False), ("lightsleep", 0, False)]
    assert len(told) == 2 + 2 * 7


def test_no_temporary_folder_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    document = tried("-n", "1", "--no-control", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert document["metrics"]["t"]["samples"] == {"as-is": [10.0], "lightsleep": [1.0]}


def test_the_last_match_of_a_long_output_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_OUTPUT", 1000)
    script = "i=0; while [ $i -lt 500 ]; do echo t 1; i=$((i + 1)); done; echo t 5"
    document = tried("-n", "1", "--no-control", "-m", r"t=t (\d+):lower", "--", "sh", "-c", script)
    assert document["metrics"]["t"]["samples"]["as-is"] == [5.0]


def test_interrupts_between_cpus_stand_behind_many_others(root: Path, tmp_path: Path) -> None:
    cpus = 256
    header = " ".join(f"CPU{number}" for number in range(cpus))
    devices = "".join(f"{irq}: {'0000000001 ' * cpus}PCI-MSI x\n" for irq in range(500))
    file = root / "proc/interrupts"
    own = f"RES: {'7 ' * cpus}Rescheduling interrupts\n"
    file.write_text(f"{header}\n{devices}{own}")
    assert file.stat().st_size > 1 << 20
    assert reading.read(root).ipis == dict.fromkeys(range(cpus), 7)


def test_the_command_gets_its_words_as_they_are(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    words = ["$(reboot)", "a b", "--json", "-n", "*", ";"]
    attempt("-n", "1", "--no-control", "--", sys.executable, "-c", script, str(seen), *words)
    assert seen.read_text() == repr(words)


def test_a_result_whose_command_cannot_be_shown_can_be_read(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = (
        "-n",
        "1",
        "-m",
        r"t=t (\d+):lower",
        "-o",
        str(file),
        "--",
        *teller(root),
        "\x1b[31m",
        "\udc80",
    )
    tried(*words)
    command = load(file, FORMAT).environment["command"]
    assert "\\x1b[31m" in command
    assert "\\udc80" in command


def test_every_round_runs_each_once_and_orders_differ() -> None:
    order = run.schedule(["a", "b", "c"], 20, random.Random(1))
    assert all(sorted(names) == ["a", "b", "c"] for names in order)
    assert len({tuple(names) for names in order}) == 6


def test_needs_neither_numpy_nor_jsonschema() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'scipy', 'jsonschema']))\n"
        "import lightsleep.trial.cli, lightsleep.enable.cli"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-program", "there is no such program"),
        ("/etc/passwd", "this is no executable file"),
    ],
)
def test_a_program_that_is_not_there_is_told_before_anything_is_changed(
    name: str, said: str, root: Path
) -> None:
    result = attempt("--", name)
    assert result.exit_code == 1
    assert f"cannot run {name}: {said}" in result.output
    assert not (root / "run/lightsleep").exists()

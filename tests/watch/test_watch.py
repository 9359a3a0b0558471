# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep watch``: what it shows, and how it ends."""

import errno
import io
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scan_trees import plant
from schemas import validator
from watched import CPU, count, snapshot

from lightsleep import terminal
from lightsleep.cli import main
from lightsleep.errors import LightsleepError
from lightsleep.scan.model import State, distinct_names
from lightsleep.watch import draw, openmetrics
from lightsleep.watch.model import Snapshot
from lightsleep.watch.rates import CpuRates, rates

pytest_plugins = "watched"

VALID = validator(
    json.loads((resources.files("lightsleep.watch") / "watch.schema.json").read_text())
)


def test_a_file_that_cannot_be_looked_up(four_cpus: Path, tmp_path: Path) -> None:
    result = watched("-n", "1", "--openmetrics", str(tmp_path / ("a" * 300)))
    assert result.exit_code == 1
    assert "File name too long" in result.stderr
    assert "does not end in .prom" in watched("--openmetrics", str(tmp_path / "a")).stderr


def watched(*words: str) -> Result:
    result = CliRunner().invoke(main, ["watch", "-i", "0.1", *words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_page(four_cpus: Path) -> None:
    lines = watched("-n", "1").stdout.splitlines()
    assert re.fullmatch(r"over [\d.]+ s: driver lightsleep, governor menu, mode adaptive", lines[0])
    assert lines[2].split("  ")[0] == "cpu"
    assert [line.split()[0] for line in lines[3:8]] == ["all", "0", "1", "2", "3"]
    assert "HALT %" in lines[2]
    assert "limit us" in lines[2]


def test_json_lines_follow_their_schema(four_cpus: Path) -> None:
    lines = watched("-n", "2", "--json", "-c", "0-1").stdout.splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(documents) == 2
    for document in documents:
        VALID.validate(document)
        assert [x["cpu"] for x in document["cpus"]] == [0, 1]
        assert document["span_s"] > 0


def test_the_names_of_figures_have_their_unit(four_cpus: Path) -> None:
    document = json.loads(watched("-n", "1", "--json").stdout)
    names = document["all"].keys() - {"cpu", "state_shares", "hit_rate"}
    assert [x for x in names if not re.search("_(share|per_s|ns|ms)$", x)] == []


def test_a_cpu_that_is_not_there_is_named(four_cpus: Path) -> None:
    """One that is offline may come back, and is then shown."""
    plant(four_cpus, f"{CPU}/online: 0-2\n{CPU}/offline: 3")
    assert watched("-n", "1", "-c", "0,3").exit_code == 0
    result = watched("-n", "1", "-c", "0,3,98-99")
    assert result.exit_code == 2
    assert "CPU 98-99 is not in this machine; there are CPUs 0-3" in result.output


def test_while_all_cpus_that_were_named_are_offline(four_cpus: Path, tmp_path: Path) -> None:
    plant(four_cpus, f"{CPU}/online: 0-1\n{CPU}/offline: 2-3")
    words = ("-n", "1", "-c", "2-3")
    said = watched(*words).stdout
    assert "s: no CPU is online whose counters can be read (see lightsleep scan -v); driver" in said
    document = json.loads(watched(*words, "--json").stdout)
    VALID.validate(document)
    assert document["cpus"] == []
    assert watched(*words, "--openmetrics", str(tmp_path / "x.prom")).exit_code == 0


def test_a_cpu_that_came_online_in_between_is_not_said_to_be_offline() -> None:
    before, after = Snapshot(1, None, None, None, {}), snapshot(2, count())
    view = draw.lines(after, rates(before, after), 1.0, sort="cpu", rows=None, width=None)
    assert view[0].startswith("over 1.0 s: no CPU was online at both readings; driver lightsleep")


def test_the_file_of_metrics_is_whole_and_readable(four_cpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "lightsleep.prom"
    umask = os.umask(0o077)
    try:
        assert watched("-n", "2", "--openmetrics", str(file)).output == ""
    finally:
        os.umask(umask)
    assert file.read_text().endswith("\n")
    assert 'lightsleep_polls_total{cpu="0"} 100000\n' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) & 0o044 == 0o044  # node_exporter is another user
    assert [x.name for x in tmp_path.glob("*prom*")] == ["lightsleep.prom"]


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_disk_that_is_full_for_a_while_ends_no_export(
    ends_well: bool, four_cpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, write = [], openmetrics.write

    def often_full(seen: Snapshot, file: Path) -> None:
        tries.append(file)
        if len(tries) in (2, 3) or (len(tries) == 4 and not ends_well):
            raise LightsleepError("cannot write: No space left on device")
        write(seen, file)

    monkeypatch.setattr(openmetrics, "write", often_full)
    done = watched("-n", "4", "--openmetrics", str(tmp_path / "x.prom"))
    assert len(tries) == 4
    assert done.exit_code == (0 if ends_well else 1)
    assert done.stderr.count("No space left on device; trying again") == 1


def test_no_file_of_metrics_is_written_through_a_link(four_cpus: Path, tmp_path: Path) -> None:
    """The folder may be that of node_exporter's user, and the command root's."""
    (tmp_path / "victim").touch(0o600)
    (tmp_path / "x.prom").symlink_to("victim")
    result = watched("-n", "1", "--openmetrics", str(tmp_path / "x.prom"))
    assert result.exit_code == 1
    assert "it is a link" in result.output
    victim = tmp_path / "victim"
    assert (stat.S_IMODE(victim.stat().st_mode), victim.read_text()) == (0o600, "")


def test_states_of_one_name_are_told_apart(four_cpus: Path) -> None:
    for state in (0, 1):
        plant(four_cpus, f"{CPU}/cpu{{0-3}}/cpuidle/state{state}/name: cluster-sleep-0")
    (line,) = watched("-n", "1", "--json").stdout.splitlines()
    document = json.loads(line)
    VALID.validate(document)
    assert [*document["all"]["state_shares"]] == ["cluster-sleep-0#0", "cluster-sleep-0#1"]


@given(st.lists(st.sampled_from(["C1", "C1#0", "C1#1", "C1#0#1", "C6"]), min_size=4, max_size=4))
def test_names_of_states_are_distinct(names: list[str]) -> None:
    states = [State(number, name, *[None] * 11) for number, name in enumerate(names)]
    found = [*distinct_names(states).values()]
    assert len(set(found)) == len(names)
    assert found.count("C6") == (names.count("C6") == 1)


def view(found: list[CpuRates], **options: Any) -> list[str]:
    defaults = {"sort": "cpu", "rows": None, "width": None}
    return draw.lines(snapshot(1), found, 1.0, **(defaults | options))


def test_256_cpus_fit_a_screen_the_busiest_first() -> None:
    found = [CpuRates(n, busy_share=n / 256, wakes_per_s=float(n)) for n in range(256)]
    lines = view(found, sort="wakes", rows=20, width=80)
    assert [line.split()[0] for line in lines[3:6]] == ["all", "255", "254"]
    assert lines[-1] == "236 more CPUs; --top, --sort and --cpus choose"
    assert len(lines) == 3 + 21 + 1
    assert max(map(len, lines)) <= 80


def test_a_narrow_screen_says_what_it_leaves_out() -> None:
    found = [CpuRates(0, busy_share=0.1, wakes_per_s=5.0, ipi_per_s=2.0, timer_per_s=1.0)]
    lines = view(found, width=24)
    assert max(map(len, lines[2:-1])) <= 24
    assert lines[-1] == "too narrow for: ipi/s, timer/s"


def test_what_no_cpu_shows_sorts_none_and_is_named() -> None:
    found = [CpuRates(n, busy_share=n / 4, wakes_per_s=float(n)) for n in range(4)]
    lines = view(found, sort="polls")
    assert lines[0].startswith("over 1.0 s: no CPU shows polls/s, so they are sorted by number; ")
    assert [line.split()[0] for line in lines[3:6]] == ["all", "0", "1"]
    for sort in ("wakes", "cpu"):
        assert "sorted" not in view(found, sort=sort)[0]
    one_polls = [*found, CpuRates(4, polls_per_s=0.0)]
    assert "sorted" not in view(one_polls, sort="polls")[0]


def test_a_driver_of_another_version_is_named(four_cpus: Path) -> None:
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: 1 2 3")
    lines = watched("-n", "1").stdout.splitlines()
    assert lines[0].endswith(
        ", but the driver's own counters cannot be read (see lightsleep status)"
    )
    assert "HALT %" in lines[2]
    assert len(json.loads(watched("-n", "1", "--json").stdout)["cpus"]) == 4


def test_a_cpu_in_a_pause_is_shown_with_how_long_it_lasts() -> None:
    polls = CpuRates(1, polls_per_s=0.0, limit_ns=50_000, halt_cost_ns=25_000)
    paused = replace(polls, cpu=0, limit_ns=0, paused_share=1.0, pause_left_ms=11_400)
    head, _, titles, *rows = view([paused, polls])
    assert head.startswith(
        "over 1.0 s: 1 CPU finds its host short of cores, for up to 12 s more; driver"
    )
    limits = [row[: titles.index("limit us") + len("limit us")].split("  ")[-1] for row in rows]
    assert [x.strip() for x in limits] == ["-", "paused 12 s", "50.0"]
    assert "paused %" in titles
    head = view([paused, polls, replace(paused, cpu=2, pause_left_ms=15_900)])[0]
    assert "s: 2 CPUs find their host short of cores, for up to 16 s more; driver" in head
    fixed = snapshot(1)._replace(mode="fixed")
    polls_on = replace(paused, limit_ns=100_000)
    lines = draw.lines(fixed, [polls_on], 1.0, sort="cpu", rows=None, width=None)
    assert "short of cores" not in lines[0]
    assert "100 " in lines[-1]


def test_pauses_are_in_the_json(four_cpus: Path) -> None:
    (before,) = {x["paused_share"] for x in json.loads(watched("-n", "1", "--json").stdout)["cpus"]}
    assert before is None  # of a driver that does not tell
    stat = (four_cpus / f"{CPU}/cpu3/lightsleep/stat").read_text().strip()
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {stat} 16000000000 15900")
    document = json.loads(watched("-n", "1", "--json").stdout)
    VALID.validate(document)
    assert [x["pause_left_ms"] for x in document["cpus"]] == [15_900] * 4
    assert document["all"]["paused_share"] == 0
    assert document["all"]["pause_left_ms"] is None


def test_a_host_that_is_short_of_cores_is_named(four_cpus: Path) -> None:
    file = "sys/module/cpuidle_lightsleep/parameters/host_is_short"
    for word, short in (("0", False), ("1", True)):
        plant(four_cpus, f"{file}: {word}")
        lines = watched("-n", "1").stdout.splitlines()
        told = "no latency limit counts: the host is short of cores"
        assert lines[0].endswith(f", {told}") == short
        assert json.loads(watched("-n", "1", "--json").stdout)["host_is_short"] is short
    (four_cpus / file).unlink()
    assert json.loads(watched("-n", "1", "--json").stdout)["host_is_short"] is None


def test_cpus_that_spin_are_said_to(four_cpus: Path) -> None:
    plant(four_cpus, "proc/cmdline: idle=poll")
    lines = watched("-n", "1").stdout.splitlines()
    assert lines[0].endswith(", idle CPUs spin (idle=poll)")
    assert "asleep" not in lines[2]


def test_without_a_driver_it_says_so() -> None:
    nothing = Snapshot(1, None, None, None, {})
    assert (
        "driver none: nothing counts idle states"
        in draw.lines(nothing, [], 1.0, sort="cpu", rows=None, width=None)[0]
    )


@pytest.mark.parametrize(
    "words", [["-i", "0"], ["-i", "nan"], ["-i", "x"], ["--sort", "x"], ["--top", "0"], ["-n", "0"]]
)
def test_wrong_words(words: list[str], four_cpus: Path) -> None:
    assert watched("-n", "1", *words).exit_code == 2


def test_a_name_that_node_exporter_never_reads(four_cpus: Path, tmp_path: Path) -> None:
    (tmp_path / "there.txt").touch()
    for name in ("lightsleep", "there.txt", "lightsleep.prom.txt"):
        refused = watched("-n", "1", "--openmetrics", str(tmp_path / name))
        assert refused.exit_code == 2
        assert "whose name does not end in .prom" in " ".join(refused.output.split())
    assert watched("-n", "1", "--openmetrics", "/dev/null").exit_code == 0


def test_json_and_metrics_exclude_each_other(four_cpus: Path, tmp_path: Path) -> None:
    assert watched("--json", "--openmetrics", str(tmp_path / "x.prom")).exit_code == 2


@pytest.mark.parametrize(
    ("output", "words"),
    [(["--json"], ["--top", "5"]), (["--json"], ["--sort", "cpu"])]
    + [(["--openmetrics", "x.prom"], words) for words in (["--top", "5"], ["--sort", "wakes"])],
)
def test_only_a_view_has_an_order(
    output: list[str], words: list[str], four_cpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(four_cpus)
    result = watched("-n", "1", *output, *words)
    assert result.exit_code == 2
    assert f"{words[0]} has no effect with {output[0]}: leave out {words[0]}" in result.output
    assert not (four_cpus / "x.prom").exists()


WATCH = [sys.executable, "-m", "lightsleep", "watch", "-i", "0.1"]


# systemd ends a service by SIGTERM, and a terminal that closes is lost.
ENDS = {signal.SIGINT: 0, signal.SIGTERM: 0, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_a_signal_ends_it_well(number: signal.Signals) -> None:
    command = [*WATCH, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == ENDS[number]
    assert errors == b""


def test_a_service_that_is_stopped_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    with subprocess.Popen([*WATCH, "--openmetrics", file]) as process:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
    assert process.returncode == 0
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("a_terminal", "variables", "moves"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, False),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),
        (False, {"TERM": "xterm", "TTY_COMPATIBLE": "1"}, False),
    ],
)
def test_only_a_screen_is_drawn_anew(
    a_terminal: bool, variables: dict[str, str], moves: bool
) -> None:
    reader, writer = pty.openpty() if a_terminal else os.pipe()
    said = b""
    with subprocess.Popen(WATCH, stdout=writer, env=os.environ | variables) as process:
        while b"over" not in said:
            said += os.read(reader, 4096)
        process.send_signal(signal.SIGINT)
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert process.returncode == 0
    assert (b"\x1b" in said) == moves


def test_no_line_is_wider_than_the_screen() -> None:
    """The terminal would wrap it, and the first line would be gone."""
    reader, writer = pty.openpty()
    said, size = b"", {"TERM": "xterm", "COLUMNS": "40", "LINES": "24"}
    with subprocess.Popen(WATCH, stdout=writer, env=os.environ | size) as process:
        while said.count(b"\x1b[J") < 2:
            said += os.read(reader, 4096)
        process.send_signal(signal.SIGINT)
    for descriptor in (reader, writer):
        os.close(descriptor)
    shown = said[said.index(b"over") :]
    # Some terminals still have the cursor on the last character of a line that fills the screen.
    assert not re.search(rb"[^\x1b\r\n]{40}\x1b\[[JK]", said)
    shown = shown.replace(b"\x1b[H", b"\n")  # the cursor goes home: another view begins
    lines = re.sub(rb"\x1b\[[^A-Za-z]*[A-Za-z]", b"", shown).splitlines()
    assert max(map(len, lines)) == 40


def test_progress_needs_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with terminal.progress() as tell:
        tell("CPU 1", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("has_end", [True, False])
def test_what_has_no_end_has_no_bar(
    has_end: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "has_screen", lambda _: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with terminal.progress(has_end) as tell:
        tell("recording, 3 s", 3, 6 if has_end else None)
    shown = capsys.readouterr().err
    assert "recording, 3 s" in shown
    assert ("━" in shown) == has_end


class Lost(io.StringIO):
    """A terminal that goes after so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(text)


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 99])
def test_a_terminal_that_is_lost_shows_no_more(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "has_screen", lambda _: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    before, screen = sys.stdout, Lost(writes)
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress() as tell:
        for done in (1, 2, 3):
            tell(f"{done} of 3", done, 3)
    assert ("3 of 3" in screen.getvalue()) == (writes == 99)
    assert (sys.stdout, sys.stderr) == (before, screen)


@pytest.mark.parametrize("writes", [0, 4])
def test_what_fails_under_a_progress_is_not_taken_for_a_lost_terminal(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "has_screen", lambda _: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Lost(writes))
    with pytest.raises(FileNotFoundError), terminal.progress():
        Path("/nowhere/at/all").read_text()


def test_needs_neither_numpy_nor_prometheus() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'prometheus_client']))\n"
        "import lightsleep.watch.cli"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

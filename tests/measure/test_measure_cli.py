# SPDX-License-Identifier: GPL-2.0-only
"""The command, on machines in a folder, with samples made up by a backend of known truth."""

import csv
import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from measure_fakes import FakeBackend
from measure_runs import CPU, SCHEMA, measured, rows, run
from scan_trees import plant, unfold

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.measure import cli
from lightsleep.measure.model import Batch, Sample
from lightsleep.measure.result import FORMAT

pytest_plugins = "measure_runs"


# What comes out.


def test_a_document_with_every_row(power9: FakeBackend) -> None:
    document = measured("-c", "1,5", "-n", "100")
    assert {(x["cpu"], x["source"], x["name"]) for x in document["rows"]} == {
        (cpu, source, name)
        for cpu in (1, 5)
        for source, names in {
            "timer": ["busy", "snooze", "stop0_lite", "stop0", "stop1"],
            "ipi": ["busy", "snooze", "stop0_lite", "stop0", "stop1"],
            "store": ["busy", "snooze"],
        }.items()
        for name in names
    }
    for row in document["rows"]:
        assert row["raw"]["count"] == len(row["latencies_ns"]) == 100
        assert row["invalid"] == {}
        assert row["source_cpu"] == (None if row["source"] == "timer" else row["source_cpu"])
        assert (row["subtracted"] is None) == (row["kind"] == "busy")
    (stop0,) = rows(document, cpu=5, source="ipi", name="stop0")
    assert (stop0["state"], stop0["advertised_us"], stop0["residency_us"]) == (2, 2, 20)
    assert stop0["path"] == "ipi"
    assert stop0["usage"] == 100
    assert abs(stop0["subtracted"]["p50_ns"] - 20_000) < 200
    assert document["mode"] == "module"
    assert document["environment"]["cpuidle_driver"] == "powernv_idle"
    assert document["settings"]["cpus"] == [1, 5]
    described = SCHEMA["properties"]
    for part in ("environment", "settings"):
        assert document[part].keys() == described[part]["properties"].keys()


def test_an_interrupt_that_the_busy_cpu_took_is_not_subtracted_where_none_was_sent(
    power9: FakeBackend,
) -> None:
    for nth, judged in ((1, False), (20, True)):  # of so many wakes, one is spared the IPI
        taken = iter(range(10**6))

        def fate(batch: Batch, one: Sample, nth: int = nth, taken: Iterator[int] = taken) -> Sample:
            spared = batch.source == "ipi" and batch.requested == "3" and next(taken) % nth == 0
            return dataclasses.replace(one, path="none") if spared else one

        power9.fate = fate
        (stop1,) = rows(measured("-c", "1", "-s", "stop1", "--source", "ipi"), name="stop1")
        assert (stop1["subtracted"] is not None) == judged
        assert ("measure with --source store" in stop1["verdict"]["text"]) != judged
        shown = run("-c", "1", "-s", "stop1", "--source", "ipi").stdout
        assert ("some or all wakeups took no IPI" in shown) != judged
        assert ("ipi*" in shown) != judged


def test_wakes_that_did_not_come_are_named_without_being_asked_for(power9: FakeBackend) -> None:
    taken = iter(range(10**6))

    def fate(batch: Batch, one: Sample) -> Sample:
        lost = batch.requested == "3" and next(taken) % 10 == 0
        return dataclasses.replace(one, verdict="timeout") if lost else one

    power9.fate = fate
    result = run("-c", "1", "-s", "stop1", "--source", "timer")
    said = " ".join(result.stdout.split())
    assert "CPU 1 stop1 by timer, not counted:" in said
    assert "wakes took longer than a sample may" in said
    assert "agrees" not in said


def test_verdicts_follow_the_truth(power9: FakeBackend) -> None:
    document = measured("-c", "1", "--source", "ipi")
    kinds = {x["name"]: x["verdict"]["kind"] for x in document["rows"]}
    assert kinds == {
        "busy": "baseline",
        "snooze": "agrees",
        "stop0_lite": "agrees",
        "stop0": "optimistic",
        "stop1": "agrees",
    }


def test_the_table(power9: FakeBackend) -> None:
    result = run("-c", "1", "--source", "ipi")
    assert result.exit_code == 0
    (line,) = (x for x in result.stdout.splitlines() if x.startswith("stop0 "))
    assert "optimistic by" in line
    assert "CPU 1, woken by CPU" in result.stdout
    assert "note: CPUs share cores" in result.stdout
    assert "\x1b" not in result.stdout


def test_progress_on_a_terminal_only(power9: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("-c", "1", "-n", "20").stderr.strip() == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("lightsleep.terminal.has_screen", lambda _: True)
    shown = run("-c", "1", "-n", "20").stderr
    assert "CPU 1" in shown
    assert "0:00:00" in shown


def test_many_cpus_are_folded(power9: FakeBackend) -> None:
    result = run("-n", "20", "--seed", "1", "--source", "ipi")
    lines = [x for x in result.stdout.splitlines() if x.startswith("stop0 ")]
    assert len(lines) == 1
    assert lines[0].rstrip().endswith("0-7")
    assert "from the lowest to the highest of the CPUs" in " ".join(result.stdout.split())
    assert "95 % interval" not in result.stdout
    each = run("-n", "20", "-v", "--source", "ipi").stdout
    assert len(each.splitlines()) > 40
    assert "with its 95 % interval" in " ".join(each.split())


def test_of_cpus_that_share_a_line_the_factor_that_is_furthest_off_is_named(
    power9: FakeBackend,
) -> None:
    def fate(batch: Batch, one: Sample) -> Sample:
        late_ns = 10_000 * batch.dest if batch.requested == "2" else 0
        return dataclasses.replace(one, latency_ns=one.latency_ns + late_ns)

    power9.fate = fate
    result = run("-n", "100", "--source", "ipi")  # of 20, too few may be independent
    (line,) = (x for x in result.stdout.splitlines() if x.startswith("stop0 "))
    # 20 us on CPU 0, 90 us on CPU 7, and 2 us advertised.
    assert re.search(r" optimistic by up to 4[45](\.\d)?x 0-7$", " ".join(line.split()))


def test_files(power9: FakeBackend, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    result = run("-c", "1", "-n", "20", "-o", "old.json", "--csv", "new/raw.csv")
    assert result.exit_code == 0, result.output
    assert load(tmp_path / "old.json", FORMAT).settings["samples"] == 20
    with (tmp_path / "new/raw.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == [column.name for column in dataclasses.fields(Sample)]
    assert len(table) == 20 * 12
    assert {x["verdict"] for x in table} == {"ok"}


def test_a_source_named_twice_is_measured_once(power9: FakeBackend) -> None:
    document = measured("-c", "1", "-n", "20", "--source", "ipi", "--source", "ipi")
    assert len(document["rows"]) == 5


def test_a_seed_is_recorded_and_repeats(power9: FakeBackend) -> None:
    assert measured("-c", "1", "-n", "20", "--seed", "7")["settings"]["seed"] == 7
    first = [*power9.batches]
    power9.batches.clear()
    measured("-c", "1", "-n", "20", "--seed", "7")
    assert power9.batches == first


@pytest.mark.parametrize("machine", ["no-cpuidle", "kvm-haltpoll", "intel-laptop", "arm64-psci"])
def test_other_machines(machine: str, power9: FakeBackend, tmp_path: Path) -> None:
    assert power9.root
    shutil.rmtree(power9.root)
    unfold(machine, power9.root)
    if machine == "no-cpuidle":
        power9.root = None
    power9.truth_ns = dict.fromkeys(range(10), 1000)
    document = measured("-c", "0-1", "-n", "20")
    assert document["rows"]
    if machine == "no-cpuidle":
        (row, *_) = rows(document, kind="state")
        assert (row["name"], row["state"], row["advertised_us"]) == ("default", 1, None)
        assert row["verdict"]["kind"] == "nothing-advertised"


@pytest.mark.parametrize(
    ("governor", "available", "meanwhile"),
    [
        # In the order in which kernels list them.
        ("haltpoll", "ladder menu teo haltpoll", "menu"),
        ("haltpoll", "ladder teo haltpoll", "teo"),
        ("haltpoll", "ladder haltpoll", "haltpoll"),
        ("haltpoll", "haltpoll", "haltpoll"),
        ("ladder", "ladder menu", "menu"),
        ("ladder", "ladder", "ladder"),
        ("foreign", "menu foreign", "menu"),
        ("foreign", "foreign", "foreign"),
        ("teo", "menu teo", "teo"),
        ("menu", "ladder menu teo", "menu"),
    ],
)
def test_only_governors_that_obey_govern_meanwhile(
    governor: str, available: str, meanwhile: str, power9: FakeBackend
) -> None:
    assert power9.root
    shutil.rmtree(power9.root)
    root = unfold("kvm-haltpoll", power9.root)
    plant(root, f"{CPU}/cpuidle/available_governors: {available}")
    plant(root, f"{CPU}/cpuidle/current_governor: {governor}")
    file, seen, take = root / CPU / "cpuidle/current_governor", set(), power9.run

    def run_seen(batch: Batch) -> list[Sample]:
        seen.add(file.read_text().strip())
        return take(batch)

    power9.run = run_seen  # type: ignore[method-assign]
    power9.truth_ns = dict.fromkeys(range(10), 1000)
    document = measured("-c", "0", "-n", "20")
    assert seen == {meanwhile}
    assert file.read_text() == f"{governor}\n"
    assert document["environment"]["governor"] == governor
    said = [note for note in document["notes"] if "that are disabled" in note]
    if governor in ("menu", "teo"):
        assert said == []
    elif meanwhile == governor:
        assert [f"{governor} may choose" in note for note in said] == [True]
        assert said[0].startswith("no governor menu or teo can be chosen on this kernel, and ")
        assert "do not trust a verdict that a state is never entered" in said[0]
    else:
        assert [f"the governor {meanwhile}: {governor} may choose" in x for x in said] == [True]


# Things a user can do wrong.


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["-c", "3-x"], 2, "'3-x' is not a CPU"),
        (["-c", ""], 2, "names no CPU"),
        (["-c", "60"], 2, "CPU 60 is not online; online are 0-7"),
        (["--source-cpu", "9"], 2, "CPU 9 is not online"),
        (["--source-cpu", "1", "--source", "timer"], 2, "a timer wakes its own CPU"),
        (["--json", "-v"], 2, "leave out --verbose"),
        (["-s", "C6"], 2, "'-s' / '--state': no idle state 'C6'; there are: 0 snooze, 1 stop"),
        (["-n", "0"], 2, "0 is not in the range"),
        (["-n", "100000"], 2, "is not in the range"),
        (["--source", "smoke"], 2, "'smoke' is not one of"),
        (["--source", "device"], 4, "nothing to measure: device: no device"),
        (["-c", "1", "--source-cpu", "1"], 2, "CPU 1 cannot wake itself by ipi, store"),
        (["-o", "file/x.json"], 1, "cannot write file/x.json: Not a directory"),
        (["--csv", "/proc/x.csv"], 1, "cannot write /proc/x.csv"),
        (["-o", "loop"], 1, "cannot write loop: Too many levels of symbolic links"),
        (["-o", "n" * 256], 1, "File name too long"),
        (["-o", "."], 2, "is a directory"),
        (["-o", "new/x.json", "--csv", "/proc/x.csv"], 1, "cannot write /proc/x.csv"),
        (["-o", "x", "--csv", "./x"], 2, "-o and --csv both name x"),
        (["--load", "--mode", "userspace"], 2, "does not use the module that --load loads"),
    ],
)
def test_user_errors(
    arguments: list[str], status: int, complaint: str, power9: FakeBackend, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    result = run("-n", "20", *arguments)
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "new").exists()
    assert complaint in " ".join(result.output.split())
    assert result.exit_code == status
    assert not power9.batches


def test_without_root(power9: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run()
    assert result.exit_code == 1
    assert "measuring changes settings of the machine: run it as root (sudo)" in result.output


def full(path: Path, _: object) -> None:
    raise LightsleepError(f"cannot write {path}: No space left on device")


def test_a_full_disk_loses_no_result(power9: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "write_json", full)
    result = run("-c", "1", "-n", "20", "--json", "-o", "out.json", "--csv", "out.csv")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"]
    assert "cannot write out.json: No space left on device" in result.stderr
    assert Path("out.csv").exists()


@pytest.mark.parametrize("why", [errno.EPIPE, errno.ENOSPC])
def test_what_cannot_be_shown_is_written(
    why: int, power9: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(cli, "render", gone)
    result = run("-c", "1", "-n", "20", "-o", "out.json", "--csv", "out.csv")
    assert result.exit_code == 1
    assert load(Path("out.json"), FORMAT).rows
    assert Path("out.csv").exists()


def test_needs_only_click_and_rich() -> None:
    program = (
        "import sys; before = set(sys.modules); import lightsleep.measure.cli as cli\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    allowed = {"lightsleep", "click", "rich", "pygments", "markdown_it", "mdurl"}
    assert set(done.stdout.split()) <= allowed

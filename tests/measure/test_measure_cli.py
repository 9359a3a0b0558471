# SPDX-License-Identifier: GPL-2.0-only
"""The command, on machines in a folder, with samples made up by a backend of known truth."""

import csv
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import journals
import pytest
from measure_fakes import FakeBackend, sample
from measure_runs import TRUTH_NS, VALID, measured, run
from scan_trees import plant, unfold

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.measure import cli, module
from lightsleep.measure.kernel_backend import CpuBusy, CpuGone, NotPermitted
from lightsleep.measure.load import FORMAT
from lightsleep.measure.model import Batch, Sample

CPU = "sys/devices/system/cpu"
Machine = Callable[..., FakeBackend]


@pytest.fixture
def power9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    root = unfold("powernv-power9", tmp_path / "machine")
    monkeypatch.setattr(cli, "ROOT", root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # /run, where the journal is, has no disk
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend(dict(TRUTH_NS), root)

    monkeypatch.setattr(module, "attached", lambda *_: backend)
    return backend


def knobs(root: Path) -> dict[str, str]:
    return {str(x): x.read_text() for x in sorted(root.glob(f"{CPU}/cpu*/cpuidle/*/disable"))}


def rows(document: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    return [x for x in document["rows"] if all(x[key] == value for key, value in wanted.items())]


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


@pytest.mark.parametrize("others", ["menu ladder ", ""])
def test_haltpoll_does_not_govern_meanwhile(
    others: str, power9: FakeBackend, tmp_path: Path
) -> None:
    assert power9.root
    shutil.rmtree(power9.root)
    root = unfold("kvm-haltpoll", power9.root)
    plant(root, f"{CPU}/cpuidle/available_governors: {others}haltpoll")
    governor, seen, take = root / CPU / "cpuidle/current_governor", set(), power9.run
    before = governor.read_text()
    assert before == "haltpoll\n"

    def run_seen(batch: Batch) -> list[Sample]:
        seen.add(governor.read_text().strip())
        return take(batch)

    power9.run = run_seen  # type: ignore[method-assign]
    power9.truth_ns = dict.fromkeys(range(10), 1000)
    document = measured("-c", "0", "-n", "20")
    assert seen == {"menu" if others else "haltpoll"}
    assert governor.read_text() == before
    said = "measured under the governor menu: haltpoll" if others else "no governor but haltpoll"
    assert [said in note for note in document["notes"]].count(True) == 1
    assert document["environment"]["governor"] == "haltpoll"


# Things that go wrong on the machine.


def test_what_cannot_be_set_back_fails_a_measurement_that_is_shown(
    power9: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = journals.refuse_to_set_back(monkeypatch)
    result = run("--json", "-c", "5", "-n", "20")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["rows"]
    assert refused in document["notes"]
    assert f"Error: measured, but not set back: {refused}" in " ".join(result.stderr.split())


def test_a_state_that_is_never_entered(power9: FakeBackend) -> None:
    def fate(batch: Batch, sample: Sample) -> Sample:
        if batch.requested != "3":
            return sample
        return dataclasses.replace(sample, entered=1, verdict="wrong-state")

    power9.fate = fate
    document = measured("-c", "1", "--source", "ipi")
    (row,) = rows(document, name="stop1")
    assert (row["raw"], row["subtracted"], row["usage"]) == (None, None, 0)
    assert row["verdict"]["kind"] == "not-entered"
    assert "in stop0_lite instead" in row["verdict"]["text"]
    assert set(row["invalid"]) == {"wrong-state"}
    assert row["invalid"]["wrong-state"] < 100


def test_a_state_that_the_driver_refuses_has_no_samples(power9: FakeBackend) -> None:
    """The idle loop asks for it again and again, so it looks entered, but is not."""
    power9.root = None  # nothing counts entries
    (row,) = rows(measured("-c", "1", "--source", "ipi", "-n", "20"), name="stop1")
    assert (row["latencies_ns"], row["raw"], row["usage"]) == ([], None, 0)
    assert row["verdict"]["kind"] == "not-entered"
    assert row["invalid"] == {"not-entered": 20}


@pytest.mark.parametrize("counter", ["rejected", "none"])
def test_a_state_is_accused_only_where_the_cpu_idled(counter: str, power9: FakeBackend) -> None:
    """A driver that refuses a state counts that; a CPU that has other things to do, nothing."""
    assert power9.root
    refused = power9.root / f"{CPU}/cpu1/cpuidle/state3" / counter
    plant(power9.root, f"{CPU}/cpu1/cpuidle/state{{0-3}}/rejected: 0")

    def fate(batch: Batch, sample: Sample) -> Sample:
        if batch.requested != "3":
            return sample
        refused.write_text(str(len(power9.batches) * 1000))
        return dataclasses.replace(sample, entered=-1, verdict="not-idle")

    power9.fate = fate
    (row,) = rows(measured("-c", "1", "--source", "ipi"), name="stop1")
    assert row["usage"] == 0
    if counter == "rejected":
        assert row["verdict"]["kind"] == "not-entered"
    else:
        assert row["verdict"]["kind"] == "too-noisy"
        assert row["verdict"]["text"].startswith("the CPU was busy: ")


def test_invalid_samples_are_topped_up(power9: FakeBackend) -> None:
    def fate(batch: Batch, sample: Sample) -> Sample:
        spoiled = power9.rng.random() < 0.5
        return dataclasses.replace(sample, verdict="unsettled") if spoiled else sample

    power9.fate = fate
    for row in measured("-c", "1", "-n", "60")["rows"]:
        assert len(row["latencies_ns"]) == 60
        assert row["invalid"]["unsettled"] > 10
    assert "not counted: " in run("-c", "1", "-n", "60", "-v").stdout


def test_what_a_killed_command_left_is_not_how_the_machine_is(power9: FakeBackend) -> None:
    assert power9.root
    stop1 = power9.root / CPU / "cpu1/cpuidle/state3/disable"
    journals.leave(power9.root, "measure", journals.knob(stop1, "0", "1"))
    document = measured("-c", "1")
    assert rows(document, name="stop1")
    assert not [note for note in document["notes"] if "is disabled" in note]
    assert "an earlier lightsleep measure was killed" in document["notes"][-1]
    assert stop1.read_text() == "0\n"


def test_cpus_that_this_process_may_not_use_cost_no_samples_of_others(power9: FakeBackend) -> None:
    take = power9.run

    def run_where_permitted(batch: Batch) -> list[Sample]:
        if batch.dest == 5:
            raise NotPermitted("a cpuset does not let this process use CPUs 1,5")
        return take(batch)

    power9.run = run_where_permitted  # type: ignore[method-assign]
    document = measured("-c", "1,5", "-n", "100")
    assert "a cpuset does not let this process use CPUs 1,5" in document["notes"]
    assert all(len(x["latencies_ns"]) == 100 for x in rows(document, cpu=1))
    alone = run("-c", "5", "-n", "100")
    assert alone.exit_code == 1
    assert "a cpuset does not let this process use CPUs 1,5" in alone.stderr


def test_counts_that_begin_again_are_not_known(power9: FakeBackend) -> None:
    """As where a CPU goes and comes back within a batch, under a driver that then counts anew."""
    assert power9.root
    usage = power9.root / CPU / "cpu1/cpuidle/state3/usage"
    usage.write_text("1000000\n")
    take = power9.run

    def run_and_begin_again(batch: Batch) -> list[Sample]:
        samples = take(batch)
        usage.write_text("3\n")
        return samples

    power9.run = run_and_begin_again  # type: ignore[method-assign]
    measured("-c", "1", "-s", "stop1", "--source", "ipi")  # the schema has no negative counts


def test_a_cpu_that_goes_offline_keeps_what_was_measured(power9: FakeBackend) -> None:
    take = power9.run

    def run_until_offline(batch: Batch) -> list[Sample]:
        if batch.dest == 5 and len(power9.batches) > 10:
            assert power9.root
            plant(power9.root, f"{CPU}/online: 0-4,6-7")
            shutil.rmtree(power9.root / CPU / "cpu5/cpuidle", ignore_errors=True)
            raise CpuGone("dest=5: CPU 5 is offline")
        return take(batch)

    power9.run = run_until_offline  # type: ignore[method-assign]
    document = measured("-c", "1,5", "-n", "100")
    assert "dest=5: CPU 5 is offline" in document["notes"]
    assert "CPU 5 went offline: its samples up to then are kept" in document["notes"]
    assert all(len(x["latencies_ns"]) == 100 for x in rows(document, cpu=1))
    assert any(x["verdict"]["kind"] == "too-few" for x in rows(document, cpu=5))


@pytest.mark.parametrize("goes", [True, False], ids=["offline", "driver unloaded"])
def test_knobs_may_go_before_their_cpu(
    goes: bool, power9: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, take = power9.root, power9.run
    assert root

    def run_until_gone(batch: Batch) -> list[Sample]:
        knobs = root / CPU / "cpu5/cpuidle"
        if batch.dest == 5 and not knobs.exists():
            raise CpuGone("dest=5: no idle states")
        samples = take(batch)
        if batch.dest == 5 and len(power9.batches) > 10:
            shutil.rmtree(knobs, ignore_errors=True)
        return samples

    def sleep(_: float) -> None:
        if goes:
            plant(root, f"{CPU}/online: 0-4,6-7")

    power9.run = run_until_gone  # type: ignore[method-assign]
    monkeypatch.setattr("lightsleep.measure.run.time.sleep", sleep)
    monkeypatch.setattr("lightsleep.measure.run.OFFLINE_S", 60.0 if goes else 0.1)
    if goes:
        notes = measured("-c", "1,5", "-n", "100")["notes"]
        assert "CPU 5 went offline: its samples up to then are kept" in notes
    else:
        result = run("-c", "1,5", "-n", "100")
        assert result.exit_code == 1
        assert "No such file or directory" in result.stderr


def test_a_state_that_somebody_else_disables_meanwhile_stays_so(power9: FakeBackend) -> None:
    root, take = power9.root, power9.run
    assert root
    knob = root / CPU / "cpu5/cpuidle/state1/disable"

    def run_meddled(batch: Batch) -> list[Sample]:
        if knob.read_text() == "2\n":  # a busy CPU is measured with its states as they are
            return [sample(batch, 1000) for _ in range(batch.samples)]
        samples = take(batch)
        if knob.read_text() == "1\n":
            knob.write_text("2\n")  # nobody but a meddler writes a 2
        return samples

    power9.run = run_meddled  # type: ignore[method-assign]
    notes = measured("-c", "5", "-n", "100")["notes"]
    assert any("set to 2 by somebody else meanwhile" in note for note in notes)
    assert knob.read_text() == "2\n"


def test_stolen_time_is_noted_and_spoils_accusations(power9: FakeBackend) -> None:
    assert power9.root
    take, ticks = power9.run, 0

    def run_stolen(batch: Batch) -> list[Sample]:
        nonlocal ticks
        ticks += 100
        plant(power9.root, f"proc/stat: cpu1 0 0 0 {ticks} 0 0 0 {ticks // 4} 0 0")  # type: ignore[arg-type]
        return take(batch)

    def fate(batch: Batch, sample: Sample) -> Sample:
        # What is not stolen from is as fast as advertised.
        spared = batch.requested == "2" and power9.rng.random() < 0.3
        return dataclasses.replace(sample, latency_ns=3500) if spared else sample

    plant(power9.root, "proc/stat: cpu1 0 0 0 0 0 0 0 0 0 0")
    power9.fate = fate
    power9.run = run_stolen  # type: ignore[method-assign]
    document = measured("-c", "1", "--source", "ipi")
    assert "the host stole 20% of the time of CPU 1" in document["notes"]
    (row,) = rows(document, name="stop0")
    assert row["verdict"]["kind"] == "too-noisy"


def test_a_latency_limit_is_noted(power9: FakeBackend) -> None:
    assert power9.root
    plant(power9.root, f"{CPU}/cpu1/power/pm_qos_resume_latency_us: 3")
    notes = measured("-c", "1", "-n", "20")["notes"]
    assert any("CPU 1: a PM QoS latency limit of 3 us excludes stop1" in note for note in notes)


def test_a_cpu_that_is_too_busy_costs_no_samples_of_others(power9: FakeBackend) -> None:
    take, asked = power9.run, []

    def run_where_idle(batch: Batch) -> list[Sample]:
        asked.append(batch.dest)
        if batch.dest == 5:
            raise CpuBusy("CPU 5 is too busy")
        return take(batch)

    power9.run = run_where_idle  # type: ignore[method-assign]
    document = measured("-c", "1,5", "-n", "100")
    assert "CPU 5 is too busy" in document["notes"]
    assert asked.count(5) == 1  # each further batch would take minutes to find out
    assert all(len(x["latencies_ns"]) == 100 for x in rows(document, cpu=1))
    alone = run("-c", "5", "-n", "100")
    assert (alone.exit_code, alone.stderr) == (1, "Error: CPU 5 is too busy\n")


@pytest.mark.parametrize(
    ("trouble", "status", "why"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (SystemExit(143), 143, "interrupted"),
        (LightsleepError("the module is gone"), 1, "the module is gone"),
        (RuntimeError("a bug"), 1, None),
    ],
    ids=["SIGINT", "SIGTERM", "error", "bug"],
)
@pytest.mark.parametrize("batches", [0, 5])
def test_what_was_measured_before_an_early_end_is_kept(
    batches: int,
    trouble: BaseException,
    status: int,
    why: str | None,
    power9: FakeBackend,
    tmp_path: Path,
) -> None:
    assert power9.root
    plant(power9.root, f"{CPU}/cpu1/cpuidle/state2/disable: 1")
    before = knobs(power9.root)
    take = power9.run

    def run_into_trouble(batch: Batch) -> list[Sample]:
        if len(power9.batches) == batches:
            assert power9.root
            assert not batches or knobs(power9.root) != before  # the first may be of a busy CPU
            raise trouble
        return take(batch)

    power9.run = run_into_trouble  # type: ignore[method-assign]
    result = run("-s", "stop1", "-s", "stop0", "-c", "1", "-o", "out.json", "--csv", "out.csv")
    assert knobs(power9.root) == before
    assert result.exit_code == status
    if not (batches and why):
        assert result.stdout == ""
        assert not list(tmp_path.glob("out.*"))
        return
    assert f"ended early, and shows only what was measured: {why}" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    VALID.validate(document)
    assert sum(len(x["latencies_ns"]) for x in document["rows"]) > 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) > 1


def test_states_are_set_back_after_success(power9: FakeBackend) -> None:
    assert power9.root
    plant(power9.root, f"{CPU}/cpu{{1,3}}/cpuidle/state2/disable: 1")
    before = knobs(power9.root)
    measured("-n", "20", "-s", "2", "-s", "snooze")
    assert knobs(power9.root) == before


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
        (["-s", "C6"], 2, "no idle state 'C6'; there are: 0 snooze, 1 stop0_lite, 2 stop0"),
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
    assert "only root may do: use sudo" in result.output


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

# SPDX-License-Identifier: GPL-2.0-only
"""Measuring while things go wrong on the machine: what is kept, and what is set back."""

import csv
import dataclasses
import json
import shutil
import signal
from collections import Counter
from pathlib import Path

import journals
import pytest
from measure_fakes import FakeBackend, sample
from measure_runs import CPU, VALID, knobs, measured, rows, run
from scan_trees import plant

from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.measure import noise
from lightsleep.measure.kernel_backend import CpuBusy, CpuGone, NotPermitted
from lightsleep.measure.model import Batch, Sample
from lightsleep.measure.noise import Ticks
from lightsleep.settings.restorer_process import RestorerProcess

pytest_plugins = "measure_runs"


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
    document = measured("-c", "1", "--source", "ipi", "-n", "20", "--csv", "raw.csv")
    (row,) = rows(document, name="stop1")
    assert (row["latencies_ns"], row["raw"], row["usage"]) == ([], None, 0)
    assert row["verdict"]["kind"] == "not-entered"
    assert row["invalid"] == {"not-entered": 20}
    with Path("raw.csv").open() as file:
        verdicts = Counter((x["requested"], x["verdict"]) for x in csv.DictReader(file))
    assert verdicts["3", "not-entered"] == 20
    assert verdicts["busy", "ok"] == 20
    assert ("3", "ok") not in verdicts


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
    assert "an earlier lightsleep measure left settings changed" in document["notes"][-1]
    assert stop1.read_text() == "0\n"


def test_what_a_killed_command_left_is_told_by_one_that_fails(power9: FakeBackend) -> None:
    assert power9.root
    stop1 = power9.root / CPU / "cpu1/cpuidle/state3/disable"
    journals.leave(power9.root, "measure", journals.knob(stop1, "0", "1"))
    result = run("-c", "99")
    assert result.exit_code == 2
    assert "note: an earlier lightsleep measure left settings changed" in result.stderr
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
        if batch.dest == 5 and sum(x.dest == 5 for x in power9.batches) > 10:
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


@pytest.mark.parametrize("goes", [True, False], ids=["offline", "device owes an answer"])
def test_a_measurement_without_a_sample_fails_and_writes_no_file(
    goes: bool, power9: FakeBackend, tmp_path: Path
) -> None:
    def run_gone(batch: Batch) -> list[Sample]:
        assert power9.root
        if goes:
            plant(power9.root, f"{CPU}/online: 0-4,6-7")
        raise CpuGone(f"CPU 5, source {batch.source}: gone")

    power9.run = run_gone  # type: ignore[method-assign]
    result = run("-c", "5", "--source", "ipi", "-o", "out.json", "--csv", "out.csv")
    offline = "CPU 5 went offline\n" if goes else ""
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: CPU 5, source ipi: gone\n{offline}"
    assert not list(tmp_path.glob("out.*"))


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


@pytest.mark.parametrize("ended_early", [False, True])
def test_stolen_time_is_noted_and_spoils_accusations(
    ended_early: bool, power9: FakeBackend
) -> None:
    assert power9.root
    take, ticks = power9.run, 0

    def run_stolen(batch: Batch) -> list[Sample]:
        nonlocal ticks
        ticks += 100
        plant(power9.root, f"proc/stat: cpu1 0 0 0 {ticks} 0 0 0 {ticks // 4} 0 0")  # type: ignore[arg-type]
        if ended_early and len(power9.batches) == 60:
            raise KeyboardInterrupt
        return take(batch)

    def fate(batch: Batch, sample: Sample) -> Sample:
        # What is not stolen from is as fast as advertised.
        spared = batch.requested == "2" and power9.rng.random() < 0.3
        return dataclasses.replace(sample, latency_ns=3500) if spared else sample

    plant(power9.root, "proc/stat: cpu1 0 0 0 0 0 0 0 0 0 0")
    power9.fate = fate
    power9.run = run_stolen  # type: ignore[method-assign]
    result = run("--json", "-c", "1", "--source", "ipi")
    assert result.exit_code == (130 if ended_early else 0)
    document = json.loads(result.stdout)
    assert "CPU 1: the host stole 20% of the time" in document["notes"]
    (row,) = rows(document, name="stop0")
    assert row["verdict"]["kind"] == "too-noisy"
    assert row["verdict"]["text"].endswith(": the host stole 20% of the time")


def test_one_note_says_which_cpus_were_disturbed_alike() -> None:
    stolen, loaded = Ticks(1000, 80, 0), Ticks(1000, 0, 70)
    disturbed = {
        number: found
        for number, passed in {
            7: stolen,
            3: loaded,
            2: Ticks(1000, 200, 0),
            5: Ticks(9, 0, 0),
        }.items()
        if (found := noise.disturbed(passed, False))
    }
    assert noise.notes(disturbed) == [
        "CPU 3: other programs ran for 7% of the time",
        "CPU 2,7: the host stole 8% to 20% of the time",
    ]
    assert noise.notes({}) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_settings_go_back_loses_no_measurement(
    number: signal.Signals, power9: FakeBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_back = RestorerProcess.end

    def end(self: RestorerProcess) -> tuple[list[str], list[str]]:
        signal.raise_signal(number)
        return set_back(self)

    monkeypatch.setattr(RestorerProcess, "end", end)
    with orderly_end():  # as all commands have it
        result = run("--json", "-c", "1", "-n", "20", "-o", "out.json")
    assert result.exit_code == 128 + number
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["notes"] == json.loads(result.stdout)["notes"]
    assert not [x for x in document["notes"] if "ended early" in x]
    assert all(len(x["latencies_ns"]) == 20 for x in document["rows"])


@pytest.mark.parametrize(
    ("governors", "limit", "excluded"),
    [
        ("menu", "n/a", True),
        ("teo", "n/a", False),  # which takes the only state that is left
        ("haltpoll menu", "n/a", True),
        ("haltpoll teo", "n/a", False),
        ("ladder", "n/a", True),
        ("menu", "3", False),  # so does menu, unless no latency at all is tolerated
    ],
)
def test_a_latency_limit_that_excludes_states_is_noted(
    governors: str, limit: str, excluded: bool, power9: FakeBackend
) -> None:
    root = power9.root
    assert root
    plant(root, f"{CPU}/cpuidle/current_governor: {governors.split()[0]}")
    plant(root, f"{CPU}/cpuidle/available_governors: {governors}")
    plant(root, f"{CPU}/cpu{{1,5}}/power/pm_qos_resume_latency_us: {limit}")
    notes = [x for x in measured("-c", "1", "-n", "20")["notes"] if "PM QoS" in x]
    names = ["stop0_lite", "stop0", "stop1"] if excluded else []
    governor = governors.split()[-1]
    assert notes == [
        f"CPU 1: under {governor}, a PM QoS latency limit of 0 us excludes {name}" for name in names
    ]


@pytest.mark.parametrize(
    ("governor", "driver", "limits_khz", "said"),
    [
        ("schedutil", "acpi-cpufreq", (800_000, 4_000_000), True),
        ("performance", "intel_pstate", (800_000, 4_000_000), False),
        ("powersave", "intel_pstate", (2_000_000, 2_000_000), False),
        ("powersave", "intel_pstate", (800_000, 4_000_000), True),
        ("powersave", "amd-pstate-epp", (800_000, 4_000_000), True),
        # The generic ones keep a CPU at its lowest frequency, and at one that somebody has set.
        ("powersave", "acpi-cpufreq", (800_000, 4_000_000), False),
        ("userspace", "cpufreq-dt", (600_000, 1_800_000), False),
    ],
)
def test_a_frequency_that_may_differ_between_idle_and_busy_is_noted(
    governor: str, driver: str, limits_khz: tuple[int, int], said: bool, power9: FakeBackend
) -> None:
    assert power9.root
    for number, (least, most) in {1: limits_khz, 5: (600_000, 3_000_000)}.items():
        plant(
            power9.root,
            f"""
            {CPU}/cpu{number}/cpufreq/scaling_governor: {governor}
            {CPU}/cpu{number}/cpufreq/scaling_driver: {driver}
            {CPU}/cpu{number}/cpufreq/scaling_min_freq: {least}
            {CPU}/cpu{number}/cpufreq/scaling_max_freq: {most}
            """,
        )
    document = measured("-c", "1-2", "-n", "20")
    note = (
        f"CPU 1: under the cpufreq governor {governor}, a busy CPU may run faster than one that "
        "idles: measure states of a few us under performance"
    )
    assert [x for x in document["notes"] if "cpufreq" in x] == ([note] if said else [])
    found = {x: document["environment"][f"cpufreq_{x}"] for x in ("governor", "min_khz", "max_khz")}
    assert found == {
        "governor": governor,
        "min_khz": 600_000,
        "max_khz": max(3_000_000, limits_khz[1]),
    }


def test_without_cpufreq_nothing_is_noted_of_it(power9: FakeBackend) -> None:
    document = measured("-c", "1", "-n", "20")
    assert not [x for x in document["notes"] if "cpufreq" in x]
    assert document["environment"]["cpufreq_governor"] is None


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

# SPDX-License-Identifier: GPL-2.0-only
"""A recording that keeps no events: what the kernel is told, and what its counts are read as."""

from __future__ import annotations

import errno
import itertools
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import IDLE, WAKE, described_state, histogram_document

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.periods import histogram as counts
from lightsleep.periods import words
from lightsleep.periods.lost import TimeLost
from lightsleep.record import keeper, run
from lightsleep.record.bpf import calls, histogram
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report


def read(folder: Path, **more: object) -> TimeLost:
    path = folder / "counts.json"
    path.write_text(json.dumps(histogram_document(**more)))
    return load(path, counts.FORMAT)


def histograms_of(folder: Path, **kinds: object) -> TimeLost:
    return read(folder, histograms={"idle": (), "wake": (), "interrupt": ()} | kinds)


def test_sums_are_exact_and_polling_is_the_reference(tmp_path: Path) -> None:
    lost = read(tmp_path)
    assert {name: (x.periods, x.total_ns) for name, x in lost.states.items()} == {
        "POLL": (10, 634_000),
        "C6": (3, 4_500_000),
    }
    assert (lost.reference.count, lost.reference.total_ns) == (40, 220_000)
    assert (lost.all.count, lost.all.total_ns) == (100, 8_133_000)
    assert lost.groups["state"].keys() == {"C6"}
    assert lost.groups["cpu"].keys() == {"1"}
    assert lost.all.within_ns(0.5) == pytest.approx(67_000, rel=0.03)
    # 100 wakeups of 67 us, where a CPU that polls takes 5.5 us.
    assert lost.above_reference_ns(lost.all) == pytest.approx(6_150_000, rel=0.05)
    assert lost.share(lost.all) == pytest.approx(0.0040665)
    assert any("left 2 events out" in note for note in lost.metadata.notes)


def test_states_that_the_kernel_gave_one_name_are_told_apart(tmp_path: Path) -> None:
    name = "cluster-sleep-0"
    states = [described_state(0, name, 60, 200), described_state(1, name, 600, 2000)]
    lost = read(tmp_path, states={"0": states, "1": states})
    assert {key: x.periods for key, x in lost.states.items()} == {f"{name}#0": 10, f"{name}#1": 3}
    assert lost.groups["state"].keys() == {f"{name}#0", f"{name}#1"}
    described = lost.document()["recording"]["states"]
    assert {state["name"] for state in described} == {name}


def test_a_cpu_that_comes_online_has_the_states_of_the_others(tmp_path: Path) -> None:
    described = histogram_document()["states"]
    lost = read(tmp_path, states={"1": described["1"]})
    assert lost.states.keys() == {"POLL", "C6"}
    assert (lost.reference.count, lost.all.count) == (40, 100)
    assert any("CPU 0 came online during" in note for note in lost.metadata.notes)


def test_the_report_of_a_histogram(tmp_path: Path) -> None:
    read(tmp_path)
    path, page = tmp_path / "counts.json", tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(path), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "100 wakeups found their CPU in an idle state" in " ".join(done.output.split())
    assert "C6" in done.output
    html = page.read_text()
    assert "By idle state<" in html
    assert "By woken task" not in html
    done = CliRunner().invoke(report, [str(path), "--json"])
    (found,) = json.loads(done.stdout)["results"]
    assert found["by_state"][0]["total_ns"] == 8_133_000
    done = CliRunner().invoke(report, [str(path), "--parquet", str(tmp_path / "x")])
    assert done.exit_code == 2
    done = CliRunner().invoke(replay_command, [str(path)])
    assert done.exit_code == 1
    assert "a histogram has no idle periods to replay" in done.output


def test_wakeups_of_a_state_without_periods_are_drawn(tmp_path: Path) -> None:
    asleep = [0, 0, 1 << 20, (1 << 21) - 1, 3, 4_500_000]
    histograms_of(tmp_path, idle=[asleep], wake=WAKE)
    path, page = tmp_path / "counts.json", tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(path), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "C6" in page.read_text()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0, 0, 5000, 5999, 40, 22], "counts do not fit: [0, 0, 5000, 5999, 40, 22]"),
        ([0, 0, 5000, 5999, 0, 0], "counts do not fit"),
        ([-1, 0, 5000, 5999, 1, 5000], "counts do not fit"),
        ([0, -2, 5000, 5999, 1, 5000], "counts do not fit"),
        ([0, 0, 5000, 5999, 1, 1 << 63], "counts do not fit"),
        ([0, 0, 5000, 5999, 1.0, 5000], "counts do not fit"),
        ([0, 0, 5000, 5999, True, 5000], "counts do not fit"),
        ([0, 0, 5000, 5999, None, "5000"], "counts do not fit"),
        ([0, 0, 5000, 5999, 40], "is too short"),
        ("{ cpu: 0", "is not of type 'array'"),
    ],
)
def test_damaged_counts(row: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"counts\.json: histograms\.wake\[1\]") as caught:
        histograms_of(tmp_path, idle=IDLE, wake=[WAKE[0], row])
    assert said in caught.value.message


def test_a_damaged_file_is_an_error_or_a_result(tmp_path: Path) -> None:
    chance, path = random.Random(3), tmp_path / "counts.json"
    whole = json.dumps(histogram_document()).encode()
    errors = list[str]()
    for _ in range(300):
        copy = bytearray(whole)
        copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
        path.write_bytes(copy[: chance.choice((len(copy), chance.randrange(len(copy))))])
        try:
            load(path, counts.FORMAT)
        except LightsleepError as error:
            errors.append(error.message)
    assert len(errors) > 100
    assert all("counts.json" in error for error in errors)


def test_buckets_follow_each_other_and_are_narrow() -> None:
    ranges = [histogram.bounds(number) for number in range(histogram.BUCKETS)]
    assert ranges[0][0] == 0
    assert all(high + 1 == low for (_, high), (low, _) in itertools.pairwise(ranges))
    assert all(high + 1 - low <= max(128, low / 8) for low, high in ranges)


def test_a_waking_by_an_interrupt_of_an_idle_cpu_is_not_the_reference(tmp_path: Path) -> None:
    awake, asleep = ([1, state, 4096, 4607, 50, 220_000] for state in (-1, 1))
    lost = histograms_of(tmp_path, wake=[awake], interrupt=[awake, asleep])
    assert (lost.reference.count, lost.all.count) == (50, 50)


def test_a_cpu_that_was_in_no_state_is_the_reference(tmp_path: Path) -> None:
    lost = histograms_of(tmp_path, wake=[[1, -1, 4096, 4607, 50, 220_000]])
    assert (lost.reference.count, lost.reference.total_ns) == (50, 220_000)
    assert lost.all.count == 0


def test_what_the_kernel_refuses_is_said(tmp_path: Path) -> None:
    output = tmp_path / "counts.json"
    order = histogram.order([0], [0])
    order["maps"]["cpus"]["bytes"] = 0  # what no kernel accepts, whoever asks
    with (
        pytest.raises(LightsleepError, match="the kernel refuses to count: "),
        run.counting(order, histogram_document(), output),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_so_many_cpus_are_too_many_for_an_older_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(errno.E2BIG, "Argument list too long")

    monkeypatch.setattr(calls, "create", refuse)
    monkeypatch.setattr(keeper, "_tell", lambda _answer: None)
    order = histogram.order(list(range(24)), list(range(24)))
    said = keeper.count(order | {"document": {}, "output": str(tmp_path / "counts.json")})
    assert "before Linux 6.0, a histogram counts on CPUs below 16; record events" in said["failed"]


def test_counts_go_with_their_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_send_order", lambda *_arguments: None)
    with (
        pytest.raises(LightsleepError, match="was killed; what the kernel had counted is lost"),
        run.counting({}, {}, tmp_path / "counts.json") as running,
    ):
        running.process.kill()


def test_the_longest_time_is_no_less_than_the_mean_of_its_bucket(tmp_path: Path) -> None:
    lost = histograms_of(tmp_path, wake=[[1, 1, 4096, 4607, 50, 220_000]])
    assert "the longest 4.40 us or more." in words.headline(lost)[1]


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "ELSEWHERE", ("/dev/full",))
    said = keeper._write(Path("/dev/full/x/trace"), tmp_path / "counts.json", {})
    assert said == f"cannot write {tmp_path / 'counts.json'}: Not a directory"
    assert list(tmp_path.iterdir()) == []

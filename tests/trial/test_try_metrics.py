# SPDX-License-Identifier: GPL-2.0-only
"""try: figures of a run, from the counters of the machine and from what a command prints."""

from pathlib import Path
from typing import Any

import pytest
from scan_trees import plant, unfold
from trials import attempt

from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.scan.collect import TICK_S
from lightsleep.scan.tree import Tree
from lightsleep.trial import metrics, reading


def counted(**changes: Any) -> reading.Reading:
    states = {
        (0, "POLL"): reading.StateCount(10, 1000, True),
        (0, "HALT"): reading.StateCount(20, 5000, False),
    }
    fields: dict[str, Any] = {
        "time_s": 1.0,
        "cpus": 2,
        "states": states,
        "ipis": {0: 2, 1: 3},
        "stolen_s": 0.5,
        "energy": {"intel-rapl:0": reading.Energy(9_999_999_900, 10**10)},
        "hits": {0: 100},
    }
    return reading.Reading(**(fields | changes))


def test_metrics_of_a_run() -> None:
    after = counted(
        time_s=2.0,
        states={
            (0, "POLL"): reading.StateCount(14, 201_000, True),
            (0, "HALT"): reading.StateCount(26, 1_005_000, False),
        },
        ipis={0: 4, 1: 8},
        stolen_s=0.75,
        energy={"intel-rapl:0": reading.Energy(100, 10**10)},
        hits={0: 103, 1: 10**6},
        idle_begin=reading.Idle(1.9, 11.0),
        idle_end=reading.Idle(2.1, 11.0),
    )
    before = counted(idle_begin=reading.Idle(0.8, 9.6), idle_end=reading.Idle(1.0, 9.6))
    assert metrics.of_run(before, after, 0.9, 0.3) == pytest.approx(
        {
            "wall_s": 0.9,
            "cpu_s": 0.3,
            "busy_s": 0.4,  # of two CPUs, and without the readings
            "polled_pct": 10.0,
            "in_POLL_pct": 10.0,
            "in_HALT_pct": 50.0,
            "wakes": 6 + 3,  # one poll ended by time
            "ipis": 7,
            "stolen_s": 0.25,
            "energy_J": 200e-6,  # the counter started again
        }
    )


def test_a_machine_that_does_not_tell_its_idle_time() -> None:
    assert "busy_s" not in metrics.of_run(counted(), counted(time_s=2.0), 1, 1)
    assert "busy_pct" not in metrics.of_period(counted(), counted(time_s=2.0))


def test_a_count_of_interrupts_may_pass_32_bits() -> None:
    before, after = counted(ipis={0: 2**32 - 5, 1: 3}), counted(time_s=2.0, ipis={0: 7, 1: 4})
    assert metrics.of_run(before, after, 1, 1)["ipis"] == 13


def test_a_cpu_that_comes_online_counts_nothing_that_was_before() -> None:
    """Its counters are those since boot."""
    new = {
        (1, "POLL"): reading.StateCount(10**6, 10**9, True),
        (1, "HALT"): reading.StateCount(10**6, 10**9, False),
    }
    before, later = counted(cpus=1, ipis={0: 2}), counted().states | new
    found = metrics.of_run(before, counted(time_s=2.0, states=later, ipis={0: 3, 1: 10**6}), 1, 1)
    assert (found["wakes"], found["ipis"], found["polled_pct"], found["in_HALT_pct"]) == (
        0,
        1,
        0,
        0,
    )


def test_metrics_of_a_period() -> None:
    after = counted(
        time_s=3.0,
        states={
            (0, "POLL"): reading.StateCount(14, 401_000, True),
            (0, "HALT"): reading.StateCount(26, 5000, False),
        },
        ipis={0: 4, 1: 8},
        stolen_s=0.7,
        energy={"intel-rapl:0": reading.Energy(100, 10**10)},
        idle_begin=reading.Idle(3.0, 13.0),
    )
    before = counted(idle_end=reading.Idle(1.0, 10.0))
    assert metrics.of_period(before, after) == pytest.approx(
        {
            "polled_pct": 10.0,
            "in_POLL_pct": 10.0,
            "in_HALT_pct": 0.0,
            "wakes_per_s": 3.0,
            "ipis_per_s": 3.5,
            "stolen_pct": 5.0,
            "power_W": 100e-6,
            "busy_pct": 25.0,
        }
    )


@pytest.mark.parametrize(("span_s", "told"), [(60.0, True), (66.0, False), (3600.0, False)])
def test_energy_is_told_only_where_the_counter_cannot_have_started_again_twice(
    span_s: float, told: bool
) -> None:
    before, after = (
        counted(time_s=1.0 + at_s, energy={"intel-rapl:0": reading.Energy(5, 65_532_610_987)})
        for at_s in (0.0, span_s)
    )
    assert ("energy_J" in metrics.of_run(before, after, 1.0, 1.0)) is told


def test_what_not_every_setting_counts_is_left_out() -> None:
    """as-is has no driver that counts wakes; a share of a state that is not there is 0."""
    with_driver = {"wall_s": 1.0, "wakes": 9.0, "in_HALT_pct": 7.0}
    runs = {"as-is": [{"wall_s": 2.0}], "lightsleep": [with_driver]}
    found = metrics.collected(runs, [])
    assert {name: x.samples for name, x in found.items()} == {
        "wall_s": {"as-is": [2.0], "lightsleep": [1.0]},
        "in_HALT_pct": {"as-is": [0.0], "lightsleep": [7.0]},
    }
    runs["as-is"][0]["wakes"] = 5.0
    assert metrics.collected(runs, [])["wakes"].samples == {"as-is": [5.0], "lightsleep": [9.0]}


def test_without_a_driver_nobody_polls_and_nobody_counts_wakes() -> None:
    found = metrics.of_run(counted(states={}), counted(states={}, time_s=2.0), 1, 1)
    assert found["polled_pct"] == 0
    assert "wakes" not in found


def test_polls_of_the_idle_loop_are_time_polled() -> None:
    """They are in no state, and no cpuidle driver is needed for them."""
    before = counted(cpus=1, states={}, polled_ns={0: 10**9})
    after = counted(cpus=1, states={}, polled_ns={0: 15 * 10**8, 1: 10**12}, time_s=3.0)
    assert metrics.of_run(before, after, 1, 1)["polled_pct"] == pytest.approx(25)


def test_a_reading_of_a_machine(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    plant(root, "proc/stat: cpu  1 2 3 4 5 6 7 800 0 0")
    plant(root, "sys/devices/system/cpu/cpu{0-2}/idle_poll/polled_ns: 7000")
    rows = ("           CPU0       CPU1", "RES:  3  4  Rescheduling", "CAL:  5  6  Function call")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    zones = [("intel-rapl:0", "package-0", 7), ("intel-rapl:0:0", "core", 5), ("dtpm", "x", 3)]
    zones += [("intel-rapl:1", "psys", 12), ("intel-rapl-mmio:0", "package-0", 7)]
    for name, said, uj in zones:
        plant(root, f"sys/class/powercap/{name}/name: {said}")
        plant(root, f"sys/class/powercap/{name}/energy_uj: {uj}")
        plant(root, f"sys/class/powercap/{name}/max_energy_range_uj: 1000")
    found = reading.read(root)
    assert (found.cpus, found.ipis) == (4, {0: 3 + 5, 1: 4 + 6})
    assert found.stolen_s == pytest.approx(800 * TICK_S)
    assert found.energy == {"intel-rapl:0": reading.Energy(7, 1000)}
    assert found.states[3, "POLL"] == reading.StateCount(100_000, 300_000_000, True)
    assert found.hits == dict.fromkeys(range(4), 70_000)
    assert found.polled_ns == dict.fromkeys(range(3), 7000)
    assert found.idle_begin
    assert found.idle_end
    assert found.idle_begin.idle_s == found.idle_end.idle_s == pytest.approx((4 + 5) * TICK_S)
    assert found.idle_begin.time_s < found.time_s < found.idle_end.time_s


@pytest.mark.parametrize("row", ["RES:  3  9  4  Rescheduling", "RES:  3  Rescheduling"])
def test_a_cpu_that_comes_or_goes_while_it_is_read(row: str, tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    rows = ("           CPU0       CPU1", "CAL:  5  6  Function call", row)
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    assert reading.read(root).ipis is None


@pytest.mark.parametrize(("torn", "ipis"), [(1, {0: 8, 1: 10}), (2, {0: 8, 1: 10}), (3, None)])
def test_interrupts_are_read_again_where_a_cpu_came_or_went(
    torn: int, ipis: dict[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0

    def content(_tree: Tree, _path: str, _most: int) -> bytes:
        nonlocal readings
        readings += 1
        row = "RES: 3 9 4" if readings <= torn else "RES: 3 4"
        return f"CPU0 CPU1\nCAL: 5 6 Function call\n{row} Rescheduling\n".encode()

    monkeypatch.setattr(Tree, "content", content)
    assert (reading._ipis(Tree(tmp_path)), readings) == (ipis, min(torn + 1, 3))


def test_states_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The kernel cuts names to 15 characters."""
    root = unfold("lightsleep-guest", tmp_path)
    for state in (0, 1):
        plant(root, f"sys/devices/system/cpu/cpu{{0-3}}/cpuidle/state{state}/name: cluster-sleep-0")
    states = reading.read(root).states
    assert len(states) == 8
    assert states[3, "cluster-sleep-0#0"].usage == 100_000
    assert states[3, "cluster-sleep-0#1"].usage == 200_000


@pytest.mark.parametrize(
    ("text", "output", "value", "better"),
    [
        (r"rps=([\d.]+) req/s:higher", "12.5 req/s\n13.5 req/s", 13.5, "higher"),
        (r"t_ms=\d+", "took 7", 7.0, "lower"),
        (r"t=took: (\d+):lower", "took: 7", 7.0, "lower"),
        (r"took_us=^([\d.]+)$", "# a remark\n0.25\n", 0.25, "lower"),
        (r"n=n ([\d,]+):lower", "n 1,234", 1234.0, "lower"),
        (r"n=n (\S+):higher", "n -12,345,678.5", -12345678.5, "higher"),
        (r"n=n (\d+):higher:rate", "n 7", 7.0, "higher"),
        (r"n=n (\d+):rate:higher", "n 7", 7.0, "higher"),
    ],
)
def test_printed_metrics(text: str, output: str, value: float, better: str) -> None:
    printed = metrics.parse_printed(text)
    assert metrics.find(printed, output, {}) == value
    assert printed.better == better


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("p99_us", "us"),
        ("took_s", "s"),
        ("ops_per_s", "/s"),
        ("ops_per_ms", "/ms"),
        ("share_pct", "%"),
        ("score", ""),
    ],
)
def test_a_name_tells_its_unit(name: str, unit: str) -> None:
    assert metrics.parse_printed(f"{name}=x:higher").unit == unit


@pytest.mark.parametrize(
    "text",
    [
        "ops_per_s=x",
        "ops_per_s=x:rate",
        "ops_per_ms=x",
        "rps=x:rate",
        "rps=x",
        "tps=x",
        "x_pct=x",
        "req_s=x",
        "MB_s=x",
        "took_s=x",
        "t_s=x:rate",
        "t_ms=x:rate",
    ],
)
def test_of_what_is_no_time_the_direction_is_to_be_named(text: str) -> None:
    for direction in ("higher", "lower"):
        assert metrics.parse_printed(f"{text}:{direction}").better == direction
    with pytest.raises(WrongUsage, match="let it end in :higher or in :lower"):
        metrics.parse_printed(text)


@pytest.mark.parametrize("end", [":higher:lower", ":rate:rate", ":rate:higher:rate"])
def test_words_that_contradict_each_other_are_no_part_of_the_expression(end: str) -> None:
    with pytest.raises(LightsleepError, match="ends in :rate, one of :higher"):
        metrics.parse_printed(f"n=n (.*){end}")


def test_a_number_that_no_result_holds_is_refused() -> None:
    printed = metrics.parse_printed(r"n=n (\S+):lower")
    with pytest.raises(LightsleepError, match="use a larger unit"):
        metrics.find(printed, "n 1e19", {})


@pytest.mark.parametrize(
    "number", ["9,9", "10,12", "0,125", "1,2345", "1234,567", "1.234,567", ",5"]
)
def test_a_decimal_comma_is_refused(number: str) -> None:
    printed = metrics.parse_printed(r"n=n (\S+):lower")
    with pytest.raises(LightsleepError, match="LC_ALL=C"):
        metrics.find(printed, f"n {number}", {})


@pytest.mark.parametrize(
    "number", ["9,9", "10,12", "0,125", "1,2345", "1234,567", "1.234,567", "1,234", "1,234,567"]
)
@pytest.mark.parametrize(
    "pattern",
    [
        r"n ([0-9.]+)",
        r"\d+(?=,|$)",
        r"([0-9.]+) ends",
        r"n ([0-9.]+).*",
        r"n ([0-9.]+)\D+",
        r"n ([0-9.]+)\S* ends",
        r"n.*?([0-9.]+) ends",
        r"\W([0-9.]+) ends",
    ],
)
def test_an_expression_that_stops_at_a_comma_is_refused(pattern: str, number: str) -> None:
    printed = metrics.parse_printed(f"n={pattern}:lower")
    with pytest.raises(LightsleepError, match=r"only a part of a number.*LC_ALL=C"):
        metrics.find(printed, f"n {number} ends", {})


def test_a_wildcard_behind_a_column_does_not_separate_it() -> None:
    """The comma in front is named, and the one behind is not."""
    printed = metrics.parse_printed(r"n=^get,([\d.]+).*:lower")
    with pytest.raises(LightsleepError, match=r"name it outside of the group, as in ,\(\[0-9"):
        metrics.find(printed, "get,12.5,99", {})


@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        ("n ([0-9.]+)", "n 1.2e-05"),
        ("n ([0-9.]+)", "n 2E3"),
        (r"n (\d+)", "n 12.5"),
        (r"n (\d+?)", "n 12"),
        (r"n.*([\d.]+)", "n 12"),
        (r"n.*([\d.]+)", "n 12.5"),
        (r"real\s+([\d.]+)", "real\t0m1.234s"),
        (r"real\s+\d+m([\d.]+)s", "real\t1m0.200s"),
        (r"took.*?([\d.]+)s", "took 2h1m0.2s"),
    ],
)
def test_a_part_of_a_number_is_refused(pattern: str, output: str) -> None:
    printed = metrics.parse_printed(f"n={pattern}:lower")
    with pytest.raises(LightsleepError, match="only a part of a number"):
        metrics.find(printed, f"0\n{output}\n0", {})


@pytest.mark.parametrize("pattern", [r"real\s+([\d.]+)", r"real\s+\d+m([\d.]+)s"])
def test_of_a_time_of_minutes_what_to_do_is_said(pattern: str) -> None:
    """No expression can match all of it as a number."""
    printed = metrics.parse_printed(f"n={pattern}:lower")
    with pytest.raises(LightsleepError, match=r"have the program print seconds.*TIMEFORMAT=%R"):
        metrics.find(printed, "real\t1m0.200s", {})


@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        (r"get,([\d.]+),", "get,12.5,99"),
        (r"^\w+,\d+,([\d.]+)", "get,7,12.5"),
        (r"^(?:[^,]*,){2}([\d.]+),", "get,7,12.5,99"),
        (r"^.*,([\d.]+)$", "get,7,12.5"),
        (r"avg= *([\d.]+).*", "avg=12.5, stdev=99"),
        (r"^([\d.]+)$", "7\n12.5\n"),
        (r"p99:([\d.]+)", "p99:12.5"),
        (r"[\d.]+", "at 10:00:12.5"),
        (r"n ([\d.]+)", "n 12.5, 3"),
        (r"n ([\d.]+)", "n 12.5; 3"),
        (r"n \S+?m([\d.]+)", "n \x1b[32m12.5"),
        (r"n \S+?m([\d.]+)", "n \x1b[1;32m12.5"),
    ],
)
def test_what_stands_beside_a_whole_number(pattern: str, output: str) -> None:
    printed = metrics.parse_printed(f"n={pattern}:lower")
    assert metrics.find(printed, output, {}) == 12.5


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("635.91us", "1.02ms"),
        ("9876", "10.2k"),
        ("99 %", "1.02ms"),
        ("1.234 s \N{PLUS-MINUS SIGN}", "935.1 ms \N{PLUS-MINUS SIGN}"),
        ("950 MB/s", "1.2 GB/s"),
        ("943 Mbits/sec", "9.41 Gbits/sec"),
        ("981 K/sec", "1.02 M/sec"),
        ("935 /sec", "1.02 K/sec"),
        ("935 usecs", "1.02 msecs"),
    ],
)
def test_a_unit_that_changes_is_refused(before: str, now: str) -> None:
    printed = metrics.parse_printed(r"n=n +([\d.]+):lower")
    units: dict[str, str] = {}
    metrics.find(printed, f"n {before}", units)
    metrics.find(printed, f"n {before}", units)
    with pytest.raises(LightsleepError, match="have the program print the same unit always"):
        metrics.find(printed, f"n {now}", units)


@pytest.mark.parametrize(
    ("before", "now"), [("0us", "1.02ms"), ("1.02ms", "0"), ("5 tries", "4 others"), ("1 a", "2 b")]
)
def test_0_has_no_unit_and_not_each_word_is_one(before: str, now: str) -> None:
    printed = metrics.parse_printed(r"n=n ([\d.]+):lower")
    units: dict[str, str] = {}
    for output in (before, now):
        metrics.find(printed, f"n {output}", units)


def test_a_program_that_changes_its_unit_ends_the_trial(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"if [ -e {seen} ]; then echo Latency 1.02ms; else echo Latency 635.91us; fi; >{seen}"
    words = ["-m", "lat_us=Latency +([0-9.]+)", "--", "sh", "-c", script]
    result = attempt("-n", "1", *words)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "the unit behind the number was us before, and is ms now (1.02ms)" in said


@pytest.mark.parametrize(
    "text", ["", "x", "x=", "=x", "wall_s=x", "in_C1_pct=x", "a b=x", "x=(", "x=a{4294967296}"]
)
def test_what_is_no_metric(text: str, root: Path) -> None:
    result = attempt("-m", text, "--", "true")
    assert result.exit_code == 2
    assert "metric" in result.output

# SPDX-License-Identifier: GPL-2.0-only
"""The page of a measurement: every figure and verdict is on it, whatever the machine was like."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from measurements import STATES, State, made_up, without_samples
from pages import Page, assert_self_contained

from lightsleep import units
from lightsleep.files import write_json
from lightsleep.measure.result import MeasureResult, Row
from lightsleep.report import measure_words
from lightsleep.report.cdf import MARGIN, Curve, cdf_plot, limits_of
from lightsleep.report.cli import report
from lightsleep.report.measure_plots import COLOURS, FEW_CPUS
from lightsleep.report.page import render

C1, C1E, C10 = STATES[1], STATES[2], STATES[4]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(report, [str(argument) for argument in arguments])


def page_of(result: MeasureResult) -> Page:
    return assert_self_contained(render([("m.json", result)]))


def with_rows(result: MeasureResult, rows: Sequence[Row]) -> MeasureResult:
    return replace(result, rows=list(rows))


@pytest.fixture(scope="module")
def result() -> MeasureResult:
    return made_up()


@pytest.fixture(scope="module")
def html(result: MeasureResult) -> str:
    return render([("m.json", result)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    write_json(path, made_up((1,), ("ipi",), samples=20).document())
    return path


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    page = assert_self_contained(html)
    wanted = re.findall(r"url\(#([^)]*)\)", html)
    assert wanted
    assert set(wanted) <= set(page.ids)


def test_every_figure_is_on_the_page(html: str, result: MeasureResult) -> None:
    text = Page(html).text
    checked = 0
    for figures in (each for row in result.rows for each in (row.raw, row.subtracted) if each):
        assert figures.ci_ns
        p50, p90, p99, most, low, high = (
            units.digits(ns / 1000, "µs")
            for ns in (
                figures.p50_ns,
                figures.p90_ns,
                figures.p99_ns,
                figures.max_ns,
                *figures.ci_ns,
            )
        )
        reaches = []
        for ends in (figures.p90_ci_ns, figures.p99_ci_ns):
            assert ends
            least, upper = (end and units.digits(end / 1000, "µs") for end in ends)
            reaches.append(f"{least} to {upper}" if upper else f"{least} or more")
        assert f"{p50} {low} to {high} {p90} {reaches[0]} {p99} {reaches[1]} {most}" in text
        checked += 1
    assert checked == 2 * 2 * (5 + 4)  # C10 was never entered, the baseline is not subtracted


def test_verdicts_are_words_with_a_colour(html: str, result: MeasureResult) -> None:
    text = Page(html).text
    for row in result.rows:
        said = measure_words.VERDICTS[row.verdict.kind]
        assert f'<span class="{said.tone}">{said.mark} ' in html
        assert f"{said.mark} {said.word}".strip() in text
        assert row.verdict.kind == "baseline" or row.verdict.text in text
    assert "✔ agrees : 4 , ✘ optimistic : 4 , ▼ pessimistic : 4 , ∅ not entered : 4" in text


def test_environment_settings_and_notes_are_on_the_page(html: str) -> None:
    text = Page(html).text
    said = ("Example CPU 9000", "Linux 6.12.41", "idle driver intel_idle", "root=/dev/vda quiet")
    assert all(each in text for each in (*said, "CPU 1-2", "CPU 3 is set apart", "samples 60"))


def test_a_plot_for_each_cpu_and_source_with_every_state(html: str) -> None:
    page = Page(html)
    images = [attrs["aria-label"] for _, attrs in page.elements if attrs.get("role") == "img"]
    assert [label.split(":")[0] for label in images if label] == [
        "Timer, CPU 1",
        "Timer, CPU 2",
        "IPI, CPU 1",
        "IPI, CPU 2",
    ]
    assert html.count("<svg") == 4
    for name in ("busy", "POLL", "C1 (2 µs)", "C1E (10 µs)", "C6 (133 µs)"):
        assert html.count(f">{name}</text>") == 4
        assert all(f"{name}: " in label for label in images if label)
    assert "C10 (890 µs)" not in page.texts  # no curve without samples


def lines_of(html: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the style and the points (x, y downwards) of every line inside of a plot."""
    paths = re.findall(r'<path d="M ([^"]*)" clip-path="[^"]*" style="([^"]*)"', html)
    return [
        (style, [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", points)])
        for points, style in paths
    ]


def test_the_tick_is_where_the_median_would_be_if_the_advertised_latency_were_true() -> None:
    truth = [State("C1", 2, 2, 2, "agrees")]
    html = render([("m.json", made_up((1,), ("ipi",), truth, samples=400))])
    lines = [points for style, points in lines_of(html) if COLOURS[0] in style]
    (curve,) = [points for points in lines if len(points) > 2]
    (((tick, low), (_, high)),) = [points for points in lines if len(points) == 2]
    crossing = next(x for x, y in curve if y <= (low + high) / 2)
    assert abs(tick - crossing) < 2  # the axis is more than 300 long


def test_the_axis_holds_every_curve_and_tick() -> None:
    curves = [
        Curve("a", "#000000", "-", [[-5.0, 0.0, 2.0, 3.0]], None),
        Curve("b", "#000000", "-", [[50.0] * 200 + [1e6]], 9000.0),
    ]
    limits = limits_of(curves)
    assert limits
    assert 0 < limits[0] < 2
    assert 9000 < limits[1] < 1e5
    assert "<svg" in cdf_plot(curves, limits, "salt")
    assert limits_of([replace(curves[0], latencies_us=[[-1.0, 0.0]])]) is None
    assert limits_of([]) is None


def test_debian_12_has_a_matplotlib_without_ecdf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Axes, "ecdf", raising=False)
    curve = Curve("a", "#000000", "-", [[1.0, 3.0], [100.0]], None)
    assert "<svg" in cdf_plot([curve], (1, 100), "salt")


def test_the_axis_ends_beside_latencies_that_were_measured() -> None:
    curve = Curve("a", "#000000", "-", [[1.0, 3.0], [100.0]], None)
    assert limits_of([curve]) == (1 / MARGIN, 100 * MARGIN)


def test_many_cpus_share_a_plot_and_fold_their_figures() -> None:
    many = range(FEW_CPUS + 1)
    few, folded = made_up(many[:-1], ("ipi",), samples=8), made_up(many, ("ipi",), samples=8)
    assert render([("m", few)]).count("<svg") == FEW_CPUS
    assert "<details>" not in render([("m", few)])
    html = render([("m", folded)])
    assert html.count("<svg") == 1
    assert "5 CPUs: a faint curve each" in Page(html).text
    widths = [re.search(r"stroke-width: ([\d.]+)", style) for style, _ in lines_of(html)]
    faint = [width for width in widths if width and width[1] == "0.7"]
    assert len(faint) == len(many) * 5  # the baseline and four states
    assert html.index("<details>") < html.index("without the busy baseline")


def test_cpus_that_differ_are_named() -> None:
    result = made_up((0, 1, 2, 3, 7), ("ipi",), [C1], samples=30)
    odd = replace(result.rows[-1].verdict, kind="too-noisy", text="varies too much")
    text = page_of(
        with_rows(result, [*result.rows[:-1], replace(result.rows[-1], verdict=odd)])
    ).text
    assert "advertised on CPU 0-3" in text
    assert re.search(r"\? too noisy , [\d.]+ × advertised on CPU 7", text)
    assert "varies too much" in text


def test_states_of_one_name_that_advertise_differently_stay_apart() -> None:
    little = made_up((0,), ("ipi",), [C1], samples=20)
    big = made_up((1,), ("ipi",), [C1._replace(advertised_us=4)], samples=20)
    text = page_of(with_rows(little, little.rows + big.rows)).text
    assert "C1 (2 µs)" in text
    assert "C1 (4 µs)" in text
    assert text.count("not measured") == 0


def test_a_state_that_one_source_does_not_reach_is_not_measured() -> None:
    both, timer = made_up((1,), ("ipi",), [C1, C1E]), made_up((1,), ("timer",), [C1])
    assert "not measured" in page_of(with_rows(both, both.rows + timer.rows)).text


def test_user_space_is_said_at_the_top(html: str) -> None:
    page = page_of(made_up((1,), ("timer", "ipi"), samples=20, mode="userspace"))
    assert "Measured from user space, without the kernel module" in page.text
    assert "Wakeup (ipi) A thread is woken by a thread on another CPU." in page.text
    assert "Measured from user space" not in html


def test_an_unusual_path_is_named_and_a_usual_one_is_not(html: str, result: MeasureResult) -> None:
    assert "without an interrupt" not in html
    polled = [replace(row, path="none") if row.name == "POLL" else row for row in result.rows]
    assert page_of(with_rows(result, polled)).text.count("without an interrupt") == 4


def test_no_valid_samples_at_all(result: MeasureResult) -> None:
    text = page_of(with_rows(result, [without_samples(row) for row in result.rows])).text
    assert "There is nothing to plot" in text
    assert "no valid sample" in text


def test_one_cpu_without_samples_has_no_plot(result: MeasureResult) -> None:
    rows = [without_samples(row) if row.cpu == 2 else row for row in result.rows]
    assert render([("m", with_rows(result, rows))]).count("<svg") == 2


def test_without_a_baseline_figures_are_raw(result: MeasureResult) -> None:
    rows = [replace(row, subtracted=None) for row in result.rows if row.kind == "state"]
    text = page_of(with_rows(result, rows)).text
    assert "no baseline" in text
    assert re.search(r"C1 2 µs 2 µs [\d.]+ µs raw", text)


def test_no_rows_no_notes_nothing_known() -> None:
    bare = replace(made_up(), rows=[], notes=[], environment={}, settings={})
    text = page_of(bare).text
    assert "no state was measured" in text
    assert "What to know" not in text


@pytest.mark.parametrize(("samples", "missing"), [(1, True), (5, True), (40, False)])
def test_few_samples_have_no_interval(samples: int, missing: bool) -> None:
    text = page_of(made_up((1,), ("ipi",), samples=samples)).text
    assert ("no interval" in text) == missing


def test_odd_values() -> None:
    result = made_up((1,), ("ipi",), samples=20)
    odd = [-(10**18), -1, 0, 1, 10**18]
    rows = [
        replace(row, latencies_ns=odd, raw=replace(row.raw, p50_ns=-1e18, max_ns=1e18, ci_ns=None))
        for row in result.rows
        if row.raw
    ]
    assert "nan" not in page_of(with_rows(result, rows)).text.split()


def test_ten_states_look_different() -> None:
    states = [State(f"S{i}", 2.0**i, 2.0**i, 2.0**i, "agrees") for i in range(10)]
    html = render([("m", made_up((1,), ("timer",), states, samples=20))])
    curves = {style for style, points in lines_of(html) if len(points) > 2}
    assert len(curves) == 11  # and the baseline


def test_names_cannot_inject_anything() -> None:
    evil = "\"'><script>alert(1)</script><img src=http://x onerror=a>{{7*7}}$x$"
    base = made_up((1,), ("ipi",), [C1._replace(name=evil), C10], samples=20)
    rows = [
        replace(row, source=evil, invalid={evil: 1}, verdict=replace(row.verdict, text=evil))
        for row in base.rows
    ]
    result = replace(
        with_rows(base, rows),
        created=evil,
        notes=[evil],
        environment={evil: {evil: [evil]}, "cpu_model": evil, "governor": evil},
        settings=base.settings | {evil: evil},
    )
    page = Page(render([(evil, result)]))
    assert not {"script", "img"} & {tag for tag, _ in page.elements}
    assert evil in page.text
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert all(load.startswith("#") for load in page.loads)


def test_the_same_result_gives_the_same_page(html: str, result: MeasureResult) -> None:
    assert render([("m.json", result)]) == html


def test_measurements_and_comparisons_on_one_page(tmp_path: Path, file: Path) -> None:
    compared, page = tmp_path / "compared.json", tmp_path / "page.html"
    write_json(compared, comparisons.made_up(metrics=2).document())
    done = run(file, compared, file, "-o", page)
    assert done.exit_code == 0, done.output
    seen = assert_self_contained(page.read_text())
    assert "3 results side by side" in seen.text
    assert "1. What a wake costs: Example CPU 9000" in seen.text
    assert "2. Polling idle against halting idle" in seen.text
    assert {"#r1", "#r2", "#r3"} <= set(seen.loads)
    assert {"r1", "r2", "r3"} <= set(seen.ids)
    assert run(file, file, "-o", page).exit_code == 0
    assert "2 measurements side by side" in Page(page.read_text()).text


def test_json_holds_the_figures_of_both_kinds_and_no_samples(tmp_path: Path, file: Path) -> None:
    compared = tmp_path / "compared.json"
    write_json(compared, comparisons.made_up(metrics=1).document())
    done = run(file, compared, "--json")
    assert done.exit_code == 0
    measured, other = json.loads(done.stdout)["results"]
    assert other["schema"] == "lightsleep.comparison"
    whole = json.loads(file.read_text())
    for row in whole["rows"]:
        del row["latencies_ns"]
    head = {"file": str(file), "schema": "lightsleep.measurement", "version": 1}
    assert measured == whole | head


def test_what_is_neither_names_both(tmp_path: Path) -> None:
    (tmp_path / "fio.json").write_text('{"schema": "fio"}')
    done = run(tmp_path / "fio.json")
    assert done.exit_code == 1
    assert '"schema" is "fio", not "lightsleep.compare" or "lightsleep.measure"' in done.stderr
    assert "a result of a comparison or a result of a measurement" in done.stderr


def test_no_cut_file_makes_or_replaces_a_page(tmp_path: Path, file: Path) -> None:
    text, page = file.read_text(), tmp_path / "page.html"
    page.write_text("the old page")
    for length in range(0, len(text) - 2, len(text) // 20):
        file.write_text(text[:length])
        done = run(file, "-o", page)
        assert done.exit_code == 1
        assert isinstance(done.exception, SystemExit), done.exception
        assert page.read_text() == "the old page"

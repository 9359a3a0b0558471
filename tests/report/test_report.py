# SPDX-License-Identifier: GPL-2.0-only
"""The page: complete, self-contained, harmless, and never written from a damaged file."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from comparisons import ROLES, made_up
from matplotlib.axes import Axes
from pages import Page, assert_self_contained
from recordings import PIPE

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.analysis import analyse
from lightsleep.compare.method import compare, summarise
from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json, write_text
from lightsleep.record import sidecar
from lightsleep.report import cli, plots
from lightsleep.report.cli import report
from lightsleep.report.compare_section import section, tied
from lightsleep.report.page import render
from lightsleep.report.plots import (
    LONGEST_LINE,
    LONGEST_NAME,
    colours_of,
    ecdf_plot,
    scale_of,
    short,
    short_names,
    strip_plot,
)
from lightsleep.report.svg import blank, style


def run(*arguments: object) -> Result:
    return CliRunner().invoke(report, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def html() -> str:
    return render([("result.json", made_up())])


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw one takes 0.3 s: many tests look at words only."""
    monkeypatch.setattr(plots, "strip_plot", lambda *_: "")
    monkeypatch.setattr(plots, "ecdf_plot", lambda *_: None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    write_json(path, made_up(metrics=2).document())
    return path


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    assert_self_contained(html)


def test_only_recordings_need_pyarrow(file: Path, tmp_path: Path) -> None:
    # Debian does not have it. An entry that is None makes Python say that there is no such module.
    without = "import sys; sys.modules['pyarrow'] = None; from lightsleep.cli import main; main()"
    trace = tmp_path / "perf.data"
    trace.write_bytes(b"PERFILE2")
    page = tmp_path / "page.html"
    for shown, complaint in ((file, ""), (trace, "needs the Python package pyarrow")):
        argv = [sys.executable, "-c", without, "report", str(shown), "-o", str(page)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == (1 if complaint else 0), done.stderr
        assert complaint in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_references_inside_the_page_lead_somewhere(html: str) -> None:
    page = Page(html)
    wanted = [load[1:] for load in page.loads] + re.findall(r"url\(#([^)]*)\)", html)
    assert wanted
    assert set(wanted) <= set(page.ids)


def test_figures_on_the_page_are_those_of_stats(html: str) -> None:
    text = Page(html).text
    for metric in made_up().metrics.values():
        for arm, samples in metric.samples.items():
            summary = summarise(samples)
            assert summary
            assert units.value(summary.median, metric.unit) in text
            assert units.span(summary.ci_low, summary.ci_high, metric.unit) in text
            assert units.span(summary.q1, summary.q3, metric.unit) in text
            assert " ".join(map(str, samples)) in text
            if arm not in ("stock", "control"):
                stock = metric.samples["stock"]
                comparison = compare(stock, samples, metric.better, metric.unit)
                assert words.effect_interval(comparison, metric.unit) in text


def test_verdicts_are_said_in_words(html: str) -> None:
    text = Page(html).text
    assert "sched pipe: lightsleep is 5.98 times faster than stock (95 % CI" in text
    assert "lightsleep is 1.15 times slower than idle=poll" in text
    assert "control: no difference shown, as it must be" in text
    assert "The axis is logarithmic" in text


def test_the_page_opens_with_what_was_claimed_and_what_came_out(html: str) -> None:
    text = Page(html).text
    places = [
        text.index(said)
        for said in (
            "sched pipe: lightsleep / idle=poll is at most 1.25 held: 1.15",
            "Interrupts between CPUs: lightsleep / stock is at most 0.001 refuted: 0.00504",
            "idle residency: lightsleep - stock is at least -0.0105 points not decided: -0.010",
            "(95 % CI 5.48 to 5.65). Of 4 claims, 1 is refuted and 1 is not decided. idle",
            "Polling wakes at least 5 times faster.",
            "lightsleep against stock",
            "Every metric, every sample",
        )
    ]
    assert places == sorted(places)


@pytest.mark.usefixtures("without_plots")
def test_differences_that_the_control_could_have_missed_are_marked(html: str) -> None:
    result = made_up(n=12, metrics=1)
    samples = result.metrics["sched_pipe_s"].samples
    samples["control"] = [x * 10 ** (-1) ** i for i, x in enumerate(samples["stock"])]
    text = Page(render([("noisy.json", result)])).text
    assert text.count("5.98 × faster †") == 2  # on a tile, and in the table
    assert text.count(words.COULD_BE_MISSED) == 1
    assert re.search(r"held: 1\.15 \(95 % CI [^)]*\) †", text)
    assert re.search(r"times faster than stock \(95 % CI [^)]*\) †", text)
    assert "†" not in Page(html).text
    both = Page(render([("a.json", result), ("b.json", result)])).text
    assert both.count("5.98 × faster †") == 6  # in the overview, too


def test_a_dot_is_a_sample_and_no_run(html: str) -> None:
    text = Page(html).text
    assert "a dot is one sample, of one round;" in text
    assert "8 of 10 comparisons" in text
    assert not re.search(r"\bruns\b", text)


def test_no_unit_begins_a_line() -> None:
    assert tied("4.45 × faster (95 % CI 3.72 to 5.20 ×)").count("\N{NO-BREAK SPACE}") == 4
    assert tied("none shown (0.33 points)") == "none shown (0.33\N{NO-BREAK SPACE}points)"


def test_arms_have_a_colour_each_and_percentages_a_linear_axis() -> None:
    colours = colours_of(
        {"a": "baseline", "b": "treatment", "c": "treatment", "d": "limit", "e": "control"}
    )
    assert len(set(colours.values())) == 5
    scales = {metric.name: scale_of(metric) for metric in analyse(made_up())}
    assert scales["idle_residency_pct"] == "linear"
    assert scales["ipis"] == "log"


def test_names_that_differ_at_their_ends_are_told_apart_in_plots() -> None:
    governor = "sysfs:/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
    names = [short(f"{governor}={value}") for value in ("performance", "powersave")]
    assert names[0] != names[1]
    assert all(len(name) == 28 and name.startswith("sysfs:/sys") for name in names)
    assert short("lightsleep+governor:menu") == "lightsleep+governor:menu"
    assert (
        list(short_names(f"{governor}={x}" for x in ("performance", "powersave")).values()) == names
    )


@pytest.mark.parametrize(
    "names",
    [
        ["stock", "lightsleep", "haltpoll", "fixed-100us", "idle=poll", "stock-again"],
        ["m" * LONGEST_NAME] * 9,
        ["\n".join(["m" * LONGEST_LINE] * 3)] * 4,
        ["stock"],
    ],
    ids=["usual", "long", "in lines", "one"],
)
def test_a_legend_leaves_the_plot_its_width(names: list[str]) -> None:
    with style("x"):
        figure, axes = blank(2.7)
        for name in names:
            axes.plot([0, 1], [0, 1], label=name)
        plots.share_axis(axes)
        figure.savefig(BytesIO(), format="svg")
    legend, plot = axes.get_legend(), axes.get_window_extent()
    assert legend
    assert legend.get_window_extent().x1 <= figure.bbox.width
    assert legend.get_window_extent().y1 <= figure.bbox.height
    assert plot.width > 0.8 * figure.bbox.width
    assert plot.height > 0.65 * 2.7 * figure.dpi


def test_names_that_differ_in_the_middle_are_told_apart_in_plots() -> None:
    limits = [f"lightsleep:fixed:{limit}us+governor:menu" for limit in (50, 100, 200)]
    governors = [f"sysfs:/sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor=x" for n in "01"]
    shown = short_names([*limits, *governors, "stock"])
    assert len(set(shown.values())) == 6
    assert [name.replace("\n", "") for name in shown.values()] == list(shown)
    assert all(len(line) <= 28 for name in shown.values() for line in name.splitlines())
    result = made_up(n=30)
    for name in limits:
        result.arms.append(name)
        result.roles[name] = "treatment"
        for each in result.metrics.values():
            each.samples[name] = each.samples["stock"]
    metric = analyse(result)[0]
    for svg in (strip_plot(metric, "a"), ecdf_plot(metric, "a")):
        assert svg
        assert all(f"lightsleep:fixed:{limit}us+<" in svg for limit in (50, 100, 200))


@pytest.mark.usefixtures("without_plots")
def test_the_overview_of_several_results_has_their_claims(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        write_json(file, made_up().document())
    page = tmp_path / "page.html"
    said = CliRunner().invoke(report, [*map(str, files), "-o", str(page)])
    assert said.exit_code == 0, said.output
    elements = Page(page.read_text()).elements
    marks = [found.get("aria-label") or "" for tag, found in elements if tag == "a"]
    assert sum("lightsleep / idle=poll is at most 1.25: held: 1.15" in x for x in marks) == 2
    assert sum("is at most 0.001: refuted" in x for x in marks) == 2


@pytest.mark.usefixtures("without_plots")
def test_the_overview_has_the_claims_of_arms_that_are_no_treatments() -> None:
    result = made_up()
    result.arms.append("other")
    result.roles["other"] = "treatment"
    result.claims = [
        Claim("idle=poll", None, ("idle_residency_pct",), at_most=0.001),
        Claim("stock", "idle=poll", ("sched_pipe_s",), at_most=1.0),
        Claim("lightsleep", "stock", ("ipis",), at_most=0.001),
    ]
    html = render([("a.json", result), ("b.json", result)])
    rows = html.partition("</table>")[0].split("<tr>")[2:]
    links = [re.findall(r'href="#(\w+c\d+)"', row) for row in rows]
    assert links == [["r1c0", "r1c1", "r1c2"], [], ["r2c0", "r2c1", "r2c2"], []]
    assert {link for row in links for link in row} <= set(Page(html).ids)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(("boots", "named"), [(1, 7), (1, 6), (2, 8), (2, 6)])
def test_only_rounds_that_were_not_recorded_are_called_warm_up(boots: int, named: int) -> None:
    result = made_up(6, metrics=1, boots=boots)
    result.protocol["order"] = result.protocol["order"][:named]
    html = render([("r", result)])
    order = html.partition("Order of the arms")[2].partition("</table>")[0]
    rounds = re.findall(r'<tr><td class="number">([^<]*)</td>', order)
    assert len(rounds) == named
    assert rounds.count("warm-up") == named - 6
    assert [x for x in rounds if x != "warm-up"] == list("123456")


@pytest.mark.usefixtures("without_plots")
def test_the_overview_leaves_out_no_result(tmp_path: Path) -> None:
    result = made_up(metrics=2)
    result.claims = []
    result.roles["lightsleep"] = "control"
    for metric in result.metrics.values():
        metric.samples["control"] = [2 * x for x in metric.samples["stock"]]
    alone = render([("other.json", made_up()), ("differs.json", result)])
    overview = alone.partition("</table>")[0]
    assert "differs.json" in overview
    assert overview.count("see the warnings") == 1


@pytest.mark.usefixtures("without_plots")
def test_of_several_claims_the_worst_and_only_of_the_baseline_colours_a_metric() -> None:
    result = made_up()
    high = Claim("lightsleep", "idle=poll", ("wakes_without_ipi",), at_least=0.5)
    refuted = Claim("lightsleep", "stock", ("wakes_without_ipi",), at_most=0.5)
    result.metrics["wakes_without_ipi"].samples["stock"] = [1.0] * 10
    held = Claim("lightsleep", "stock", ("wakes_without_ipi",), at_least=2)
    for claims, tone in (
        ([high], "plain"),
        ([high, held], "good"),
        ([held, refuted], "bad"),
        ([refuted, held], "bad"),
    ):
        result.claims = claims
        shown = {x.analysis.name: x.tones for x in section("r", "r", result).metrics}
        assert shown["wakes_without_ipi"]["lightsleep"] == tone


@pytest.mark.usefixtures("without_plots")
def test_a_claim_gives_a_metric_its_direction() -> None:
    result = made_up()
    result.claims = [Claim("lightsleep", "stock", ("wakes_without_ipi",), at_least=2)]
    result.metrics["wakes_without_ipi"].samples["stock"] = [1.0] * 10
    (shown,) = [x for x in section("r", "r", result).metrics if x.analysis.name.startswith("wakes")]
    assert shown.tones["lightsleep"] == "good"
    assert shown.tones["idle=poll"] == "plain"


def test_environment_and_protocol_are_on_the_page(html: str) -> None:
    text = Page(html).text
    for said in ("Example CPU 9000", "a probe boot under KVM hung", "7.2.22", "what stock is"):
        assert said in text
    assert "10 rounds after 1 of warm-up that was not recorded; in each round" in text
    assert "rest s: 20" in text
    order = text[text.index("Order of the arms") : text.index("Raw samples")].split()
    assert [word for word in order if word == "warm-up" or word.isdigit()] == [
        "warm-up",
        *map(str, range(1, 11)),
    ]


def test_every_plot_has_a_text_alternative_and_readable_text(html: str) -> None:
    page = Page(html)
    images = [attrs for _, attrs in page.elements if attrs.get("role") == "img"]
    assert len(images) == len(made_up().metrics)
    assert all(attrs["aria-label"] for attrs in images)
    assert html.count("<svg") == len(images)
    assert {f"{arm}" for arm in ROLES} <= {text.strip() for text in page.texts}


def test_every_sample_is_a_dot(html: str) -> None:
    strip = html[html.index("<svg") : html.index("</svg>")]
    assert len(re.findall(r"<use [^>]*fill-opacity: 0.75", strip)) == 4 * 10


def test_the_same_results_give_the_same_page(html: str) -> None:
    assert render([("result.json", made_up())]) == html


def test_a_distribution_function_from_20_samples_on() -> None:
    (few, *_), (enough, *_) = analyse(made_up(19)), analyse(made_up(20))
    assert ecdf_plot(few, "salt") is None
    svg = ecdf_plot(enough, "salt")
    assert svg
    assert all(f">{arm}</text>" in svg for arm in ROLES)


def test_debian_12_has_a_matplotlib_without_ecdf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Axes, "ecdf", raising=False)
    assert ecdf_plot(analyse(made_up(20))[0], "salt")


def test_names_cannot_inject_anything() -> None:
    result, evil = made_up(), "\"'><script>alert(1)</script><img src=http://x onerror=a>{{7*7}}$x$"
    arms = {arm: f"{arm}{evil}" for arm in ROLES}
    result.title = result.hypothesis = result.created = result.experiment = evil
    result.environment = {evil: {evil: evil}, "guests": {arms["stock"]: {evil: [evil]}}}
    result.arms = list(arms.values())
    result.roles = {arms[arm]: role for arm, role in ROLES.items()}
    result.protocol["order"] = [result.arms]
    result.claims = [
        Claim(arms["lightsleep"], arms["stock"], (f"{evil}sched_pipe_s",)),
        Claim(arms["lightsleep"], arms["stock"], (f"{evil}idle_residency_pct",), at_least=-1),
    ]
    result.metrics = {evil + name: metric for name, metric in result.metrics.items()}
    for metric in result.metrics.values():
        metric.title = metric.description = evil
        metric.unit = "<b>" if metric.unit else ""
        metric.samples = {arms[arm]: samples for arm, samples in metric.samples.items()}
    html = render([(evil, result)])
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img"}
    assert evil in page.text
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert all(load.startswith("#") for load in page.loads)


@pytest.mark.usefixtures("without_plots")
def test_a_control_that_differs_is_a_warning() -> None:
    result = made_up(metrics=1)
    samples = result.metrics["sched_pipe_s"].samples
    samples["control"] = samples["lightsleep"]
    text = Page(render([("r", result)])).text
    assert "Warning: control: sched pipe: control is 5.98 times faster than stock" in text


@pytest.mark.usefixtures("without_plots")
def test_no_control_no_treatment_no_metrics() -> None:
    result = made_up(metrics=1)
    result.roles.update({"control": "limit", "lightsleep": "limit"})
    assert "There is no negative control" in Page(render([("r", result)])).text
    result.metrics, result.claims = {}, []
    assert "The file holds no metrics" in Page(render([("r", result)])).text
    result.roles["control"] = "control"
    assert "There is no negative control" not in Page(render([("r", result)])).text


@pytest.mark.usefixtures("without_plots")
def test_every_heading_of_a_table_has_a_text_and_a_scope() -> None:
    html = render([("r", made_up(metrics=1))])
    headings = re.findall(r"<th\b([^>]*)>(.*?)</th>", html, re.DOTALL)
    assert headings
    assert [x for x in headings if "scope=" not in x[0] or not x[1]] == []


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("n", [1, 2, 4])
def test_few_samples_make_a_page_that_says_so(n: int) -> None:
    assert "too few rounds" in Page(render([("r", made_up(n, metrics=1))])).text


def test_empty_arms_and_odd_values() -> None:
    result = made_up()
    result.metrics["ipis"].samples["lightsleep"] = []
    result.metrics["sched_pipe_s"].samples = {arm: [] for arm in ROLES}
    result.metrics["wakes_without_ipi"].samples["stock"] = [-1e18, 0.0, 1e-300, 1e18] + [5.0] * 6
    result.metrics["sched_messaging_s"].samples["stock"] = [5e-324] * 10
    result.metrics["idle_residency_pct"].samples["stock"] = [0.0] * 10
    page = assert_self_contained(render([("r", result)]))
    assert "no samples" in page.text
    assert "nan" not in page.text.split()


@pytest.mark.usefixtures("without_plots")
def test_several_files_stand_side_by_side(tmp_path: Path, file: Path) -> None:
    other = made_up(25, metrics=3)
    other.title = "The other one"
    write_json(tmp_path / "other.json", other.document())
    done = run(file, tmp_path / "other.json", file, "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    page = assert_self_contained((tmp_path / "page.html").read_text())
    assert "3 comparisons side by side" in page.text
    assert "The other one" in page.text
    assert f"{file} (2)" in page.text


def test_the_name_of_a_file_need_not_be_utf_8(tmp_path: Path, file: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    file.rename(odd)
    assert run(odd, "-o", tmp_path / "page.html").exit_code == 0
    assert "\ufffd.json" in (tmp_path / "page.html").read_text()


def test_page_on_standard_output(file: Path) -> None:
    done = run(file, "-o", "-")
    assert done.stdout == render([(str(file), made_up(metrics=2))])
    assert not Path("-").exists()


def test_json_holds_the_figures_and_writes_no_page(tmp_path: Path, file: Path) -> None:
    done = run(file, "--json", "-o", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "leave one of them out" in done.output
    done = run(file, "--json")
    assert done.exit_code == 0
    (document,) = json.loads(done.stdout)["results"]
    assert list(document["metrics"]) == list(made_up(metrics=2).metrics)
    arm = document["metrics"]["sched_pipe_s"]["arms"]["lightsleep"]
    samples = made_up().metrics["sched_pipe_s"].samples
    summary = summarise(samples["lightsleep"])
    assert summary
    assert arm["summary"]["median"] == summary.median
    assert arm["summary"]["confidence"] == summary.confidence
    comparison = compare(samples["stock"], samples["lightsleep"], "lower")
    assert comparison.ratio
    assert arm["baseline"]["verdict"] == "better"
    assert arm["baseline"]["ratio"]["value"] == comparison.ratio.value
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("data", [b"root:x:0:0:root:/root:/bin/sh\n", b"\x7fELF\xff"])
def test_what_report_reads_is_said_of_what_it_cannot_read(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_bytes(data)
    done = run(file, "-o", tmp_path / "page.html")
    assert done.exit_code == 1
    said = " ".join(done.stderr.split())
    assert "report reads results of lightsleep (JSON) and recordings" in said


@pytest.mark.parametrize("existing", [None, "the old page"])
def test_no_cut_file_makes_or_replaces_a_page(
    tmp_path: Path, file: Path, existing: str | None
) -> None:
    text, page = file.read_text(), tmp_path / "page.html"
    if existing:
        page.write_text(existing)
    for length in range(0, len(text) - 2, len(text) // 40):
        file.write_text(text[:length])
        done = run(file, "-o", page)
        assert done.exit_code == 1
        assert isinstance(done.exception, SystemExit), done.exception
        assert str(file) in done.stderr
        assert (page.read_text() if page.exists() else None) == existing


def test_one_bad_file_among_good_ones_makes_no_page(tmp_path: Path, file: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    assert run(file, tmp_path / "bad.json", "-o", tmp_path / "page.html").exit_code == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("option", ["-o", "--parquet", "--perfetto"])
def test_no_output_replaces_the_description_of_a_recording(tmp_path: Path, option: str) -> None:
    trace = tmp_path / "pipe.txt.gz"
    shutil.copy(PIPE, trace)
    described = shutil.copy(sidecar.beside(PIPE), sidecar.beside(trace))
    before = Path(described).read_bytes()
    done = run(trace, option, described)
    assert done.exit_code == 1
    assert "describes" in done.stderr
    assert Path(described).read_bytes() == before


def test_what_a_recording_says_is_shown_where_its_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _text: str) -> None:
        raise LightsleepError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(cli, "write_text", full)
    done = run(PIPE, "-o", tmp_path / "page.html")
    assert done.exit_code == 1
    assert "No space left" in done.stderr
    assert "wrote" not in done.stderr
    assert "wakeups" in done.stdout


def test_refusals_of_the_output(tmp_path: Path, file: Path) -> None:
    before = file.read_bytes()
    done = run(file, "-o", tmp_path)
    assert done.exit_code == 1
    assert "is a folder: name a file" in done.stderr
    done = run(file, "-o", tmp_path / "." / "result.json")
    assert done.exit_code == 1
    assert "is read: name another file" in done.stderr
    assert file.read_bytes() == before
    done = run(file, "-o", file / "below" / "page.html")
    assert done.exit_code == 1
    assert "cannot write" in done.stderr
    (tmp_path / "loop").symlink_to("loop")
    for arguments in ((file, "-o", tmp_path / "loop"), (tmp_path / "loop",)):
        done = run(*arguments)
        assert done.exit_code == 1
        assert "Too many levels of symbolic links" in done.stderr
    done = run(file, "-o", tmp_path / ("n" * 256))
    assert done.exit_code == 1
    assert "File name too long" in done.stderr
    assert run().exit_code == 2


def test_a_link_is_written_through_and_a_device_stays_a_device(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("real.html")
    write_text(tmp_path / "link.html", "page")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "page"
    write_text(Path("/dev/null"), "page")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_keeps_the_old_file_and_leaves_no_scratch(tmp_path: Path) -> None:
    """A write that is cut short by a limit fails as on a full disk."""
    page = tmp_path / "page.html"
    page.write_text("the old page")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
        with pytest.raises(LightsleepError, match=r"cannot write .*page.html: File too large$"):
            write_text(page, "the new page")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert page.read_text() == "the old page"
    assert list(tmp_path.iterdir()) == [page]

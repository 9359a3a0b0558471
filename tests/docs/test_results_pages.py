# SPDX-License-Identifier: GPL-2.0-only
"""The pages of results are what ``make results`` makes of their files, and hold their figures."""

from __future__ import annotations

import math
import random
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import same
from click.testing import CliRunner
from comparisons import made_up
from paths import ROOT
from programs_here import loaded
from result_page import command, page, repeated

from lightsleep.cli import main
from lightsleep.compare.analysis import analyse
from lightsleep.compare.headline import headline
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json
from lightsleep.lab import experiments
from lightsleep.lab.run import protocol
from lightsleep.lab.run.experiment import Metric

RESULTS = sorted((ROOT / "docs/results").glob("*.json"))
script = loaded("scripts/results.py")
FOLDERS = script.folders_of(ROOT / "docs/results")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_of_a_result_is_up_to_date(path: Path) -> None:
    written = path.with_suffix(".md")
    assert written.exists(), "run make results"
    assert written.read_text() == script.page_of(path), "run make results"


@pytest.mark.parametrize("path", [*RESULTS, *FOLDERS], ids=lambda path: path.stem)
def test_the_picture_of_a_result_is_of_its_samples(path: Path) -> None:
    picture = path.with_suffix(".svg")
    assert picture.exists() == (f"]({picture.name})" in path.with_suffix(".md").read_text())
    assert not picture.exists() or script.note_of(path) in picture.read_text(), "run make results"


def test_a_picture_is_of_another_result_where_a_metric_was_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "one.json", tmp_path / "same-x86_64"
    write_json(path, made_up().document())
    write_json(folder / same.NAME.format(1), made_up().document())
    notes = script.note_of(path), script.note_of(folder)
    assert (script.note_of(path), script.note_of(folder)) == notes
    idle, old = experiments.load("idle"), made_up().metrics["sched_pipe_s"]
    assert isinstance(idle.metrics, tuple)
    renamed = Metric("sched_pipe_s", "s", "lower", "Pipe", old.description)
    metrics = (renamed, *(x for x in idle.metrics if x.name != renamed.name))
    monkeypatch.setattr(experiments, "load", lambda _: replace(idle, metrics=metrics))
    assert script.note_of(path) != notes[0]
    assert script.note_of(folder) == notes[1]  # has the titles of its files


def test_the_picture_of_the_demo_is_up_to_date() -> None:
    folder = ROOT / "docs/results"
    assert (folder / script.PICTURE).read_text() == script.picture_of(folder / script.DEMO)
    assert f"](docs/results/{script.PICTURE})" in (ROOT / "README.md").read_text()


def test_the_result_of_an_experiment_of_ones_own_has_a_page(tmp_path: Path) -> None:
    mine = made_up(n=12, boots=6)
    mine.experiment = "mine"
    write_json(tmp_path / "mine.json", mine.document())
    script.write_pages(tmp_path)
    assert "mine.json" in (tmp_path / "mine.md").read_text()
    assert "](mine.md)" in (tmp_path / script.INDEX).read_text()


def test_one_damaged_result_among_others_writes_no_page(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", made_up().document())
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text()[:-100])
    with pytest.raises(LightsleepError, match=r"b\.json.* looks cut off"):
        script.write_pages(tmp_path)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_the_index_says_where_clocks_count_instructions(tmp_path: Path) -> None:
    result = made_up()
    for name, said in (("tcg", False), ("tcg-icount", True)):
        result.environment["accelerator"] = {"name": name}
        write_json(tmp_path / "one.json", result.document())
        assert (f"emulated. {script.COUNTS}\n" in script.index_of(tmp_path)) is said


def test_every_page_of_a_result_has_its_file() -> None:
    folder = ROOT / "docs/results"
    written = [path.with_suffix(".md") for path in (*RESULTS, *FOLDERS)]
    written += [folder / script.INDEX, folder / script.rejudged.PAGE]
    assert sorted(folder.glob("*.md")) == sorted(written)


def test_the_index_is_up_to_date_and_names_each_page() -> None:
    folder = ROOT / "docs/results"
    index = (folder / script.INDEX).read_text()
    assert index == script.index_of(folder), "run make results"
    for path in (*RESULTS, *FOLDERS):
        assert index.count(f"]({path.stem}.md)") == 1


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_page_of_comparisons_of_the_same_is_up_to_date(folder: Path) -> None:
    assert folder.with_suffix(".md").read_text() == script.same_page(folder), "run make results"


def test_the_page_of_both_rules_is_up_to_date() -> None:
    folder = ROOT / "docs/results"
    written = (folder / script.rejudged.PAGE).read_text()
    assert written == script.rejudged.page(folder), "run make results"


def test_less_of_an_amount_is_not_called_faster() -> None:
    written = (ROOT / "docs/results" / script.rejudged.PAGE).read_text()
    rows = [line for line in written.splitlines() if "host CPU time" in line]
    assert rows
    assert not [line for line in rows if "× faster" in line or "× slower" in line]


def test_comparisons_of_the_same_have_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "same-x86_64"
    for number in range(1, 4):
        result = made_up(n=12, boots=6)
        if number == 2:
            samples = result.metrics["sched_pipe_s"].samples
            samples["control"] = [2 * x for x in samples["stock"]]
        write_json(folder / same.NAME.format(number), result.document())
    said = same.page(folder)
    assert "3 comparisons, each of 12 rounds in 6 boots of each guest:" in said
    assert (
        "- 1 of 3 comparisons showed a difference; by chance alone, up to 1 of 3 would be no "
        "surprise (95 %)"
    ) in said
    assert "- sched pipe: boot to boot, over all comparisons, " in said
    assert said.count("| 1 | ") == 3  # the seed
    assert said.count("↑ 2.00 × slower") + said.count("✘ 2.00 × slower") == 1
    assert "make false-alarms RUNS=3" in said
    index = script.index_of(tmp_path)
    assert "| 1 of 3 comparisons showed a difference; by chance alone, up to 1 of 3 " in index


@pytest.mark.parametrize("what", ["rounds", "boots", "commit"])
def test_a_page_is_of_comparisons_that_were_measured_alike(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "same-x86_64"
    other = made_up(n=18 if what == "rounds" else 12, boots=3 if what == "boots" else 6)
    other.environment["source"] = {"commit": "05d76b7" if what == "commit" else None}
    write_json(folder / same.NAME.format(1), made_up(n=12, boots=6).document())
    write_json(folder / same.NAME.format(2), other.document())
    with pytest.raises(LightsleepError, match=r"same-02\.json has .* but same-01\.json has "):
        same.page(folder)


def test_boots_that_scatter_little_are_seen_over_many_comparisons() -> None:
    """By little more than a quarter of what a round does: most comparisons alone see none."""
    rng, results = random.Random(5), []
    for _ in range(300):
        result = made_up(n=12, boots=3, metrics=1)
        samples = result.metrics["sched_pipe_s"].samples
        of_boots = [rng.gauss(0, 0.028) for _ in range(3)]
        effects = [of_boots[i // 4] + rng.gauss(0, 0.1) for i in range(12)]
        samples["stock"] = [1.0] * 12
        samples["control"] = [math.exp(x) for x in effects]
        results.append(result)
    said = re.search(r"boot to boot, over all comparisons, ([\d.]+) %;", same.report(results))
    assert said
    assert 1 < float(said[1]) < 4


@pytest.mark.parametrize("path", [*RESULTS, *FOLDERS], ids=lambda path: path.stem)
def test_a_page_links_to_each_result(path: Path) -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
    link = re.compile(rf"results/{path.stem}\.(md|json)\)")
    assert any(link.search(page.read_text()) for page in pages), "cite it, or remove it"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_command_of_a_page_is_not_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, measured = load(path, FORMAT), []

    def compare(*given: object) -> CompareResult:
        measured.append(given[3:6])
        return result

    monkeypatch.setattr(protocol, "compare", compare)
    monkeypatch.chdir(tmp_path)
    for tree in ("linux-7.3", "linux-6.12", "linux-6.12-idle-poll"):  # kernels of one's own
        Path(tree).mkdir()
    printed = command(result)
    assert f"    {printed}\n" in path.with_suffix(".md").read_text()
    ran = CliRunner().invoke(main, shlex.split(printed)[1:])
    assert measured == [(*repeated(result), result.protocol["seed"])], ran.output


def test_a_page_says_where_its_command_measures_more_than_the_result_has() -> None:
    text = page(made_up(n=8), "x.json")
    assert "lightsleep lab compare idle --rounds 9 --boots 3 --seed 1\n" in text
    assert (
        "This result has 8 rounds in 1 boot. The command refuses to repeat it as it was: it "
        "requires at least 3 boots, and more rounds for more metrics. As printed, it "
        "measures 9 rounds in 3 boots."
    ) in text
    assert "refuses" not in page(made_up(n=12, boots=3), "x.json")


def test_a_page_says_what_the_terminal_says() -> None:
    text = page(made_up(), "made-up.json")
    for said in (
        "sched pipe and seccomp notify: lightsleep is 5.57 times faster than stock",
        "| ✔ | sched pipe: lightsleep / idle=poll is at most 1.25 | held: 1.15 (95 % CI",
        "| lightsleep | 0.368 s (0.361 to 0.375 s) | ✔ 5.98 × faster (95 % CI",
        "Control: no difference shown, as it must be",
        "lightsleep lab compare idle --rounds 12 --boots 3 --seed 1",
        "| commit | not recorded |",
        "[made-up.json](made-up.json)",
    ):
        assert said in text
    assert "declared after" not in text


def test_a_page_says_where_its_sources_cannot_be_told() -> None:
    result = made_up()
    not_recorded = "The sources that measured this were not recorded: they may differ from today's."
    changed = (
        "The sources had changes that commit 05d76b7 does not have, or were changed during the "
        "comparison. That commit alone may measure something else."
    )
    assert not_recorded in page(result, "x.json")
    result.environment["source"] = {"version": "0.1.0", "commit": "05d76b7-dirty"}
    assert changed in page(result, "x.json")
    result.environment["source"]["commit"] = "05d76b7"
    assert "The sources " not in page(result, "x.json")


def test_a_page_says_how_many_cpus_the_lab_might_use() -> None:
    result, row = made_up(), "| CPUs of the host |"
    assert row not in page(result, "x.json")
    host = result.environment["host"]
    host["cpus"] = 16  # an older result
    assert f"{row} 16 |" in page(result, "x.json")
    host["cpus_allowed"] = 16
    assert f"{row} 16 |" in page(result, "x.json")
    host["cpus_allowed"] = 2
    assert f"{row} 16, of which the lab was allowed to use 2 |" in page(result, "x.json")


def test_a_page_says_what_host_and_guests_lacked() -> None:
    result = made_up()
    assert "few CPUs" not in page(result, "x.json")
    result.protocol["few_cpus"] = "few CPUs: the guests have 2 CPUs"
    assert "| too few CPUs | the guests have 2 CPUs |" in page(result, "x.json")
    result.protocol["no_modprobe"] = "no modprobe: guests are without the modules"
    assert "| no modprobe | guests are without the modules |" in page(result, "x.json")


def test_a_page_says_how_many_runs_were_set_aside() -> None:
    result, row = made_up(), "| earlier runs set aside, as their control differed |"
    assert row not in page(result, "x.json")
    for runs in (0, 2):
        result.protocol["control_differed"] = runs
        assert f"{row} {runs} |" in page(result, "x.json")


def test_a_page_opens_with_the_hypothesis() -> None:
    said = "Hypothesis: Polling wakes at least 5 times faster. Falsified by less than that."
    assert f"halting idle\n\n{said}\n\n## Claims" in page(made_up(), "x.json")
    alone = made_up()
    alone.hypothesis, alone.claims = "", []
    assert "Hypothesis" not in page(alone, "x.json")


def test_claims_of_an_older_result_are_said_to_be_later(tmp_path: Path) -> None:
    result = made_up()
    result.claims = []
    result.roles["idle=poll"] = "limit"
    write_json(tmp_path / "old.json", result.document())
    written = script.page_of(tmp_path / "old.json")
    assert "The claims were declared after this run." in written
    index = script.index_of(tmp_path)
    assert re.search(r"\| declared later: [✔✘?]", index)
    kept, _ = script.load_result(tmp_path / "old.json")
    said = headline(replace(kept, claims=[]), analyse(kept))
    assert said.startswith("sched pipe: lightsleep is 5.98 times faster than stock")
    assert "No claim was declared beforehand." in said
    assert said in written
    assert said in index
    write_json(tmp_path / "old.json", made_up().document())
    assert "declared later: ✔" not in script.index_of(tmp_path)


def test_the_index_says_where_no_claim_was_declared(tmp_path: Path) -> None:
    result = made_up()
    result.experiment, result.claims = "mine", []
    result.hypothesis = "Twice as fast. Falsified by less."  # a claim, but not as data
    write_json(tmp_path / "mine.json", result.document())
    assert "othing was claimed" not in script.page_of(tmp_path / "mine.json")
    assert "No claim was declared beforehand. " in script.index_of(tmp_path)
    assert "| none declared |" in script.index_of(tmp_path)


def test_a_kept_metric_has_todays_title_where_it_is_described_as_today(tmp_path: Path) -> None:
    metrics = experiments.load("idle").metrics
    assert isinstance(metrics, tuple)
    (today,) = (metric for metric in metrics if metric.name == "sched_pipe_s")
    result = made_up()
    metric = result.metrics[today.name]
    for description, title in (("of old", "sched pipe"), (today.description, today.title)):
        result.metrics[today.name] = replace(metric, description=description)
        write_json(tmp_path / "old.json", result.document())
        kept, _ = script.load_result(tmp_path / "old.json")
        assert kept.metrics[today.name].title == title


def test_a_page_says_what_was_thrown_away_before_it() -> None:
    result = made_up()
    text = page(result, "x.json")
    assert "measured again" not in text
    assert "done again" not in text
    assert "booted again" not in text
    assert "too little memory" not in text
    result.protocol |= {
        "started_over": "stock: QEMU ended",
        "guests_booted_again": ["boot 1 of 3, stock: QEMU ended"],
        "booted_again": ["stock was 1.3 times as fast", "stock was 1.4 times as fast"],
        "little_memory": "little memory: all guests together may need 9 MiB",
    }
    text = page(result, "x.json")
    assert "| measured again, as the first attempt failed | stock: QEMU ended |" in text
    assert "| guests booted again | boot 1 of 3, stock: QEMU ended |" in text
    both = "stock was 1.3 times as fast; stock was 1.4 times as fast"
    assert f"| boots and their rounds done again | {both} |" in text
    assert "| too little memory | all guests together may need 9 MiB |" in text


def test_a_page_says_of_which_comparison_boots_differ_and_what_is_not_pictured() -> None:
    text = page(made_up(n=12, boots=3), "x.json", picture="x.svg")
    assert "| arm | median | against stock | boot to boot | against idle=poll |" in text
    assert "Percentages, and metrics with a sample of 0, are in the tables only." in text
    assert "in the tables only" not in page(made_up(n=12), "x.json")


def test_a_page_does_not_say_that_other_work_took_a_large_host() -> None:
    """Three of 64 CPUs are 100 % of what a guest of two could use."""
    result = made_up()
    result.environment["host"] |= {"cpus": 64, "other_load_pct": 100.0}
    of_what = "of as much CPU time as the guests can use"
    text = page(result, "x.json")
    assert f"| other load on the host | 100 % {of_what} |" in text
    assert f"| disturbed | other work took 100 % or more {of_what} |" in text
    result.protocol["other_load_pct"] = {"stock": [100.0]}
    worst = f"other work took over 5 % {of_what}, 100 % or more in the worst (stock, round 1)"
    assert worst in page(result, "x.json")


def test_a_page_says_which_kernel_each_arm_booted() -> None:
    result = made_up()
    guests = result.environment["guests"]
    assert "| arm | what it is |\n" in page(result, "x.json")
    guests["stock"] |= {"kernel": "7.3.4", "description": "the distribution's kernel as it is"}
    guests["control"]["kernel"] = "7.3.4-patched"
    text = page(result, "x.json")
    assert "| stock (baseline) | the kernel as it is | 7.3.4 |\n" in text
    assert "| control (control) | what control is | 7.3.4-patched |\n" in text
    assert "| lightsleep | what lightsleep is |  |\n" in text


def test_names_are_not_markup() -> None:
    result = made_up()
    result.title = "a | b\n# <c> *d*"
    assert "# a \\| b # &lt;c> \\*d\\*\n" in page(result, "x.json")

# SPDX-License-Identifier: GPL-2.0-only
"""The pages: what they link to exists, and the commands and code in them are ours."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import click
import pytest
from paths import ROOT

from lightsleep.cli import main
from lightsleep.lab.run.experiment import Experiment
from lightsleep.measure.model import Sample

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
COMMAND = re.compile(r"(?:^    (?:# |\$ )?|`)(?:sudo )?(lightsleep [^`\n]*)", re.MULTILINE)
VERB = re.compile(r"(?:^    (?:# |\$ )?|`)make ([a-z][a-z-]*)", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-") for x in headings}


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path
        assert target.exists(), path
        assert not anchor or anchor[1:] in anchors(target), path + anchor


def options_of(command: click.Command) -> set[str]:
    parameters = command.get_params(click.Context(command))
    return {option for x in parameters for option in (*x.opts, *x.secondary_opts)}


@EACH_PAGE
def test_commands_have_the_verbs_and_options_that_pages_name(page: Path) -> None:
    for text in COMMAND.findall(page.read_text()):
        command: click.Command = main
        # Words up to the remark, which two blanks or "#" set apart.
        plain = re.split(r"  |#|\\", re.sub(r"'[^']*'", "QUOTED", text))[0]
        for word in plain.split()[1:]:
            if word == "--":
                break  # a command of somebody else follows
            if word.startswith("-"):
                assert word.partition("=")[0] in options_of(command), text
            elif isinstance(command, click.Group):
                found = command.get_command(click.Context(command), word)
                assert found, f"no verb {word!r}: {text}"
                command = found


@EACH_PAGE
def test_make_has_the_verbs_that_pages_name(page: Path) -> None:
    targets = re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text())
    targets += re.findall(r"(?m)^([a-z][a-z -]*):", (ROOT / "kernel/Makefile").read_text())
    known = {name for target in targets for name in target.split()}
    assert set(VERB.findall(page.read_text())) <= known


def test_no_command_of_the_page_writes_mails_where_another_one_has() -> None:
    page = (ROOT / "docs/kernel-series.md").read_text()
    made = re.findall(r"make series BASE=\S+(?: TOPIC=(\w+))? OUT=([\w-]+)", page)
    lab = re.findall(r"lab series \S+ ([\w-]+)(?: --topic ([\w-]+))?", page)
    made += [(topic, out) for out, topic in lab]
    assert len(made) == 4
    for (topic, out), (other, there) in itertools.combinations(made, 2):
        assert out != there or (topic and other and topic != other)


@EACH_PAGE
def test_a_page_that_edits_a_unit_says_how_to_undo_it(page: Path) -> None:
    text = page.read_text()
    edited, reverted = (
        set(re.findall(rf"systemctl {verb} ([\w.@-]+)", text)) for verb in ("edit", "revert")
    )
    assert edited <= reverted


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/packages.md", "docs/scan.md"])
def test_pages_name_the_kernels_that_dkms_builds_for(page: str) -> None:
    rule = (ROOT / "kernel/dkms-kernels.sh").read_text()
    ends = [re.search(rf'_{end}="(\d+\.\d+)', rule) for end in ("MIN", "MAX")]
    first, last = (found[1] for found in ends if found)
    text = " ".join((ROOT / page).read_text().split())
    assert set(re.findall(r"Linux (\d\S*) to (\d+\.\d+)", text)) == {(first, last)}


def test_a_page_removes_every_module_that_make_installs() -> None:
    kbuild, _, _ = (ROOT / "kernel/Kbuild").read_text().partition("ifdef LIGHTSLEEP_TESTS")
    installed = set(re.findall(r"(?m)^obj-.* \+= (\w+)\.o$", kbuild))
    assert {"cpuidle_lightsleep", "cpuidle_synthetic"} <= installed
    page = (ROOT / "docs/packages.md").read_text()
    (row,) = re.findall(r"(?m)^\| `sudo make -C kernel install` \| (.*)$", page)
    (removed,) = re.findall(r"\{([\w,]+)\}\.ko", row)
    assert set(removed.split(",")) == installed


def test_what_root_installs_from_pip_is_for_all_users() -> None:
    """sudo adds the user's umask to its own: with 077, only root could run the command."""
    text = (ROOT / "docs/packages.md").read_text()
    blocks = [x for x in re.findall(r"(?m)(?:^    .*\n)+", text) if "-m venv /opt/light" in x]
    upgrades = re.findall(r"To upgrade(?: it)?: `.*?the\s`pip`\sline", text, re.DOTALL)
    assert (len(blocks), len(upgrades)) == (2, 2)
    assert all(x.startswith("    umask 022\n") for x in blocks)
    assert all("`git pull`, `umask 022`, " in " ".join(x.split()) for x in upgrades)


def test_the_experiment_of_the_how_to_is_one() -> None:
    text = (ROOT / "docs/how-to/add-an-experiment.md").read_text()
    (code,) = re.findall(r"(?s)```python\n(.+?)```", text)
    there: dict[str, object] = {}
    exec(code, there)
    experiment = there["EXPERIMENT"]
    assert isinstance(experiment, Experiment)
    assert [arm.role for arm in experiment.arms].count("baseline") == 1


def test_a_page_explains_every_line_of_status() -> None:
    source = (ROOT / "lightsleep/enable/render.py").read_text()
    printed = source.partition("def _facts(")[2].partition("\ndef ")[0]
    lines = set(re.findall(r'yield \(?\s*"([a-z ]+)",', printed))
    assert {"lightsleep", "loaded", "halt cost"} <= lines
    table = (ROOT / "docs/enable.md").read_text().partition("| line | meaning |")[2]
    cells = re.findall(r"(?m)^\| (`.+?`) \|", table.partition("\n\n")[0])
    assert set(re.findall("`([^`]+)`", " ".join(cells))) == lines


@pytest.mark.parametrize("page", ["docs/enable.md", "docs/tutorial.md"])
def test_pages_say_what_status_says_after_a_reboot(page: str) -> None:
    said = '"not by lightsleep enable since this boot"'
    assert said in (ROOT / "lightsleep/enable/render.py").read_text()
    assert said in (ROOT / page).read_text()


def constant(path: str, name: str) -> int:
    """Return a constant of a file in C."""
    (value,) = re.findall(rf"(?m)^#define {name}\s+(\d+)", (ROOT / path).read_text())
    return int(value)


def test_the_policy_page_has_the_ceiling_of_the_driver() -> None:
    ceiling_ms = constant("kernel/drivers/cpuidle/lightsleep.h", "POLL_LIMIT_US_MAX") / 1000
    weight = constant("kernel/drivers/cpuidle/lightsleep_sysfs.c", "WAIT_WEIGHT_DEFAULT")
    text = " ".join((ROOT / "docs/polling-policy.md").read_text().split())
    assert f"The ceiling is {ceiling_ms:g} ms, or `poll_limit_us`" in text
    twice = f"With the default `wait_weight` of {weight}, 2C is below {ceiling_ms:g} ms"
    assert f"{twice} while a halt costs less than {ceiling_ms / 2 / weight:g} ms." in text


def test_a_page_names_the_columns_of_each_sample() -> None:
    text = (ROOT / "docs/measure.md").read_text()
    sentence = text.partition("The columns of `--csv` are ")[2].partition("](")[0]
    assert re.findall(r"`(\w+)`", sentence) == [x.name for x in dataclasses.fields(Sample)]

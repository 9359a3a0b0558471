# SPDX-License-Identifier: GPL-2.0-only
"""What our patches and cover letters say, and which topic carries what."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest
from paths import ROOT
from series_trees import OURS

from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.sources import KERNEL


def test_each_base_has_a_kernel_for_every_architecture() -> None:
    for base in series.bases():
        assert all(arch.built[f"{base}-series"].patched for arch in ARCHES.values())
    assert sorted(row.version for row in OURS) == series.bases()


@pytest.mark.parametrize("base", series.bases())
def test_whatever_lets_cpus_poll_carries_the_fixes_for_it(base: str) -> None:
    topics = series.read_topics(base)
    fixes = [x for x in topics if x.name in ("softirq", "genirq")]
    assert list(topics[: len(fixes)]) == fixes
    assert fixes[0].name == "softirq"
    for topic in topics[len(fixes) :]:
        text = "".join(patch.path.read_text() for patch in topic.own)
        if "TIF_POLLING_NRFLAG" in text:
            assert topic.patches[0] == fixes[0].patches[0]
        if topic.name in ("arm64-polling", "idle-poll"):  # they add CPUs that poll, or polls
            assert [x for fix in fixes for x in fix.patches] == list(topic.patches[: len(fixes)])


@pytest.mark.parametrize("base", series.bases())
def test_no_line_of_a_message_is_longer_than_checkpatch_takes(base: str) -> None:
    for topic in series.read_topics(base):
        for patch in topic.own:
            head = patch.path.read_text().partition("\n---\n")[0]
            _, _, text = head.partition("\n\n")  # the headers of the mail
            lines = [x for x in text.splitlines() if not re.match(r"[A-Z][\w-]+: \S", x)]
            assert [x for x in lines if len(x) > 75] == [], patch.path


@pytest.mark.parametrize("base", series.bases())
def test_a_cover_letter_names_what_the_topic_carries(base: str) -> None:
    for topic in series.read_topics(base):
        for patch in topic.carried:
            assert f"topic {patch.path.parent.name}" in topic.cover.read_text()


def test_the_page_names_the_option_of_each_patch() -> None:
    """One that a patch brings, or asks for."""
    _, _, table = (ROOT / "docs/kernel-series.md").read_text().partition("\n| patch | option |")
    rows = re.findall(r"(?m)^\| ([a-z0-9-]+) \|([^|]*)\|[^|]*\|$", table.partition("\n\n")[0])
    patches = {x.name: x for base in series.bases() for x in series.read_series(base)}
    assert {name for name, _ in rows} == set(patches)
    for name, option in rows:
        text = patches[name].path.read_text()
        named = {option.split()[0]} if option.strip() else set()
        assert not (patches[name].options - {f"CONFIG_{x}" for x in named}), name
        assert all(re.search(rf"(?:CONFIG_|^\+config ){x}\b", text, re.M) for x in named), name


@pytest.mark.parametrize("base", series.bases())
def test_a_driver_is_changed_by_a_mail_of_its_own(base: str) -> None:
    """Its maintainers can ask for changes, and no other mail waits for these."""
    drivers = re.compile(r"drivers/(block|net|cpuidle/cpuidle-)\S*\.c")
    changed = {x: x.hooked for x in series.read_series(base) if any(map(drivers.match, x.hooked))}
    assert len(changed) == 3
    for patch, hooked in changed.items():
        assert len(hooked) == 1, f"{patch.name} changes {hooked}"
        assert patch.new == ()


PROPOSALS = {
    "20191003062646.54258-1-huntbag@linux.vnet.ibm.com": "A. Goel",
    "20210611124154.56427-1-psampat@linux.ibm.com": "P. R. Sampat",
    "20210713161906.457857-1-stefanha@redhat.com": "S. Hajnoczi",
}
"""Who sent the earlier proposals that archives of mailing lists have under these message ids."""


@pytest.mark.parametrize("base", series.bases())
def test_a_mail_that_links_a_proposal_says_whose(base: str) -> None:
    """Who reads it is to find what was objected to that one. Other links were not checked."""
    found = set()
    for topic in series.read_topics(base):
        for file in (topic.cover, *(x.path for x in topic.own)):
            mail = " ".join(file.read_text().partition("\n---\n")[0].split())
            links = set(re.findall(r"https://[^\s)]+", mail))
            linked = {x for x in PROPOSALS if f"https://lore.kernel.org/all/{x}/" in links}
            assert len(links) == len(linked), file
            named = {x for x in PROPOSALS.values() if f"by {x}" in mail}
            assert named == {PROPOSALS[x] for x in linked}, file
            assert "proposal" not in mail or named, file
            found |= linked
    assert found == set(PROPOSALS)


SELFTESTS = "tools/testing/selftests/cpuidle"


@pytest.mark.parametrize("base", series.bases())
def test_the_folder_of_selftests_names_what_topics_bring(base: str) -> None:
    """No shared file of tests that stay behind, and none of their options."""
    patches = series.read_series(base)
    brought = {PurePath(x).name for patch in patches for x in patch.new if SELFTESTS in x}
    makefile = (KERNEL / SELFTESTS / "Makefile").read_text()
    (shared,) = re.findall(r"^TEST_FILES := \$\(wildcard (.*)\)$", makefile, re.MULTILINE)
    assert set(shared.split()) <= brought
    tests = [(KERNEL / SELFTESTS / x).read_text() for x in brought if x.endswith(".sh")]
    config = (KERNEL / SELFTESTS / "config").read_text().splitlines()
    named = {x.partition("=")[0] for x in config} & {y for x in patches for y in x.options}
    assert {"CONFIG_IDLE_POLL", "CONFIG_TEST_CPUIDLE_LATENCY"} < named
    for option in named:
        about = re.compile(rf"\b{option.removeprefix('CONFIG_').lower()}\b")
        assert any(map(about.search, tests)), option


@pytest.mark.parametrize("base", series.bases())
def test_promotion_needs_timers_that_expire_in_time_and_to_know_the_next_event(base: str) -> None:
    """Without NO_HZ_COMMON, the kernel says that the next event is a tick away, always."""
    text = (KERNEL / "patches" / base / "promotion/cpuidle-promote.patch").read_text()
    _, _, option = text.partition("+config CPU_IDLE_PROMOTE\n")
    needs = re.findall(r"^\+\tdepends on (.*)$", option, re.MULTILINE)[0].split(" && ")
    assert {"HIGH_RES_TIMERS", "NO_HZ_COMMON"} <= set(needs)
    # NO_HZ_IDLE selects NO_HZ_COMMON, which nobody can set.
    options = (KERNEL / "tools/testing/selftests/cpuidle/config").read_text().splitlines()
    for need in needs:
        assert f"CONFIG_{need.replace('NO_HZ_COMMON', 'NO_HZ_IDLE')}=y" in options


def test_what_all_selftests_share_knows_no_other_topic() -> None:
    """The folder is a topic of its own. What polls, and which module tells so, comes later."""
    shared = (KERNEL / "tools/testing/selftests/cpuidle/idle.sh").read_text()
    assert re.findall(r"poll\w*|test_\w+", shared) == []

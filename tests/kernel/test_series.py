# SPDX-License-Identifier: GPL-2.0-only
"""The kernel series: how it is written down, that it applies, and the mails made of it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from email import message_from_string
from email.utils import getaddresses
from pathlib import Path, PurePath

import pytest
from checkers import style_tools
from paths import ROOT
from series_proofs import build_prefixes, code_without_options, objects_of

from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.config import ARCHES, SERIES_KERNELS, Arch, BuiltKernel
from lightsleep.lab.kernels.roots import unpack
from lightsleep.lab.kernels.source import kernel_source
from lightsleep.sources import KERNEL

STOCK = "int hook(void)\n{\n\treturn 0;\n}\n"
MAIL = """\
From: A Person <person@example.org>
Date: Fri, 20 Nov 2026 15:10:00 +0000
Subject: [PATCH] core: Return one

Zero is what everybody returns.

Signed-off-by: A Person <person@example.org>
---
 core/hook.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/core/hook.c b/core/hook.c
--- a/core/hook.c
+++ b/core/hook.c
@@ -1,4 +1,4 @@
 int hook(void)
 {
-\treturn 0;
+\treturn 1;
 }
"""
SECOND = MAIL.replace("return 1", "return 2").replace("return 0", "return 1")


TOPICS = "first\nsecond first\n"


def kernel_folder(base: Path, lines: str, **files: str) -> Path:
    """Make a folder like kernel/ with a topic for 1.0; "_" in a name stands for "-"."""
    (base / "kernel/patches/1.0").mkdir(parents=True)
    (base / "kernel/patches/1.0/topics").write_text("numbers\n")
    (base / "kernel/core").mkdir()
    (base / "kernel/core/new.c").write_text("int new;\n")
    add_topic(base / "kernel", "numbers", lines, **files)
    return base / "kernel"


def add_topic(kernel: Path, name: str, lines: str, **files: str) -> None:
    folder = kernel / "patches/1.0" / name
    folder.mkdir()
    (folder / "series").write_text(lines)
    (folder / "cover.txt").write_text("core: Numbers\n\nOther ones.\n")
    for patch, text in files.items():
        (folder / f"{patch.replace('_', '-')}.patch").write_text(text)


def two_topics(base: Path, topics: str = TOPICS) -> Path:
    """Make a folder like kernel/ with two topics, of which the second carries the first."""
    kernel = kernel_folder(base, "")
    shutil.rmtree(kernel / "patches/1.0/numbers")
    add_topic(kernel, "first", "one.patch core/new.c\n", one=MAIL)
    add_topic(kernel, "second", "two.patch\n", two=SECOND)
    (kernel / "patches/1.0/topics").write_text(topics)
    return kernel


def only_topic(kernel: Path) -> series.Topic:
    (topic,) = series.read_topics("1.0", kernel)
    return topic


GET_MAINTAINER = """\
print "A Person <person\\@example.org>\\n";
print "Core Keeper <keeper\\@example.org>\\n" if grep { /0001/ } @ARGV;
print "core\\@lists.example.org\\n" if grep { /0002/ } @ARGV;
print "Tick Keeper <tick\\@example.org>\\n" if grep { /tick-sched/ } @ARGV;
"""


def source_folder(base: Path) -> Path:
    """Make a kernel's source."""
    linux = base / "linux"
    for name in ("core", "scripts"):
        (linux / name).mkdir(parents=True)
    (linux / "core/hook.c").write_text(STOCK)
    (linux / "MAINTAINERS").touch()
    (linux / "Makefile").write_text("VERSION = 1\nPATCHLEVEL = 0\nSUBLEVEL = 7\nEXTRAVERSION =\n")
    (linux / "scripts/get_maintainer.pl").write_text(GET_MAINTAINER)
    return linux


def archive_of(source: Path) -> Path:
    subprocess.run(["tar", "-cJf", "linux.tar.xz", source.name], cwd=source.parent, check=True)
    return source.parent / "linux.tar.xz"


def test_a_series_is_read_in_order_with_its_new_files(tmp_path: Path) -> None:
    kernel = kernel_folder(
        tmp_path,
        "# first things\none.patch core/new.c # and why\n\ntwo-more.patch\n",
        one=MAIL,
        two_more=SECOND,
    )
    first, second = series.read_series("1.0", kernel)
    assert (first.name, first.new, first.hooked) == ("one", ("core/new.c",), ["core/hook.c"])
    assert (second.name, second.new) == ("two-more", ())
    assert series.bases(kernel) == ["1.0"]


@pytest.mark.parametrize(
    ("lines", "mail", "message"),
    [
        ("one.diff", MAIL, r"series:1: 'one\.diff' is not of the form NAME\.patch"),
        ("../one.patch", MAIL, r"series:1: '\.\./one\.patch' is not of the form NAME\.patch"),
        ("\ntwo.patch", MAIL, r"series:2: there is no two\.patch"),
        ("one.patch\none.patch", MAIL, r"series:2: one\.patch is there twice"),
        ("one.patch core/old.c", MAIL, r"series:1: there is no kernel/core/old\.c"),
        ("one.patch ../core/new.c", MAIL, r"'\.\./core/new\.c' is no path below kernel/"),
        ("one.patch core/hook.c", MAIL, r"one\.patch changes core/hook\.c, which it also brings"),
        ("one.patch", MAIL.replace("From:", "Of:"), r"one\.patch has no line 'From:'"),
        ("one.patch", MAIL.replace("[PATCH]", "[PATCH 1/2]"), r"no line 'Subject: \[PATCH\]'"),
        ("one.patch", MAIL.replace("Signed-off", "Seen"), r"one\.patch is not signed off"),
        ("one.patch", MAIL.replace("--- a/core/hook.c", "--- /dev/null"), "creates a file: name"),
        ("# nothing yet", MAIL, r"series: names no patch"),
    ],
)
def test_what_is_wrong_with_a_series_is_said(
    tmp_path: Path, lines: str, mail: str, message: str
) -> None:
    with pytest.raises(LightsleepError, match=message):
        series.read_series("1.0", kernel_folder(tmp_path, lines, one=mail))


def test_a_patch_that_lies_beside_is_named(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch", one=MAIL, two=SECOND)
    with pytest.raises(LightsleepError, match=r"series: does not name two\.patch, which is"):
        series.read_series("1.0", kernel)


def test_a_topic_is_preceded_by_what_it_carries(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path)
    first, second = series.read_topics("1.0", kernel)
    assert [x.name for x in first.patches] == ["one"]
    assert [x.name for x in second.patches] == ["one", "two"]
    assert [x.name for x in series.read_series("1.0", kernel)] == ["one", "two"]


def test_what_is_carried_twice_is_there_once(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path, f"{TOPICS}third first second\n")
    third = MAIL.replace("return 1", "return 3").replace("return 0", "return 2")
    add_topic(kernel, "third", "three.patch\n", three=third)
    *_, topic = series.read_topics("1.0", kernel)
    assert [x.name for x in topic.patches] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ("second first\nfirst\n", r"topics:1: no earlier line names 'first'"),
        ("first\nsecond third\n", r"topics:2: no earlier line names 'third'"),
        ("first\n\nfirst\n", r"topics:3: first is there twice"),
        ("first\n", r"topics: does not name second, which is in the same folder"),
        ("first\nthird\n", r"topics:2: there is no third/series"),
        ("first\n../1.0/second\n", r"topics:2: there is no \.\./1\.0/second/series"),
    ],
)
def test_what_is_wrong_with_topics_is_said(tmp_path: Path, topics: str, message: str) -> None:
    with pytest.raises(LightsleepError, match=message):
        series.read_topics("1.0", two_topics(tmp_path, topics))


def test_a_topic_without_a_cover_letter_is_named(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path)
    (kernel / "patches/1.0/second/cover.txt").unlink()
    with pytest.raises(LightsleepError, match=r"topics:2: there is no second/cover\.txt"):
        series.read_topics("1.0", kernel)


def test_topics_do_not_bring_the_same_file(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path)
    (kernel / "patches/1.0/second/series").write_text("two.patch core/new.c\n")
    with pytest.raises(LightsleepError, match=r"two\.patch changes core/new\.c, which an earlier"):
        series.read_topics("1.0", kernel)


def test_the_architectures_that_a_topic_touches(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path)
    mail = MAIL.replace("core/hook.c", "arch/arm64/hook.c")
    (kernel / "patches/1.0/second/two.patch").write_text(mail)
    assert [x.folders for x in series.read_topics("1.0", kernel)] == [set(), {"arm64"}]


def test_a_patch_does_not_change_what_an_earlier_one_brings(tmp_path: Path) -> None:
    later = MAIL.replace("core/hook.c", "core/new.c")
    kernel = kernel_folder(tmp_path, "one.patch core/new.c\ntwo.patch", one=MAIL, two=later)
    with pytest.raises(LightsleepError, match=r"series:2: two\.patch changes core/new\.c, which"):
        series.read_series("1.0", kernel)


def test_to_reword_a_message_builds_nothing_anew(tmp_path: Path) -> None:
    def made_of(name: str, mail: str) -> list[bytes]:
        kernel = kernel_folder(tmp_path / name, "one.patch core/new.c", one=mail)
        (patch,) = series.read_series("1.0", kernel)
        return patch.contents(kernel)

    stock = made_of("stock", MAIL)
    assert made_of("message", MAIL.replace("everybody", "each function")) == stock
    assert made_of("change", MAIL.replace("return 1", "return 2")) != stock


def test_an_unknown_base_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"no series for kernel '9\.9'; there are: 1\.0"):
        series.read_series("9.9", kernel_folder(tmp_path, ""))


def test_a_series_is_applied_to_a_source(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch core/new.c\ntwo.patch", one=MAIL, two=SECOND)
    source = source_folder(tmp_path)
    for patch in series.read_series("1.0", kernel):
        series.apply(patch, source, kernel)
    assert (source / "core/hook.c").read_text() == STOCK.replace("0", "2")
    assert (source / "core/new.c").read_text() == "int new;\n"
    assert sorted(x.name for x in (source / "core").iterdir()) == ["hook.c", "new.c"]


def test_a_hook_that_does_not_fit_to_the_letter_is_refused(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch", one=MAIL)
    source = source_folder(tmp_path)
    (source / "core/hook.c").write_text(STOCK.replace("hook", "look"))
    with pytest.raises(LightsleepError, match=r"applying one\.patch failed"):
        series.apply(series.read_series("1.0", kernel)[0], source, kernel)


def test_a_new_file_has_to_be_new(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch core/new.c", one=MAIL)
    source = source_folder(tmp_path)
    (source / "core/new.c").touch()
    with pytest.raises(LightsleepError, match=r"one\.patch brings core/new\.c, which the kernel"):
        series.apply(series.read_series("1.0", kernel)[0], source, kernel)


def git_am(tree: Path, mails: list[Path]) -> None:
    for words in (
        ["init", "--quiet"],
        ["add", "--all", "--force"],
        ["commit", "--quiet", "--message=stock"],
        ["am", "--quiet", "--empty=drop", *map(str, mails)],
    ):
        identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tree, check=True)


def test_mails_carry_the_new_files_and_apply(tmp_path: Path) -> None:
    kernel = two_topics(tmp_path)
    source = source_folder(tmp_path)
    _, topic = series.read_topics("1.0", kernel)
    mails = series.write_mails(topic, archive_of(source), tmp_path / "mails", kernel)
    assert [x.name[:5] for x in mails] == ["0000-", "0001-", "0002-"]
    cover = mails[0].read_text()
    assert "Subject: [PATCH 0/2] core: Numbers" in cover
    assert "Other ones." in cover
    assert "From: A Person <person@example.org>" in cover
    assert "\nBased on Debian's source of Linux 1.0.7.\n" in cover
    for mail in mails:
        copies = getaddresses([message_from_string(mail.read_text())["Cc"]])
        assert copies == [("Core Keeper", "keeper@example.org"), ("", "core@lists.example.org")]
    git_am(source, mails)
    assert (source / "core/hook.c").read_text() == STOCK.replace("0", "2")
    assert (source / "core/new.c").read_text() == "int new;\n"


def test_people_nearby_get_what_no_entry_of_maintainers_claims(tmp_path: Path) -> None:
    mail = MAIL.replace("core/hook.c", "kernel/softirq.c")
    kernel = kernel_folder(tmp_path, "one.patch", one=mail)
    source = source_folder(tmp_path)
    for name in ("softirq.c", "cpu.c", "time/tick-sched.c"):
        (source / "kernel" / name).parent.mkdir(parents=True, exist_ok=True)
        (source / "kernel" / name).write_text(STOCK)
    topic = only_topic(kernel)
    for written in series.write_mails(topic, archive_of(source), tmp_path / "mails", kernel):
        copies = getaddresses([message_from_string(written.read_text())["Cc"]])
        assert ("Tick Keeper", "tick@example.org") in copies


def test_what_only_our_modules_need_stays_behind(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch core/new.c", one=MAIL)
    (kernel / "core/new.c").write_text(
        "#ifndef LIGHTSLEEP_MODULE\nint inside;\n#endif\nint new;\n\n"
        "#ifdef LIGHTSLEEP_MODULE\nint outside;\n#endif\n"
    )
    source = source_folder(tmp_path)
    series.apply(series.read_series("1.0", kernel)[0], source, kernel)
    assert (source / "core/new.c").read_text() == "int inside;\nint new;\n"


def test_mails_touch_no_repository_that_a_hook_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    subprocess.run(["git", "init", "--quiet", theirs], check=True)
    before = sorted(x for x in theirs.rglob("*"))
    kernel = two_topics(tmp_path)
    source = source_folder(tmp_path)
    _, topic = series.read_topics("1.0", kernel)
    archive = archive_of(source)
    for name in series.ELSEWHERE:
        monkeypatch.setenv(name, str(theirs / ".git"))
    assert len(series.write_mails(topic, archive, tmp_path / "mails", kernel)) == 3
    assert sorted(x for x in theirs.rglob("*")) == before


def test_mails_overwrite_none(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch", one=MAIL)
    archive = archive_of(source_folder(tmp_path))
    topic = only_topic(kernel)
    series.write_mails(topic, archive, tmp_path / "mails", kernel)
    with pytest.raises(LightsleepError, match="already holds patches"):
        series.write_mails(topic, archive, tmp_path / "mails", kernel)


def test_a_later_version_is_in_every_subject(tmp_path: Path) -> None:
    archive = archive_of(source_folder(tmp_path))
    topic = only_topic(kernel_folder(tmp_path, "one.patch", one=MAIL))
    mails = series.write_mails(topic, archive, tmp_path / "mails", tmp_path / "kernel", version=2)
    assert [x.name for x in mails] == [
        "v2-0000-cover-letter.patch",
        "v2-0001-core-Return-one.patch",
    ]
    assert all("\nSubject: [PATCH v2 " in mail.read_text() for mail in mails)


OURS = [row for row in SERIES_KERNELS if row.patched]


def test_each_base_has_a_kernel_for_every_architecture() -> None:
    for base in series.bases():
        assert all(arch.built[f"{base}-series"].patched for arch in ARCHES.values())
    assert sorted(row.version for row in OURS) == series.bases()


TOPICS_OF_OURS = [(row, topic) for row in OURS for topic in series.read_topics(row.version)]


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


Hooked = Callable[[BuiltKernel], Path]


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Hooked:
    """Return what packs the files that our patches change: an archive that is soon unpacked."""

    @functools.cache
    def archive(kernel: BuiltKernel) -> Path:
        source = tmp_path_factory.mktemp("hooked") / "linux"
        source.mkdir()
        whole = kernel_source(kernel.version, kernel.suite, kernel.target)
        others = (*series.OF_MAILS, *series.CLAIMED_NEARBY)
        series.unpack_hooked(whole, series.read_series(kernel.version), source, others)
        return archive_of(source)

    return archive


@pytest.mark.build
@pytest.mark.parametrize("kernel", OURS, ids=lambda row: row.version)
def test_all_topics_apply_together(kernel: BuiltKernel, hooked: Hooked, tmp_path: Path) -> None:
    patches = series.read_series(kernel.version)
    series.unpack_hooked(hooked(kernel), patches, tmp_path)
    for patch in patches:
        series.apply(patch, tmp_path)


def without_disks(kernel: BuiltKernel) -> series.Topic:
    """Return virtio-poll without the patch of virtio_blk. (The one of virtio_net is the last.)"""
    (topic,) = (x for x in series.read_topics(kernel.version) if x.name == "virtio-poll")
    own = tuple(x for x in topic.own if x.hooked != ["drivers/block/virtio_blk.c"])
    assert len(own) == len(topic.own) - 1 > 0
    return replace(topic, own=own)


@pytest.mark.build
@pytest.mark.parametrize("kernel", OURS, ids=lambda row: row.version)
def test_virtio_net_joins_the_poll_without_virtio_blk(
    kernel: BuiltKernel, hooked: Hooked, tmp_path: Path
) -> None:
    topic = without_disks(kernel)
    series.unpack_hooked(hooked(kernel), topic.patches, tmp_path)
    for patch in topic.patches:
        series.apply(patch, tmp_path)
    # What virtio_net includes, and which option it asks for, is there all the same.
    assert (tmp_path / "include/linux/virtqueue_source.h").exists()
    assert "\nconfig VIRTIO_POLL_SOURCE\n" in (tmp_path / "drivers/virtio/Kconfig").read_text()


COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DECLARED = re.compile(r"^(?!static\b)[a-z][\w *]*\b(\w+)\([^;{]*\);", re.MULTILINE)


@pytest.mark.build
@pytest.mark.parametrize("kernel", OURS, ids=lambda row: row.version)
def test_mails_declare_no_function_that_only_our_modules_call(
    kernel: BuiltKernel, hooked: Hooked, tmp_path: Path
) -> None:
    patches = series.read_series(kernel.version)
    series.unpack_hooked(hooked(kernel), patches, tmp_path)
    for patch in patches:
        series.apply(patch, tmp_path)
    files = {file for patch in patches for file in (*patch.hooked, *patch.new)}
    code = {
        file: COMMENT.sub("", (tmp_path / file).read_text())
        for file in files
        if file.endswith((".c", ".h"))
    }
    declared = {
        name: header
        for header in sorted(code.keys() & {x for patch in patches for x in patch.new})
        if header.endswith(".h")
        for name in DECLARED.findall(code[header])
    }
    assert declared["idle_cost_start"] == "include/linux/idle_poll/idle_cost.h"
    for name, header in declared.items():
        # In a line that is indented, or that is a macro, it is used; else declared or defined.
        use = rf"^(?:[ \t]|[A-Z]+\().*\b{name}\b"
        users = {x for x in code if re.search(use, code[x], re.M)}
        defined = {x for x in code if re.search(rf"^\w.*\b{name}\(.*[^;\n]$", code[x], re.M)}
        assert users - defined, f"{header} declares {name}(), which no other file calls"


@pytest.mark.build
@pytest.mark.parametrize(
    ("kernel", "topic"),
    [
        # make check looks at the newest base.
        pytest.param(x, y, marks=[] if x is OURS[-1] else [pytest.mark.more])
        for x, y in TOPICS_OF_OURS
    ],
    ids=[f"{x.version}-{y.name}" for x, y in TOPICS_OF_OURS],
)
def test_the_mails_of_a_topic_please_checkpatch_and_apply(
    kernel: BuiltKernel, topic: series.Topic, hooked: Hooked, tmp_path: Path
) -> None:
    archive = hooked(kernel)
    cover, *mails = series.write_mails(topic, archive, tmp_path / "mails")
    assert len(mails) == len(topic.patches)
    assert all("linux-kernel@vger.kernel.org" in mail.read_text() for mail in mails)
    if topic.patches[0].name == "softirq-stop-polling":
        copies = message_from_string(mails[0].read_text())["Cc"]
        assert all(x in copies for x in ("Zijlstra", "Gleixner", "Weisbecker"))
    # Here is no history to find commits in. A flag is written as its neighbours are (arm64).
    ignored = "--ignore=UNKNOWN_COMMIT_ID,BIT_MACRO"
    # What a topic carries is checked where it is its own.
    own = mails[len(topic.carried) :]
    done = subprocess.run(
        ["perl", style_tools() / "checkpatch.pl", "--no-tree", "--strict", ignored, *own],
        cwd=tmp_path,  # in a repository, how an unknown commit is named is not looked at
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("has no obvious style problems") == len(own), done.stdout

    fresh, applied = tmp_path / "fresh", tmp_path / "applied"
    for tree in (fresh, applied):
        tree.mkdir()
        series.unpack_hooked(archive, topic.patches, tree)
    git_am(fresh, [cover, *mails])
    for patch in topic.patches:
        series.apply(patch, applied)
    shutil.rmtree(fresh / ".git")
    files = {x.relative_to(applied) for x in applied.rglob("*") if x.is_file()}
    assert files == {x.relative_to(fresh) for x in fresh.rglob("*") if x.is_file()}
    assert all((fresh / x).read_bytes() == (applied / x).read_bytes() for x in files)
    for new in (x for patch in topic.patches for x in patch.new):
        ours, sent = (KERNEL / new).read_text(), (fresh / new).read_text()
        assert sent == ours or (series.OF_MODULE in ours and series.OF_MODULE not in sent)


@pytest.mark.parametrize("base", series.bases())
def test_the_idle_loop_is_among_what_is_compiled(base: str) -> None:
    """idle.c is part of another file, and alone it does not compile."""
    objects = objects_of(series.read_series(base))
    assert "kernel/sched/build_policy.o" in objects
    assert "kernel/sched/idle.o" not in objects


TOUCHED = [
    (arch, kernel, topic)
    for kernel, topic in TOPICS_OF_OURS
    for arch in ARCHES.values()
    # What is common to architectures is compiled for one of them.
    if arch.kbuild in topic.folders | {"x86"}
]


@pytest.mark.more
@pytest.mark.build
@pytest.mark.parametrize(
    ("arch", "kernel", "topic"),
    TOUCHED,
    ids=[f"{y.version}-{z.name}-{x.name}" for x, y, z in TOUCHED],
)
def test_each_prefix_builds(arch: Arch, kernel: BuiltKernel, topic: series.Topic) -> None:
    assert build_prefixes(arch, kernel, topic) == len(topic.patches)


@pytest.mark.more
@pytest.mark.build
@pytest.mark.parametrize("kernel", OURS, ids=lambda row: row.version)
def test_virtio_net_builds_without_virtio_blk(kernel: BuiltKernel) -> None:
    topic = without_disks(kernel)
    assert build_prefixes(ARCHES["x86_64"], kernel, topic) == len(topic.patches)


WITHOUT_AN_OPTION = ("softirq", "arm64-polling")
"""Topics of which some patches change what every kernel is made of."""


@pytest.mark.more
@pytest.mark.build
@pytest.mark.parametrize("base", series.bases())
def test_with_all_options_off_the_code_is_what_it_was(base: str, tmp_path: Path) -> None:
    """Compiles what the series changes, before and after, and compares it function by function."""
    arch = ARCHES["x86_64"]
    objects = code_without_options(arch, arch.built[f"{base}-plain"], tmp_path)
    changed = {name for name, (before, after) in objects.items() if before != after}
    topics = [x for x in series.read_topics(base) if x.name in WITHOUT_AN_OPTION]
    assert changed <= set(objects_of([patch for x in topics for patch in x.patches]))
    assert "kernel/sched/build_policy.o" in objects


@pytest.mark.more
@pytest.mark.build
def test_each_topic_applies_to_the_newest_source(tmp_path: Path) -> None:
    """Of the newest base, to the newest source there is; names the first patch that does not."""
    target = "trixie-backports"
    unpack(ARCHES["x86_64"], "trixie", target, [f"linux-source/{target}"], tmp_path / "tree")
    (archive,) = (tmp_path / "tree/usr/src").glob("linux-source-*.tar.xz")
    base = max(series.bases(), key=lambda x: [int(part) for part in x.split(".")])
    stock = tmp_path / "stock"
    stock.mkdir()
    series.unpack_hooked(archive, series.read_series(base), stock)
    failed: dict[str, str] = {}
    for topic in series.read_topics(base):
        shutil.copytree(stock, tmp_path / topic.name)
        for patch in topic.patches:
            try:
                series.apply(patch, tmp_path / topic.name)
            except LightsleepError as error:
                failed[topic.name] = f"{archive.name}: {error.message}"
                break
    assert failed == {}

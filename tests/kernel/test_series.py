# SPDX-License-Identifier: GPL-2.0-only
"""How a series is written down, what is wrong with one, and how it is applied: made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from series_trees import (
    MAIL,
    SECOND,
    STOCK,
    TOPICS,
    add_topic,
    kernel_folder,
    source_folder,
    two_topics,
)

from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels import series


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


def test_pages_of_documentation_build_no_other_kernel(tmp_path: Path) -> None:
    (tmp_path / "Documentation/ABI").mkdir(parents=True)
    (tmp_path / "core").mkdir()
    files = {"Documentation/ABI/new": "a page", "core/new.c": "int new;", "one.patch": MAIL}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    patch = series.Patch(tmp_path / "one.patch", ("Documentation/ABI/new", "core/new.c"))
    stock = patch.contents(tmp_path)
    (tmp_path / "Documentation/ABI/new").write_text("a better page")
    assert patch.contents(tmp_path) == stock
    (tmp_path / "core/new.c").write_text("int newer;")
    assert patch.contents(tmp_path) != stock


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


def test_what_only_our_modules_need_stays_behind(tmp_path: Path) -> None:
    kernel = kernel_folder(tmp_path, "one.patch core/new.c", one=MAIL)
    (kernel / "core/new.c").write_text(
        "#ifndef LIGHTSLEEP_MODULE\nint inside;\n#endif\nint new;\n\n"
        "#ifdef LIGHTSLEEP_MODULE\nint outside;\n#endif\n"
    )
    source = source_folder(tmp_path)
    series.apply(series.read_series("1.0", kernel)[0], source, kernel)
    assert (source / "core/new.c").read_text() == "int inside;\nint new;\n"

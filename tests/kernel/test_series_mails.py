# SPDX-License-Identifier: GPL-2.0-only
"""The mails that are made of a series: of made-up ones."""

from __future__ import annotations

import subprocess
from email import message_from_string
from email.utils import getaddresses
from pathlib import Path

import pytest
from series_trees import (
    MAIL,
    STOCK,
    archive_of,
    git_am,
    kernel_folder,
    only_topic,
    source_folder,
    two_topics,
)

from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels import series


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

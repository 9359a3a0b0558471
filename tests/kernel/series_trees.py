# SPDX-License-Identifier: GPL-2.0-only
"""What tests of the series share: made-up series and sources, and the kernels with our own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.config import SERIES_KERNELS, BuiltKernel

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


def git_am(tree: Path, mails: list[Path]) -> None:
    for words in (
        ["init", "--quiet"],
        ["add", "--all", "--force"],
        ["commit", "--quiet", "--message=stock"],
        ["am", "--quiet", "--empty=drop", *map(str, mails)],
    ):
        identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tree, check=True)


OURS = [row for row in SERIES_KERNELS if row.patched]
TOPICS_OF_OURS = [(row, topic) for row in OURS for topic in series.read_topics(row.version)]


def without_disks(kernel: BuiltKernel) -> series.Topic:
    """Return virtio-poll without the patch of virtio_blk. (The one of virtio_net is the last.)"""
    (topic,) = (x for x in series.read_topics(kernel.version) if x.name == "virtio-poll")
    own = tuple(x for x in topic.own if x.hooked != ["drivers/block/virtio_blk.c"])
    assert len(own) == len(topic.own) - 1 > 0
    return replace(topic, own=own)

# SPDX-License-Identifier: GPL-2.0-only
"""Our series applies to the sources of its kernels, and so do its mails."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from email import message_from_string
from pathlib import Path

import pytest
from checkers import style_tools
from series_trees import OURS, TOPICS_OF_OURS, archive_of, git_am, without_disks

from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.config import ARCHES, BuiltKernel
from lightsleep.lab.kernels.roots import unpack
from lightsleep.lab.kernels.source import kernel_source
from lightsleep.sources import KERNEL

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

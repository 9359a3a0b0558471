# SPDX-License-Identifier: GPL-2.0-only
"""What our series changes compiles after each patch; without its options, the code is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from series_proofs import build_prefixes, code_without_options, objects_of
from series_trees import OURS, TOPICS_OF_OURS, without_disks

from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.config import ARCHES, Arch, BuiltKernel


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

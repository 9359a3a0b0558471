# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's governors as policies: compiled unchanged, they choose as they did in a guest."""

from __future__ import annotations

import json
import os
import platform
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from follow import follow
from recordings import PIPE
from replays import DEEP, MENU, needs_compiler, run

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.governors import build
from lightsleep.lab.kernels import source as packages
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import write_parquet
from lightsleep.replay import cli, cluster
from lightsleep.replay.account import OPTIMUM, Replay, replay
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.governed import Governor
from lightsleep.replay.policies import STOCK, parse

MENU_NEXT = MENU.with_name("menu-next.parquet")
"""The same, with what the governor was told of the next event of its clock. The clock counted
instructions, so no tick was late."""

TEO = (MENU.with_name("teo.parquet"), MENU.with_name("teo-one-way.parquet"))
"""The same states, governed by teo of 6.12, in the lab's kernel 6.12-teo. In the first, two tasks
on two CPUs wake each other, and sleep in between. In the second, only one of them sleeps, and wakes
the other."""

TEO_INSIDE_NS = 2_400
"""What the recordings have more of most periods than the kernel counted itself (time in sysfs)."""

WARM_UP = 100
"""Periods of each CPU in which menu still knows what it had learned before the recording."""


@pytest.fixture(scope="module")
def source() -> None:
    packages.kernel_source("6.12")


NEXT = "next_event_ns"


def test_the_newest_archive_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab may have fetched one long before Debian's package was upgraded, or after."""
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(build, "INSTALLED", tmp_path)
    fetched = tmp_path / "linux-source-6.12-bookworm" / "source.tar.xz"
    installed = tmp_path / "linux-source-6.12.tar.xz"
    fetched.parent.mkdir()
    for newer, older in ((fetched, installed), (installed, fetched)):
        for age_s, archive in enumerate((newer, older)):
            archive.touch()
            os.utime(archive, (1e9 - age_s, 1e9 - age_s))
        assert build._archive("6.12") == newer
        older.unlink()
        assert build._archive("6.12") == newer
        newer.unlink()
    assert build._archive("6.12") is None


def test_what_the_lab_fetches_of_any_suite_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(arch: object, suite: str, target: str, names: list[str], into: Path) -> None:
        archive = into / f"usr/src/{names[0]}.tar.xz"
        archive.parent.mkdir(parents=True)
        archive.touch()
        os.utime(archive, (1e9 + (target == "trixie-backports"),) * 2)

    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "unpack", unpack)
    monkeypatch.setattr(build, "INSTALLED", tmp_path)
    older = packages.kernel_source("6.1", "trixie")
    assert build._archive("6.1") == older
    newer = packages.kernel_source("6.1", "trixie", "trixie-backports")
    assert build._archive("6.1") == newer != older
    packages.kernel_source("6.12", "trixie")
    assert build._archive("6.1") == newer


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_menu_chooses_what_the_recorded_menu_chose() -> None:
    recording = open_recording(MENU)
    governor = Governor.named("menu@6.12")
    assert governor
    found = follow(recording.metadata, recording.batches, governor)
    assert found.known + found.unknown > 8000
    # The rest are states about as long as the time to the tick, which this recording lacks.
    assert found.share > 0.97
    assert found.unknown_same == found.unknown
    other = Governor.named("teo@6.12")
    assert other
    recording = open_recording(MENU)
    assert follow(recording.metadata, recording.batches, other).share < found.share


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_where_the_tick_is_known_menu_chooses_the_same_state_always() -> None:
    governor = Governor.named("menu@6.12")
    assert governor
    batches = list(open_recording(MENU_NEXT).batches)
    known = open_recording(MENU_NEXT).metadata
    whole, warm = (follow(known, batches, governor, warm_up) for warm_up in (0, WARM_UP))
    assert whole.share > 0.99
    assert warm.known > 2500
    assert warm.known_same == warm.known
    # It is the tick that decides: without it, the same recording is followed less well.
    blind = [
        x.set_column(x.schema.get_field_index(NEXT), NEXT, pa.nulls(len(x), pa.int64()))
        for x in batches
    ]
    assert follow(known, blind, governor, WARM_UP).share < 0.999


def replayed(size: int | None) -> Replay:
    recording = open_recording(MENU)
    batches = list(recording.batches)
    costs = costs_of(recording.metadata, batches)
    assert costs
    if size:
        batches = [x.slice(n, size) for x in batches for n in range(0, len(x), size)]
    policies = parse("stock,menu@6.12,teo@6.12,ladder@6.12,teo@6.12+promote")
    return replay(recording.metadata, costs, batches, policies, 4)


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_teo_chooses_what_the_recorded_teo_chose() -> None:
    # teo counts each period in one of few bins, so a microsecond matters at their edges.
    governor = Governor.named("teo@6.12")
    assert governor
    known = dict.fromkeys((0, TEO_INSIDE_NS), 0)
    same = dict(known)
    for path in TEO:
        batches = list(open_recording(path).batches)
        metadata = open_recording(path).metadata
        for inside_ns in known:
            found = follow(metadata, batches, governor, WARM_UP, inside_ns)
            assert found.unknown == 0
            assert found.share > 0.99
            known[inside_ns] += found.known
            same[inside_ns] += found.known_same
    assert known[0] > 19_000
    assert same[0] / known[0] < same[TEO_INSIDE_NS] / known[TEO_INSIDE_NS]
    assert same[TEO_INSIDE_NS] / known[TEO_INSIDE_NS] > 0.999


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_governors_are_replayed_and_no_cut_of_the_data_changes_a_figure() -> None:
    whole, cut = replayed(None), replayed(777)
    for name, outcome in whole.outcomes.items():
        assert (outcome.recorded.tally.data == cut.outcomes[name].recorded.tally.data).all(), name
    waited = {name: x.recorded.waits.total_ns for name, x in whole.outcomes.items()}
    # The replayed menu is the recorded one: it makes tasks wait for about as long.
    assert waited["menu@6.12"] == pytest.approx(waited[STOCK], rel=0.1)
    assert len(set(waited.values())) == len(waited)  # promotion makes a difference, too
    assert (
        whole.outcomes["menu@6.12"].recorded.tally["intervals"]
        == whole.outcomes[OPTIMUM].recorded.tally["intervals"]
    )


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_a_governor_is_a_policy_of_the_command() -> None:
    done = run(MENU, "--policies", "menu@6.12,fixed:50us", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert "menu@6.12" in [x["policy"] for x in found["policies"]]
    assert any("power" in note for note in found["notes"])
    done = run(PIPE, "--policies", "menu@6.12")
    assert done.exit_code == 1
    assert "latencies and residencies of CPU" in " ".join(done.output.split())


def test_a_kernel_whose_source_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    # It is said before the recordings are read, which may take hours.
    monkeypatch.delattr(cli, "replay_files")
    done = run(MENU, "--policies", "menu@99.1")
    assert done.exit_code == 1
    assert "install the package linux-source-99.1" in " ".join(done.output.split())
    assert list(tmp_path.glob("linux-governors-*")) == []


def sources_with(menu: str, folder: Path) -> Path:
    """Write governors of a kernel: menu is this, and the others do nothing."""
    for name, text in (("menu", menu), ("teo", ""), ("ladder", "")):
        (folder / f"{name}.c").write_text(f"#include <linux/sched/stat.h>\n{text}\n")
    return folder


@pytest.mark.parametrize("header", [True, False])
def test_old_kernels_have_no_header_of_governors(
    header: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    package = tmp_path / "linux-source-6.1-bookworm"
    governors = package / "tree/drivers/cpuidle/governors"
    governors.mkdir(parents=True)
    wanted = {f"{name}.c" for name in build.GOVERNORS}
    for name in wanted:
        (governors / name).write_text('#include "gov.h"\n' if header and name == "teo.c" else "")
    if header:
        (governors / "gov.h").write_text("")
        wanted.add("gov.h")
    with tarfile.open(package / "source.tar.xz", "w:xz") as archive:
        archive.add(package / "tree", "linux-source-6.1")
    kept = build.governor_sources("6.1")
    assert wanted <= {x.name for x in kept.iterdir()}
    assert build.governor_sources("6.1") == kept


def test_a_new_release_of_a_package_has_governors_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    package = tmp_path / "linux-source-6.1-bookworm"
    governors = package / "tree/drivers/cpuidle/governors"
    governors.mkdir(parents=True)
    digests = []
    for release in (1, 2):
        for name in build.GOVERNORS:
            (governors / f"{name}.c").write_text(f"int release = {release};")
            os.utime(governors / f"{name}.c", (release * 10**6,) * 2)
        with tarfile.open(package / "source.tar.xz", "w:xz") as archive:
            archive.add(package / "tree", "linux-source-6.1")
        os.utime(package / "source.tar.xz", (release * 10**9 // 2,) * 2)
        found = build.governor_sources("6.1")
        assert (found / "teo.c").read_text() == f"int release = {release};"
        digests.append(build.sources_digest("6.1"))
    assert len(set(digests)) == 2
    # Once the package is gone, the newest is what there is.
    (package / "source.tar.xz").unlink()
    assert build.sources_digest("6.1") == digests[1]
    # On a cluster, a worker with another release says so.
    asked = cluster._sources("stock,menu@6.1,teo@6.1+promote")
    assert asked == {"6.1": digests[1]}
    cluster._require_same_sources(asked)
    with pytest.raises(LightsleepError, match=r"same release of linux-source-6\.1 on both"):
        cluster._require_same_sources({"6.1": digests[0]})


@needs_compiler
def test_a_new_release_may_differ_in_the_header_of_governors_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "governor_sources", lambda _: tmp_path)
    sources_with('#include "gov.h"\nint threshold(void) { return THRESHOLD; }', tmp_path)
    digests, files = set(), set()
    for threshold in (1, 2):
        (tmp_path / "gov.h").write_text(f"#define THRESHOLD {threshold}\n")
        digests.add(build.sources_digest("6.12"))
        files.add(build.library_file("6.12"))
        ffi, lib = build.load(build.library_file("6.12"))
        ffi.cdef("int threshold(void);")
        assert lib.threshold() == threshold
    assert len(digests) == len(files) == 2


@needs_compiler
def test_menu_of_old_kernels_asks_who_waits_for_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu = "unsigned int waiting(unsigned int cpu) { return nr_iowait_cpu(cpu); }"
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "governor_sources", lambda _: sources_with(menu, tmp_path))
    ffi, lib = build.load(build.library_file("6.1"))
    ffi.cdef("unsigned int waiting(unsigned int cpu);")
    assert lib.waiting(0) == 0


@needs_compiler
def test_what_a_governor_calls_and_nobody_defines_is_an_error_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu = "unsigned int of_a_later_kernel(void); int f(void) { return of_a_later_kernel(); }"
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "governor_sources", lambda _: sources_with(menu, tmp_path))
    with pytest.raises(LightsleepError, match=r"(?s)cannot compile.*of_a_later_kernel"):
        build.library_file("9.9")
    assert not list((tmp_path / "cache").glob("library-*/*.so"))


def test_a_damaged_library_is_an_error_in_words(tmp_path: Path) -> None:
    library = tmp_path / "machine.so"
    library.write_bytes(b"\x7fELF and nothing else")
    with pytest.raises(LightsleepError, match=f"remove the folder {tmp_path}"):
        build.load(library)


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_threads_may_load_governors_at_a_time() -> None:
    """As in a Dask worker of several threads: each library takes the structures of its own view."""
    library = build.library_file("6.12")

    def start(_: int) -> bool:
        ffi, lib = build.load(library)
        lib.machine_start(b"menu", ffi.new("struct cpuidle_state[]", 1), 1)
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(start, range(16)))


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_each_machine_of_a_shared_cache_has_its_own_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = build.governor_sources("6.12")
    (tmp_path / sources.name).symlink_to(sources)
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "trusted", lambda _path: True)
    monkeypatch.setenv("CC", "env cc")
    here = build.library_file("6.12")
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert build.library_file("6.12") != here


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_stays_of_real_governors() -> None:
    done = run(MENU, "--policies", "stock,menu@6.12,teo@6.12", "--json")
    assert done.exit_code == 0, done.output
    stock, menu, teo, _ = (x["as_recorded"] for x in json.loads(done.stdout)["policies"])
    for governor in (menu, teo):
        assert governor["too_shallow_ns"] > 0
        assert governor["too_deep_ns"] > 0
    # The replayed menu does about what the recorded one did, and no timer wakes it twice.
    assert menu["too_shallow_ns"] == pytest.approx(stock["too_shallow_ns"], rel=0.15)
    assert menu["halt_wakes"] == pytest.approx(stock["halt_wakes"], rel=0.25)
    assert menu["waited_ns"] == pytest.approx(stock["waited_ns"], rel=0.03)


@pytest.mark.build
@pytest.mark.usefixtures("source")
def test_who_never_polls_catches_nothing() -> None:
    """Also where a recorded wakeup took so long that it seems to have come at once."""
    done = run(MENU.with_name("teo.parquet"), "--policies", "stock,teo@6.12", "--json")
    stock, teo, _ = (x["as_recorded"] for x in json.loads(done.stdout)["policies"])
    assert teo["polled_ns"] == 0
    assert teo["hits"] <= 3  # awake, between two sleeps of one period
    assert teo["waited_ns"] == pytest.approx(stock["waited_ns"], rel=0.05)


@pytest.mark.build
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("governor", ["menu@6.12", "teo@6.12", "ladder@6.12", "teo@6.12+promote"])
def test_no_governor_chooses_a_state_that_is_disabled(governor: str, tmp_path: Path) -> None:
    deepest = {}
    for disabled in ((), (DEEP,)):
        recording, table = open_recording(MENU), tmp_path / f"{len(disabled)}.parquet"
        recording.metadata.disabled = {(cpu, state) for cpu in (0, 1) for state in disabled}
        list(write_parquet(recording, table))
        recording = open_recording(table)
        batches = list(recording.batches)
        chosen = Governor.named(governor)
        assert chosen
        found = follow(recording.metadata, batches, chosen)
        deepest[disabled] = sum(n for (_, to), n in found.confusion.items() if to == DEEP)
        shown = json.loads(run(table, "--policies", governor, "--json").stdout)
        assert shown["policies"][1]["policy"] == governor
        if not disabled:
            enabled_ns = shown["policies"][1]["as_recorded"]["waited_ns"]
        else:  # C6 takes longest to leave
            assert shown["policies"][1]["as_recorded"]["waited_ns"] < enabled_ns
    assert deepest[()] > 0
    assert deepest[DEEP,] == 0

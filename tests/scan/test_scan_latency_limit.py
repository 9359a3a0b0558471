# SPDX-License-Identifier: GPL-2.0-only
"""scan names who asked for a latency limit, and what it costs."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console
from scan_trees import plant, unfold
from scans import CPU, VALID

from lightsleep.scan import requests
from lightsleep.scan.collect import collect
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint
from lightsleep.scan.model import LatencyRequest
from lightsleep.scan.render import render


def asked(root: Path) -> Path:
    """Have two of three processes hold the device open, one of them twice."""
    plant(root, "dev/cpu_dma_latency: 0\nproc/9/comm: bash\nproc/9/fdinfo/0: x")
    plant(root, "proc/812/comm: cyclictest\nproc/77/comm: tuned\x1b[2J")
    for process, fds in ((9, ()), (812, (3, 5)), (77, (4,))):
        (root / f"proc/{process}/fd").mkdir(parents=True)
        (root / f"proc/{process}/fd/0").symlink_to("/dev/null")
        (root / f"proc/{process}/fd/1").symlink_to("socket:[4711]")
        for fd in fds:
            (root / f"proc/{process}/fd/{fd}").symlink_to(root / "dev/cpu_dma_latency")
    return root


def test_who_holds_the_latency_device(tmp_path: Path) -> None:
    assert [*requests.holders(tmp_path)] == []
    assert [*requests.holders(asked(tmp_path))] == ["tuned�[2J (77)", "cyclictest (812)"]


def test_other_open_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat() of a file on a dead NFS hangs."""
    looked_at = set()
    real = Path.stat
    asked(tmp_path)

    def noted(path: Path) -> os.stat_result:
        looked_at.add(os.path.realpath(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", noted)
        found = [*requests.holders(tmp_path)]
    assert len(found) == 2
    assert looked_at == {str(tmp_path.resolve() / requests.DEVICE)}


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc shows all processes to root")
def test_the_node_of_another_folder_is_the_same_device(tmp_path: Path) -> None:
    """A container has a /dev of its own."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    (tmp_path / "other").mkdir()
    null = Path("/dev/null").stat()
    for folder in ("dev", "other"):
        os.mknod(tmp_path / folder / "cpu_dma_latency", null.st_mode, null.st_rdev)
    if os.statvfs(tmp_path).f_flag & os.ST_NODEV:
        pytest.skip(f"{tmp_path} is where nodes of devices do not work (nodev)")
    with (tmp_path / "other/cpu_dma_latency").open():
        assert f"({os.getpid()})" in " ".join(requests.holders(tmp_path))


def test_a_request_is_shown_with_who_asked_and_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = asked(unfold("lightsleep-guest", tmp_path))
    clock = iter((10.0, 12.0))
    monkeypatch.setattr("lightsleep.scan.requests.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("lightsleep.scan.requests.time.sleep", lambda _: None)
    first, _ = collect(root)
    plant(root, f"{CPU}/cpu{{0-3}}/cpuidle/state0/time: {300_000_000 + 1_500_000}")
    result = requests.with_request(first, lambda: collect(root)[0], root)
    assert result.latency_request == LatencyRequest(["tuned�[2J (77)", "cyclictest (812)"], 0.75)
    console = Console(record=True, width=200, file=io.StringIO())
    render(console, result, lint(result), False)
    text = console.export_text()
    assert "0 us (/dev/cpu_dma_latency), held open by tuned�[2J (77), cyclictest (812)" in text
    assert "CPUs poll 75% of the time now" in text
    assert "CPU 0-3: /dev/cpu_dma_latency 0 us (held open by tuned" in text
    VALID.validate(document(result, lint(result)))


def test_without_a_limit_nobody_is_looked_for(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    first, _ = collect(root)
    assert requests.with_request(first, lambda: pytest.fail("looked twice"), root) is first

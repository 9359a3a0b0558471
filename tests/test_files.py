# SPDX-License-Identifier: GPL-2.0-only
"""Writing files: what an output file's mode is, and what is found out before any work."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError
from lightsleep.files import (
    check_writable,
    publish,
    streamed,
    write_json,
    write_text,
    written,
)


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    write_text(tmp_path / "new", "text")
    assert mode(tmp_path / "new") == 0o666 & ~umask


@pytest.mark.parametrize("before", [0o600, 0o664])
def test_a_file_keeps_its_mode(tmp_path: Path, umask: int, before: int) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(before)
    write_text(tmp_path / "old", "text")
    assert mode(tmp_path / "old") == before


@pytest.mark.parametrize(("before", "after"), [(None, 0o644), (0o600, 0o600)])
def test_what_is_for_others_has_its_mode_whatever_the_umask(
    tmp_path: Path, umask: int, before: int | None, after: int
) -> None:
    if before:
        (tmp_path / "x.prom").touch(before)
    for _ in range(2):
        publish(tmp_path / "x.prom", b"text", 0o644)
        assert mode(tmp_path / "x.prom") == after


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_new_file_belongs_to_whom_root_says(tmp_path: Path) -> None:
    for name, before in (("new", None), ("old", (7, 8))):
        file = tmp_path / name
        if before:
            file.touch()
            os.chown(file, *before)
        write_json(file, {}, 0o600, owner=(12, 34))
        found = file.stat()
        assert (found.st_uid, found.st_gid) == (before or (12, 34))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("before", "after"), [(0o600, 0o600), (0o444, 0o440), (0o4777, 0o640), (None, 0o640)]
)
def test_a_file_of_another_user_becomes_no_more_readable(
    before: int | None, after: int, tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    path = tmp_path / "theirs/x"
    path.parent.mkdir()
    os.chown(path.parent, 1234, 2345)
    if before:
        path.touch()
        path.chmod(before)
        os.chown(path, 1234, 2345)
    write_text(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, mode(path)) == (0, 0, after)
    os.chown(path, 1234, 2345)
    publish(path, b"new", 0o644)  # who collects it has to read it, whatever was there
    assert mode(path) == 0o644


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_a_folder_of_others_is_refused(tmp_path: Path, there: bool) -> None:
    victim = tmp_path / "victim"
    if there:
        victim.touch(0o600)
    (tmp_path / "x.prom").symlink_to(victim)
    with pytest.raises(LightsleepError, match=r"x.prom: it is a link; name the file it leads to"):
        publish(tmp_path / "x.prom", b"text", 0o644)
    assert (tmp_path / "x.prom").is_symlink()
    assert victim.exists() == there
    assert not there or (mode(victim), victim.read_bytes()) == (0o600, b"")


def test_a_link_that_comes_late_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker waits until nobody looks any more."""
    fchmod = os.fchmod
    victim = tmp_path / "victim"
    victim.touch(0o600)

    def late(descriptor: int, mode: int) -> None:
        (tmp_path / "x.prom").symlink_to(victim)
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", late)
    publish(tmp_path / "x.prom", b"text", 0o644)
    assert (tmp_path / "x.prom").read_bytes() == b"text"
    assert not (tmp_path / "x.prom").is_symlink()
    assert (mode(victim), victim.read_bytes()) == (0o600, b"")


def test_no_mode_is_set_by_name(tmp_path: Path) -> None:
    """Who owns the folder puts a link in the place of the scratch file."""
    victim, old = tmp_path / "victim", tmp_path / "old"
    victim.touch(0o600)
    old.touch(0o644)
    with streamed(old) as file:
        (scratch,) = tmp_path.glob(".lightsleep-*")
        scratch.unlink()
        scratch.symlink_to(victim)
        file.write(b"text")
    assert (mode(victim), victim.read_bytes()) == (0o600, b"")


def test_what_is_for_others_may_be_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    publish(tmp_path / "pipe", b"text", 0o644)
    assert os.read(reader, 10) == b"text"
    os.close(reader)


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 255), "text")
    assert [len(x.name) for x in tmp_path.iterdir()] == [255]


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def nobody() -> Iterator[None]:
    with as_nobody():
        yield


def refusals(path: Path) -> list[str]:
    """Return what is said of a file before any work, and when it is written after all."""
    said = []
    for write in (check_writable, lambda path: write_text(path, "text")):
        with pytest.raises(LightsleepError) as caught:
            write(path)
        said.append(caught.value.message)
    return said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("loop", "Too many levels of symbolic links"),
        ("loop/x.json", "Too many levels of symbolic links"),
        ("file/x.json", "Not a directory"),
        ("n" * 256, "File name too long"),
        ("/proc/x.json", "No such file or directory"),
        ("/proc/no/x.json", "No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_found_out_before(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / name
    assert refusals(path) == [f"cannot write {path}: {why}"] * 2
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "loop"]
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("name", ["n" * 256, f"{'n' * 256}/x.json"])
def test_a_name_too_long_is_found_out_below_a_folder_to_make(tmp_path: Path, name: str) -> None:
    with pytest.raises(LightsleepError, match="File name too long"):
        check_writable(tmp_path / "new" / name)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=rf"{tmp_path} is a folder: name a file"):
        check_writable(tmp_path)


def test_folders_of_others(tmp_path: Path, nobody: None) -> None:
    for path in (Path("/root/x.json"), Path("/x.json")):
        assert refusals(path) == [f"cannot write {path}: Permission denied"] * 2


@pytest.fixture
def sticky() -> Iterator[Path]:
    """A folder as /tmp is, with a file of another user's; nobody may not look into tmp_path."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        (Path(folder) / "x.json").write_text("an old result, which is longer")
        with contextlib.suppress(PermissionError):  # as_nobody() skips the test
            os.chown(Path(folder) / "x.json", 1234, 1234)
        yield Path(folder)


def test_another_users_file_in_a_sticky_folder_is_written_in_place(sticky: Path) -> None:
    (sticky / "x.json").chmod(0o666)
    with as_nobody():
        check_writable(sticky / "x.json")
        write_text(sticky / "x.json", "text")
    assert (sticky / "x.json").read_text() == "text"
    assert (sticky / "x.json").stat().st_uid == 1234
    assert [x.name for x in sticky.iterdir()] == ["x.json"]


def test_another_users_file_that_cannot_be_written_is_found_out_before(sticky: Path) -> None:
    (sticky / "x.json").chmod(0o644)
    with as_nobody(), pytest.raises(LightsleepError, match=r"x\.json: Permission denied"):
        check_writable(sticky / "x.json")


def test_a_file_that_only_its_folder_lets_us_replace(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "x.json").touch(0o400)
    check_writable(tmp_path / "x.json")
    write_text(tmp_path / "x.json", "text")
    assert (tmp_path / "x.json").read_text() == "text"


MOUNTED = """
import sys
from pathlib import Path
from lightsleep.files import check_writable, write_text
from lightsleep.record import scratch_files
target = Path(sys.argv[1])
check_writable(target)
if sys.argv[2] == "result":
    write_text(target, "text")
else:
    scratch = target.with_name("scratch")
    scratch.write_text("text")
    scratch_files.take_place(scratch, target)
"""
MOUNT = 'mount --bind "$1" "$1" && { test -z "$4" || mount -o remount,bind,ro "$1"; }'


def mounted(file: Path, what: str, read_only: str = "") -> str:
    """Write to a file that is a mount point, as a container's may be; return what is said."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("only root can mount a file")
    script = f'{MOUNT} && exec "$0" -c "$3" "$1" "$2"'
    words = ["unshare", "-m", "sh", "-c", script, sys.executable, str(file), what, MOUNTED]
    done = subprocess.run([*words, read_only], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    return done.stderr


@pytest.mark.parametrize("what", ["result", "recording"])
def test_a_mount_point_is_written_in_place(tmp_path: Path, what: str) -> None:
    file = tmp_path / "x.json"
    file.write_text("an old result, which is longer")
    assert mounted(file, what) == ""
    assert file.read_text() == "text"
    assert [x.name for x in tmp_path.iterdir()] == ["x.json"]


def test_a_mount_point_that_cannot_be_written_is_found_out_before(tmp_path: Path) -> None:
    (tmp_path / "x.json").touch()
    assert "x.json: Read-only file system" in mounted(tmp_path / "x.json", "result", "ro")


def test_a_result_that_does_not_get_its_place_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "x.json").touch()
    monkeypatch.setattr(Path, "replace", busy)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(LightsleepError) as caught:
        write_text(tmp_path / "x.json", "text")
    (scratch,) = tmp_path.glob(".lightsleep-*")
    assert scratch.read_text() == "text"
    assert caught.value.message == (
        f"cannot write {tmp_path / 'x.json'}: No space left on device; what was to be written is "
        f"in {scratch}"
    )


def test_to_find_out_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new/a/b.json")
    for path in ("new/a/b.json", "link"):
        check_writable(tmp_path / path)
    assert [x.name for x in tmp_path.iterdir()] == ["link"]
    check_writable(Path("/dev/null"))


@pytest.mark.timeout(30)
def test_nobody_waits_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pipe = Path(f"/dev/fd/{writer}")
    check_writable(pipe)
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)


def failing() -> None:
    raise LightsleepError("cannot write a: full")


def test_a_result_is_written_and_shown_whatever_of_it_fails(tmp_path: Path) -> None:
    shown = False
    with (
        pytest.raises(LightsleepError, match=r"cannot write a: full\ncannot write a: full"),
        written(failing, lambda: write_text(tmp_path / "b", "text"), failing),
    ):
        shown = True
    assert shown
    assert (tmp_path / "b").exists()


def test_what_cannot_be_shown_hides_no_lost_file() -> None:
    with pytest.raises(LightsleepError, match="cannot write a: full"), written(failing):
        raise SystemExit(1)
    with pytest.raises(SystemExit), written():
        raise SystemExit(1)

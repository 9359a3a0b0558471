# SPDX-License-Identifier: GPL-2.0-only
"""The cache holds complete entries only, whatever happens while one is built."""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO
from unittest.mock import Mock

import pytest

from lightsleep import cache
from lightsleep.errors import LightsleepError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    let_go()
    return tmp_path / "cache"


def build_file(scratch: Path) -> None:
    (scratch / "file").write_text("content")


def no_build(_: Path) -> None:
    raise AssertionError("built twice")


def let_go() -> None:
    """Hold no entry any more, as if this process had ended."""
    while cache._held:
        os.close(cache._held.popitem()[1])


def visible(folder: Path) -> list[str]:
    return sorted(x.name for x in folder.iterdir() if not x.name.endswith(".lock"))


def test_an_entry_is_built_once() -> None:
    first = cache.entry("a", build_file, 1)
    assert (first / "file").read_text() == "content"
    assert cache.entry("a", no_build, 1) == first


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, LightsleepError("no"), ValueError])
def test_an_interrupted_build_leaves_nothing(own_cache: Path, interruption: BaseException) -> None:
    def build(scratch: Path) -> None:
        build_file(scratch)
        raise interruption

    with pytest.raises((KeyboardInterrupt, LightsleepError, ValueError)):
        cache.entry("a", build, 1)
    assert visible(own_cache) == []
    cache.entry("a", build_file, 1)


def test_what_a_killed_builder_left_is_swept(own_cache: Path) -> None:
    program = (
        "import os, signal; from lightsleep import cache\n"
        "def build(scratch):\n"
        "    (scratch / 'half').write_text('')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.entry('killed', build, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert visible(own_cache) == [".killed.scratch"]
    cache.entry("other", build_file, 1)
    assert visible(own_cache) == ["other"]


def test_a_builder_at_work_is_not_swept(own_cache: Path) -> None:
    building, go_on = threading.Event(), threading.Event()

    def slow(scratch: Path) -> None:
        building.set()
        assert go_on.wait(60)
        build_file(scratch)

    thread = threading.Thread(target=cache.entry, args=("slow", slow, 1))
    thread.start()
    assert building.wait(60)
    cache.entry("other", build_file, 1)
    go_on.set()
    thread.join()
    assert visible(own_cache) == ["other", "slow"]


def test_concurrent_builders_build_once() -> None:
    built: list[Path] = []

    def build(scratch: Path) -> None:
        built.append(scratch)
        time.sleep(0.1)
        build_file(scratch)

    threads = [threading.Thread(target=cache.entry, args=("a", build, 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


@pytest.fixture
def goes(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file that somebody removes while the first who wants it waits."""
    own_cache.mkdir()
    path, flock = own_cache / ".a.lock", fcntl.flock
    path.touch()

    def late(file: IO[str], how: int) -> None:
        flock(file, how)
        if not (own_cache / "once").exists():
            (own_cache / "once").touch()
            path.unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    return path


def test_who_waits_for_a_lock_that_goes_locks_the_new_one(goes: Path) -> None:
    with cache.locked(goes), goes.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_for_another_process_says_so_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_cache.mkdir()
    monkeypatch.setattr(cache, "SILENT_S", 0.05)
    with (own_cache / ".a.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        release = threading.Timer(0.5, fcntl.flock, (other, fcntl.LOCK_UN))
        release.start()
        cache.entry("a", build_file, 1)
        release.join()
    said = f"waiting for another process, which has the lock of a in {own_cache}\n"
    assert capsys.readouterr().err == said
    cache.entry("b", build_file, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pause_s", [0.02, 0.6])
def test_a_thread_of_this_process_is_waited_for_in_silence(
    pause_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine, too, where a pause between two looks outlasts the thread."""
    monkeypatch.setattr(cache, "SILENT_S", 0.05)
    paused = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(pause_s))
    monkeypatch.setattr(cache, "time", paused)
    building = threading.Event()

    def slow(scratch: Path) -> None:
        building.set()
        time.sleep(0.3)
        build_file(scratch)

    thread = threading.Thread(target=cache.entry, args=("a", slow, 1))
    thread.start()
    assert building.wait(60)
    cache.entry("a", no_build, 1)
    thread.join()
    assert capsys.readouterr().err == ""


def test_what_may_have_another_lock_by_now_is_not_swept(goes: Path) -> None:
    (goes.parent / ".a.scratch").mkdir()
    cache.sweep(goes.parent)
    assert visible(goes.parent) == [".a.scratch", "once"]


def test_too_little_space_is_said_before_anything_is_done(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 7 * 10**8, 300 * 2**20))
    with pytest.raises(LightsleepError) as raised:
        cache.entry("a", no_build, 1200)
    for word in ("1200 MB", "300 MB", str(own_cache), "LIGHTSLEEP_CACHE"):
        assert word in raised.value.message
    assert visible(own_cache) == []


def test_a_folder_that_cannot_be_made_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LightsleepError, match="LIGHTSLEEP_CACHE"):
        cache.entry("a", build_file, 1)


def nothing_there(folder: Path) -> None:
    (folder / "nowhere/file").touch()


def not_ours(_: Path) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/file")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda _: subprocess.run(["no-such"]), "there is no program no-such: install it"),
        (nothing_there, "No such file or directory"),
        (not_ours, "Permission denied: '/elsewhere/file'"),
    ],
)
def test_what_a_builder_lacks_is_not_blamed_on_the_cache(
    own_cache: Path, build: Callable[[Path], None], said: str
) -> None:
    with pytest.raises(LightsleepError, match=f"^cannot make a for the cache: .*{said}") as caught:
        cache.entry("a", build, 1)
    assert "LIGHTSLEEP_CACHE" not in caught.value.message
    assert visible(own_cache) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_cache_that_a_builder_cannot_write_is_an_error_with_advice(number: int) -> None:
    def build(scratch: Path) -> None:
        raise OSError(number, os.strerror(number), str(scratch / "file"))

    with pytest.raises(LightsleepError, match="LIGHTSLEEP_CACHE"):
        cache.entry("a", build, 1)


def test_an_entry_that_is_used_often_is_held_once(own_cache: Path) -> None:
    cache.entry("a", build_file, 1)
    before = sorted(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        cache.entry("a", no_build, 1)
        shutil.rmtree(own_cache / "a")
        cache.entry("a", build_file, 1)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_folder_that_another_machine_removed_is_made_anew(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, a descriptor of such a folder has no state any more."""
    cache.entry("a", build_file, 1)
    stale, fstat, close = cache._held[own_cache / "a"], os.fstat, os.close
    shutil.rmtree(own_cache / "a")

    def remote(file: int) -> os.stat_result:
        if file == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(file)

    with monkeypatch.context() as context:
        context.setattr(os, "fstat", remote)
        # Its number must not be used again.
        context.setattr(os, "close", lambda file: None if file == stale else close(file))
        assert (cache.entry("a", build_file, 1) / "file").exists()
    os.close(stale)


def test_where_nothing_can_be_locked_entries_are_used(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_cache / "a").mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    assert cache.entry("a", no_build, 1) == own_cache / "a"


def test_who_comes_while_an_entry_is_removed_makes_a_new_one(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_cache / "a").mkdir(parents=True)
    flock = fcntl.flock

    def late(file: IO[str] | int, how: int) -> None:
        if (own_cache / "a").exists() and not (own_cache / "a/file").exists():
            shutil.rmtree(own_cache / "a")  # who has the lock meanwhile
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert (cache.entry("a", build_file, 1) / "file").exists()


def test_entries_nobody_used_for_long_make_way(own_cache: Path) -> None:
    for name in ("old", "used"):
        entry = cache.entry(name, build_file, 1)
        os.utime(entry, (1, 1))
    let_go()
    cache.entry("used", no_build, 1)
    cache.entry("new", build_file, 1)
    assert visible(own_cache) == ["new", "used"]


def test_an_entry_that_is_swept_is_never_there_by_half(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(scratch: Path) -> None:
        for number in range(3):
            (scratch / f"file{number}").touch()

    def die_early(path: Path, **_: object) -> None:
        if path.is_dir():
            next(path.iterdir()).unlink()
            raise KeyboardInterrupt

    os.utime(cache.entry("old", build, 1), (1, 1))
    let_go()
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", die_early)
        with pytest.raises(KeyboardInterrupt):
            cache.entry("new", build_file, 1)
    assert len(list(cache.entry("old", build, 1).iterdir())) == 3
    assert visible(own_cache) == ["old"]


def test_an_entry_is_not_swept_while_somebody_comes_for_it(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cache.entry("old", build_file, 1)
    os.utime(entry, (1, 1))
    let_go()
    asked: list[Path] = []

    def unused(path: Path) -> bool:
        asked.append(path)
        return len(asked) == 1

    monkeypatch.setattr(cache, "_unused", unused)
    cache.sweep(own_cache)
    assert asked == [entry, own_cache / ".old.scratch"]
    assert visible(own_cache) == ["old"]
    asked.clear()
    with (own_cache / ".old.lock").open("w") as file:  # its builder is at work
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.sweep(own_cache)
    assert asked == []


def test_an_entry_in_use_is_not_swept_however_old(own_cache: Path) -> None:
    os.utime(cache.entry("old", build_file, 1), (1, 1))
    cache.entry("new", build_file, 1)
    assert visible(own_cache) == ["new", "old"]
    let_go()
    cache.entry("newer", build_file, 1)
    assert visible(own_cache) == ["new", "newer"]


def test_where_nothing_can_be_locked_what_is_old_is_swept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(cache.entry("old", build_file, 1), (1, 1))
    let_go()
    flock = fcntl.flock

    def of_files_only(file: IO[str] | int, how: int) -> None:
        if isinstance(file, int):
            raise OSError(errno.ENOLCK, "no locks")
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", of_files_only)
    cache.entry("new", build_file, 1)
    assert visible(own_cache) == ["new"]


def test_the_environment_that_a_lab_runs_in_is_in_use(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever cache it uses now: make may have made the environment in another one."""
    venv = tmp_path / "other/venv-1"
    venv.mkdir(parents=True)
    os.utime(venv, (1, 1))
    (venv.parent / ".venv-1.lock").touch()
    monkeypatch.setattr(sys, "prefix", str(venv))
    cache.entry("a", build_file, 1)
    assert venv.stat().st_mtime > 1
    with pytest.raises(BlockingIOError):
        fcntl.flock(held := os.open(venv, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)


def test_an_environment_of_another_user_is_in_use_all_the_same(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv, utime = tmp_path / "shared/venv-1", os.utime
    venv.mkdir(parents=True)
    (venv.parent / ".venv-1.lock").touch()

    def refused(path: Path) -> None:
        if path == venv:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        utime(path)

    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(os, "utime", refused)
    cache.entry("a", build_file, 1)
    assert cache._held.keys() == {venv, own_cache / "a"}


def test_a_python_that_make_did_not_install_is_left_alone(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "usr").mkdir()
    os.utime(tmp_path / "usr", (1, 1))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "usr"))
    cache.entry("a", build_file, 1)
    assert (tmp_path / "usr").stat().st_mtime == 1
    assert cache._held.keys() == {own_cache / "a"}


def test_what_an_entry_holds_is_on_the_disk_before_its_name(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may lose its power: the name alone would be trusted for ever."""
    synced, sync = list[list[str]](), cache._sync

    def seen(scratch: Path) -> None:
        synced.append(visible(own_cache))
        assert (scratch / "file").exists()
        sync(scratch)

    monkeypatch.setattr(cache, "_sync", seen)
    cache.entry("a", build_file, 1)
    cache.entry("a", no_build, 1)
    assert synced == [[".a.scratch"]]


def test_an_entry_that_does_not_get_to_the_disk_is_none(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_sync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(LightsleepError, match=r"cannot write the cache folder .*Input/output"):
        cache.entry("a", build_file, 1)
    assert visible(own_cache) == []


def test_what_cannot_be_written_to_the_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache._sync(tmp_path)

    def syncfs(_file: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Mock(syncfs=syncfs))
    with pytest.raises(OSError, match="Input/output error") as raised:
        cache._sync(tmp_path)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path))


def test_a_scratch_folder_goes_with_its_process(own_cache: Path) -> None:
    with cache.scratch("own-1") as folder:
        (folder / "file").touch()
        cache.sweep(own_cache)
        assert visible(own_cache) == [".own-1.scratch"]
    assert not list(own_cache.iterdir())
    program = (
        "import os, signal; from lightsleep import cache\n"
        "with cache.scratch('own-2'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert visible(own_cache) == [".own-2.scratch"]
    cache.sweep(own_cache)
    assert visible(own_cache) == []


def test_what_is_not_an_entry_stays(own_cache: Path) -> None:
    own_cache.mkdir()
    for folder in ("photos", ".hidden.scratch"):
        (own_cache / folder).mkdir()
        os.utime(own_cache / folder, (1, 1))
    (own_cache / "broken").symlink_to("nowhere")
    (own_cache / "...lock").touch()  # stands for no entry, and not for the folder itself
    os.utime(own_cache, (1, 1))
    cache.entry("new", build_file, 1)
    assert visible(own_cache) == [".hidden.scratch", "broken", "new", "photos"]


def test_a_new_cache_is_its_users_alone(own_cache: Path) -> None:
    cache.entry("a", build_file, 1)
    assert own_cache.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def foreign_owner(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """We are root, and own all but these."""
    foreign = set[Path]()
    lstat = Path.lstat

    def told(path: Path) -> os.stat_result:
        values = list(lstat(path))
        values[4] = 1000 if path in foreign else 0
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", told)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cache._private.cache_clear()
    return foreign


def test_root_uses_its_own_cache_for_code(own_cache: Path, foreign_owner: set[Path]) -> None:
    assert cache.code("a", build_file, 1) == own_cache / "a"
    assert cache.code("a", no_build, 1) == own_cache / "a"


@pytest.mark.parametrize("whose", ["cache/a", "cache", "."])
def test_root_loads_no_code_of_another_user(
    own_cache: Path,
    foreign_owner: set[Path],
    tmp_path: Path,
    whose: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own_cache / "a").mkdir(parents=True)
    foreign_owner.add(tmp_path / whose)
    # What goes with this process need not outlast a crash.
    monkeypatch.setattr(cache, "_sync", Mock(side_effect=AssertionError))
    entry = cache.code("a", build_file, 1)
    assert own_cache not in entry.parents
    assert entry.parent.stat().st_mode & 0o777 == 0o700
    assert cache.code("a", no_build, 1) == entry


def test_root_loads_no_code_from_a_shared_folder(own_cache: Path, foreign_owner: set[Path]) -> None:
    (own_cache / "a").mkdir(parents=True)
    own_cache.chmod(0o1777)  # sticky is enough above the cache only
    assert own_cache not in cache.code("a", build_file, 1).parents


def test_root_loads_no_code_through_a_link(own_cache: Path, foreign_owner: set[Path]) -> None:
    own_cache.mkdir()
    (own_cache / "a").symlink_to(own_cache)
    assert own_cache not in cache.code("a", build_file, 1).parents


def test_an_entry_counts_as_new_however_old_its_content(own_cache: Path) -> None:
    cache.entry("unpacked", lambda scratch: os.utime(scratch, (1, 1)), 1)
    cache.entry("other", build_file, 1)
    assert visible(own_cache) == ["other", "unpacked"]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.folder() == Path(os.environ["LIGHTSLEEP_CACHE"])
    monkeypatch.delenv("LIGHTSLEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == Path("/x/lightsleep")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/h")
    assert cache.folder() == Path("/h/.cache/lightsleep")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIGHTSLEEP_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    with pytest.raises(LightsleepError, match="set LIGHTSLEEP_CACHE to a writable folder"):
        cache.folder()


def test_digests_tell_content_apart() -> None:
    assert cache.digest("ab", "c") != cache.digest("a", "bc")
    assert cache.digest("a", b"b") == cache.digest("a", "b")

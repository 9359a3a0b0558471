# SPDX-License-Identifier: GPL-2.0-only
"""Session modules and files, and what is kept of them."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_modules
import pytest
import scan_trees
from scan_trees import plant

from lightsleep.errors import LightsleepError
from lightsleep.settings import journalled, restorer

NAME = "cpuidle_lightsleep"
LOAD = ["modprobe", NAME, "mode=fixed"]

BORROWER = """
import sys, time
from pathlib import Path
from lightsleep.ending import orderly_end
from lightsleep.settings import journalled
root = Path(sys.argv[1])
with orderly_end(), journalled.session(root, "try") as session:
    session.load("cpuidle_lightsleep", ["modprobe", "cpuidle_lightsleep", "mode=fixed"])
    session.write(root / "etc/modprobe.d/lightsleep.conf", "options\\n")
    session.write(root / "etc/modules-load.d/lightsleep.conf", "name\\n")
    print(flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = scan_trees.unfold("no-cpuidle", tmp_path / "machine")
    fake_modules.install(root, monkeypatch)
    for folder in ("modprobe.d", "modules-load.d"):
        (root / "etc" / folder).mkdir(parents=True)
    return root


def options(root: Path) -> Path:
    return root / "etc/modprobe.d/lightsleep.conf"


def loaded(root: Path) -> bool:
    return (root / "sys/module" / NAME / "initstate").exists()


def wait_until_there(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_module_is_loaded_until_the_end(root: Path) -> None:
    before = fake_modules.snapshot(root)
    with journalled.session(root) as session:
        session.load(NAME, LOAD)
        assert (root / "sys/module" / NAME / "parameters/mode").read_text() == "fixed\n"
    assert session.notes == []
    assert fake_modules.snapshot(root) == before


def test_a_module_is_unloaded_until_the_end(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    before = fake_modules.snapshot(root)
    with journalled.session(root) as session:
        session.unload("cpuidle_haltpoll", ["modprobe", "cpuidle_haltpoll", "force=1"])
        session.load(NAME, LOAD)
        assert not (root / "sys/module/cpuidle_haltpoll").exists()
    assert fake_modules.snapshot(root) == before


def test_sigkill_unloads_and_removes(root: Path) -> None:
    before = fake_modules.snapshot(root)
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER, str(root)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        assert loaded(root)
        assert options(root).exists()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while fake_modules.snapshot(root) != before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("sent_to", ["process", "group"])
def test_killed_while_the_module_is_half_loaded(
    root: Path, number: signal.Signals, sent_to: str
) -> None:
    """A terminal signals the whole group of processes."""
    before = fake_modules.snapshot(root)
    plant(root, "slow: 0.5")
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER, str(root)], stderr=subprocess.DEVNULL, process_group=0
    ) as process:
        wait_until_there(root / "started")
        {"process": os.kill, "group": os.killpg}[sent_to](process.pid, number)
        process.wait()
    fake_modules.wait_for_the_restorer(root)
    for name in ("slow", "started"):
        (root / name).unlink()
    assert fake_modules.snapshot(root) == before


def test_killed_while_the_module_is_half_unloaded(root: Path) -> None:
    before = fake_modules.snapshot(root)
    script = BORROWER.replace("time.sleep(1000)", "sys.stdin.read(1); session.restore()")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.read(1)
        plant(root, "slow: 0.5")
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until_there(root / "started")
        process.send_signal(signal.SIGHUP)
    fake_modules.wait_for_the_restorer(root)
    for name in ("slow", "started"):
        (root / name).unlink()
    assert fake_modules.snapshot(root) == before


def test_a_module_that_is_refused(root: Path) -> None:
    (root / "refused").write_text(f"{NAME}\n")
    with (
        journalled.session(root) as session,
        pytest.raises(LightsleepError, match="Key was rejected"),
    ):
        session.load(NAME, LOAD)
    assert session.notes == []
    assert not loaded(root)


def test_a_modprobe_that_loads_nothing(root: Path) -> None:
    """A line of modprobe.d can say what to run in place of loading."""
    (root / "ignored").write_text(f"{NAME}\n")
    with (
        journalled.session(root) as session,
        pytest.raises(LightsleepError, match=r"modprobe succeeded, but .* 'install' lines"),
    ):
        session.load(NAME, LOAD)
    assert session.notes == []


def test_a_module_in_use_is_told_and_stays_in_the_journal(root: Path) -> None:
    with journalled.session(root) as session:
        session.load(NAME, LOAD)
        (root / "busy").write_text(f"{NAME}\n")
    assert "is in use" in session.notes[0]
    with pytest.raises(LightsleepError, match="by hand"), journalled.session(root):
        pass
    (root / "busy").unlink()
    with journalled.session(root):
        assert not loaded(root)


def test_a_file_that_somebody_else_changed_stays(root: Path) -> None:
    with journalled.session(root) as session:
        session.write(options(root), "ours\n")
        options(root).write_text("theirs\n")
    assert options(root).read_text() == "theirs\n"
    assert "changed by somebody else" in session.notes[0]


def test_where_nothing_can_be_written_nothing_has_to_be_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only file system refuses to remove what is not there."""

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    undos = {("file", str(options(root))): restorer.Undo(None, {"ours\n"})}
    assert restorer.set_back(undos, root) == ([], [])
    restorer.scratch_of(options(root)).write_text("half")
    _, left = restorer.set_back(undos, root)
    assert left == [f"cannot remove {options(root)} again: Read-only file system"]


def test_only_two_files_may_be_written(root: Path) -> None:
    with journalled.session(root) as session, pytest.raises(ValueError, match="is none of"):
        session.write(root / "etc/passwd", "root::0:0:\n")
    assert not (root / "etc/passwd").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"module": "../x", "old": None, "new": "modprobe ../x"},
        {"module": "x", "old": "reboot", "new": None},
        {"module": "x", "old": "modprobe y", "new": None},
        {"module": "x", "old": "insmod x.ko", "new": None},
        {"module": "x", "old": "modprobe x --config=/tmp/x", "new": None},
        {"file": "/etc/passwd", "old": "x", "new": "y"},
    ],
)
def test_what_a_journal_cannot_ask_for(root: Path, change: dict[str, str]) -> None:
    run_dir = root / "run/lightsleep"
    run_dir.mkdir(parents=True)
    lines = [{"boot_id": restorer.boot_id()}, change]
    (run_dir / "journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(LightsleepError), journalled.session(root):
        pass


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("always [madvise] never\n", "madvise"),
        ("[none]\n", "none"),
        ("s2idle [deep]\n", "deep"),
        ("[a] [b]\n", "[a] [b]"),
        ("2 [\n", "2 ["),
        ("x[1] y\n", "x[1] y"),
        ("\n", ""),
    ],
)
def test_of_a_choice_the_chosen_word_is_the_value(text: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "knob").write_text(text)
    assert restorer.read_knob(tmp_path, str(tmp_path / "knob")) == value


@pytest.mark.parametrize("online", ["0", "1"])
def test_of_a_cpu_that_is_offline_the_user_hears_what_to_look_at(online: str, root: Path) -> None:
    """On POWER it comes back with its states as they were. Else the driver has gone."""
    cpu = "sys/devices/system/cpu/cpu1"
    plant(root, f"{cpu}/cpuidle/state1/disable: 0\n{cpu}/online: 1")
    with journalled.session(root) as session:
        session.set(root / cpu / "cpuidle/state1/disable", "1")
        shutil.rmtree(root / cpu / "cpuidle")
        plant(root, f"{cpu}/online: {online}")
    (note,) = session.notes
    if online == "0":
        assert note.startswith("CPU 1 is offline; when it is back, see whether ")
        assert note.endswith("cpu1/cpuidle/state1/disable is 0")
    else:
        assert note.endswith("cpu1/cpuidle/state1/disable is gone: nothing to set back")


@pytest.mark.parametrize(
    ("file", "online", "why"),
    [
        ("cpufreq/policy1/scaling_governor", "0", "CPU 1 is offline"),
        ("cpu1/cpufreq/scaling_governor", "0", "CPU 1 is offline"),
        ("cpufreq/policy1/scaling_governor", "1", "Device or resource busy"),
        ("cpufreq/boost", "0", "Device or resource busy"),
    ],
)
def test_of_a_file_that_the_kernel_keeps_the_user_hears_which_cpu_is_offline(
    file: str, online: str, why: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_root: Path, name: str) -> str:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)

    plant(root, f"{CPU}/{file}: performance\n{CPU}/cpu1/online: {online}")
    kind = dataclasses.replace(restorer.KINDS["knob"], read=busy)
    monkeypatch.setitem(restorer.KINDS, "knob", kind)
    name = str(root / CPU / file)
    undos = {("knob", name): restorer.Undo("powersave", {"performance"})}
    said = f"cannot set {name} to powersave again: {why}"
    assert restorer.set_back(undos, root) == ([], [said])


def test_what_could_not_be_set_back_is_told_with_the_error_that_ended_it(root: Path) -> None:
    plant(root, "busy: cpuidle_lightsleep\nrefused: cpuidle_haltpoll")
    with pytest.raises(LightsleepError) as said, journalled.session(root, "try") as session:  # noqa: PT012
        session.load(NAME, LOAD)
        session.load("cpuidle_haltpoll", ["modprobe", "cpuidle_haltpoll"])
    first, second = said.value.format_message().splitlines()
    assert "Key was rejected" in first
    assert "cannot unload module cpuidle_lightsleep" in second


def test_whatever_the_umask_others_may_read_what_is_kept(root: Path) -> None:
    before = os.umask(0o077)
    try:
        with journalled.session(root, "enable", setting="lightsleep") as session:
            session.write(options(root), "ours\n")
            session.keep()
    finally:
        os.umask(before)
    assert options(root).stat().st_mode & 0o777 == 0o644
    assert (root / "run/lightsleep").stat().st_mode & 0o777 == 0o755
    assert (root / "run/lightsleep/kept").stat().st_mode & 0o777 == 0o644


def test_what_is_kept_is_taken_back(root: Path) -> None:
    before = fake_modules.snapshot(root)
    with journalled.session(root, "enable", setting="lightsleep:fixed") as session:
        session.load(NAME, LOAD)
        session.write(options(root), "ours\n")
        session.keep()
    assert session.notes == []
    assert loaded(root)
    kept = journalled.kept(root)
    assert kept
    assert kept.header["setting"] == "lightsleep:fixed"
    assert kept.header["since"]
    with journalled.session(root):  # another command meanwhile leaves it alone
        pass
    assert loaded(root)
    with journalled.exclusive(root, "disable") as alone:
        assert alone.notes == []
        assert alone.undo(kept.undos, kept) == ([], [])
    assert fake_modules.snapshot(root) == before
    assert journalled.kept(root) is None


def test_what_is_kept_twice_goes_back_to_the_first(root: Path) -> None:
    before = fake_modules.snapshot(root)
    mode = root / "sys/module" / NAME / "parameters/mode"
    for value in ("off", "adaptive"):
        with journalled.session(root, "enable", setting=value) as session:
            session.load(NAME, LOAD)
            session.set(mode, value)
            session.keep()
    kept = journalled.kept(root)
    assert kept
    assert kept.header["setting"] == "adaptive"
    with journalled.exclusive(root, "disable") as alone:
        alone.undo(kept.undos, kept)
    assert fake_modules.snapshot(root) == before


def test_nothing_is_kept_after_a_reboot(root: Path) -> None:
    with journalled.session(root, "enable") as session:
        session.load(NAME, LOAD)
        session.keep()
    file = root / "run/lightsleep/kept"
    header, rest = file.read_text().split("\n", 1)
    file.write_text(json.dumps(json.loads(header) | {"boot_id": "another"}) + "\n" + rest)
    assert journalled.kept(root) is None


def test_who_is_not_root_may_read_what_is_kept_and_nothing_else(root: Path) -> None:
    with journalled.session(root, "enable") as session:
        session.load(NAME, LOAD)
        for name in ("journal", "lock"):
            assert (root / "run/lightsleep" / name).stat().st_mode & 0o777 == 0o600
        session.keep()
    assert (root / "run/lightsleep").stat().st_mode & 0o777 == 0o755
    assert (root / "run/lightsleep/kept").stat().st_mode & 0o777 == 0o644


CPU = "sys/devices/system/cpu"
GOVERNOR = f"{CPU}/cpuidle/current_governor"


@pytest.mark.parametrize(
    ("found", "then", "reset"),
    [
        ("haltpoll", "menu", True),
        ("haltpoll", "haltpoll", False),
        ("menu", "haltpoll", False),  # which begins anew by itself
        ("menu", "teo", False),
    ],
)
def test_the_poll_limit_of_haltpoll_goes_with_it(
    found: str, then: str, reset: bool, root: Path
) -> None:
    """The kernel resets it where somebody writes to the file of a state, and nowhere else."""
    files = [root / CPU / f"cpu{cpu}/cpuidle/state0/disable" for cpu in (0, 1, 10)]
    for file, value in zip(files, "011", strict=True):
        plant(root, f"{file.relative_to(root)}: {value}")
        os.utime(file, (0, 0))
    files[1].unlink()  # its CPU goes offline
    files[1].symlink_to(files[1])
    plant(root, f"{GOVERNOR}: {found}")
    restorer.write_knob(root, str(root / GOVERNOR), then)
    assert (root / GOVERNOR).read_text() == f"{then}\n"
    for file, value in ((files[0], "0"), (files[2], "1")):
        assert file.read_text() == f"{value}\n"
        assert (file.stat().st_mtime > 0) == reset


@pytest.mark.parametrize(
    ("written", "reset"), [({"haltpoll"}, True), ({"teo", "haltpoll"}, True), ({"teo"}, False)]
)
def test_a_poll_limit_that_was_left_by_one_who_was_killed_goes(
    written: set[str | None], reset: bool, root: Path
) -> None:
    """It had set the governor back, and not yet written to the files of the states."""
    file = root / CPU / "cpu0/cpuidle/state0/disable"
    plant(root, f"{GOVERNOR}: menu\n{file.relative_to(root)}: 0")
    os.utime(file, (0, 0))
    undo = restorer.Undo("menu", written)
    assert restorer.set_back({("knob", str(root / GOVERNOR)): undo}, root) == ([], [])
    assert file.read_text() == "0\n"
    assert (file.stat().st_mtime > 0) is reset


def test_a_session_that_sets_haltpolls_governor_leaves_no_poll_limit(root: Path) -> None:
    file = root / CPU / "cpu0/cpuidle/state0/disable"
    plant(root, f"{GOVERNOR}: menu\n{file.relative_to(root)}: 0")
    with journalled.session(root) as session:
        session.set(root / GOVERNOR, "haltpoll")
        os.utime(file, (0, 0))
    assert (root / GOVERNOR).read_text() == "menu\n"
    assert file.stat().st_mtime > 0

# SPDX-License-Identifier: GPL-2.0-only
"""The restorer: sets changed settings back, however the process that changed them ended.

A process that is killed with SIGKILL cannot clean up, so another one does: the restorer. The
process that changes settings is the *owner* of the journal. The restorer starts before the first
setting is changed, in a session of its own (setsid), and ignores the signals that end the owner. It
blocks in reading a pipe of which the owner holds the only write end. The pipe ends when the owner
closes it, or with the owner; to the restorer that is the same. There is no other way back: the
orderly end takes the path that has to work after SIGKILL.

What to set back stands in the journal, which is written before the setting is changed. One JSON
document a line. The first names the boot and the owner, every other one a change:

    {"boot_id": "...", "verb": "try", ...}
    {"knob": "/sys/devices/system/cpu/cpu1/cpuidle/state0/disable", "old": "0", "new": "1"}
    {"module": "cpuidle_lightsleep", "old": null, "new": "modprobe cpuidle_lightsleep mode=off"}
    {"file": "/etc/modules-load.d/lightsleep.conf", "old": null, "new": "..."}

A knob is a file of sysfs. A module that is not loaded is null, one that is loaded stands as the
command that loads it. A file that is not there is null. The owner had not yet acted upon a line
without its newline. An owner that has set everything back and goes on truncates the journal to
its first line.

The journal survives the restorer. Whoever finds it, sets back by the same rules:

- in reverse order of the first change, to the value found at that change;
- only what still holds a value that the owner wrote, or that a knob got when a module was set back:
  any other value was set by somebody else meanwhile, and stays;
- a knob that is gone (driver unloaded) has nothing to set back; of a CPU that is offline, the
  user is told what to look at when it is back;
- nothing but sysfs, modules and FILES, and nothing after a reboot. A reboot resets sysfs and
  modules by itself and empties /run, where the journal is. Of FILES, which survive it, the owner
  writes last the one without which the others have no effect (see lightsleep/enable/change.py).

This file runs on its own (``python -I -S``, by its path): it needs only the standard library, and
neither the environment, the working folder nor the threads of its owner can disturb it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

READY = b"ready\n"
DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
SBIN = "/usr/sbin:/sbin"
"""Where modprobe and rmmod are; su may leave it out of the PATH."""

GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)

CPUS = "sys/devices/system/cpu"

FILES = ("etc/modprobe.d/lightsleep.conf", "etc/modules-load.d/lightsleep.conf")
"""The only files that an owner may write, below the root."""

KEPT, KEPT_SOON = "kept", "kept.new"
"""The record of what an owner keeps, beside the journal: its first line, then the changes."""

MODULE_S = 60
"""How long loading or unloading a module may take, in seconds."""

Value = str | None
Held = Sequence[int]
Setting = tuple[str, str]
"""What is changed: its kind, one of KINDS, and its name."""


@dataclasses.dataclass
class Undo:
    """How to undo changes of a setting: the value to set back, and all that the owner wrote."""

    old: Value
    written: set[Value] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of setting: what may be changed, and how it is read and written.

    ``refuse`` gets the root and a name, and returns why that may not be changed, else None.
    ``read`` and ``write`` raise OSError. ``same`` compares what was read with what was written. A
    command that ``write`` starts holds the descriptors it gets, until it ends.
    """

    refuse: Callable[[Path, str], str | None]
    read: Callable[[Path, str], Value]
    write: Callable[[Path, str, Value, Held], None]
    same: Callable[[Value, Value], bool]


def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _text(file: Path) -> str:
    """Return what a file holds, of which _bytes() makes the same bytes again, whatever they are."""
    return file.read_bytes().decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


# Knobs.


def _refuse_knob(root: Path, name: str) -> str | None:
    knob, tree = Path(name), root / "sys"
    # Wherever links and dots lead.
    if knob.is_absolute() and knob.resolve().is_relative_to(tree.resolve()):
        return None
    return f"{knob} does not lie under {tree}"


def read_knob(_root: Path, name: str) -> Value:
    """Return the value of a knob.

    Of a choice, ``always [madvise] never``, that is the word in brackets: what could be written.
    """
    value = _text(Path(name)).strip()
    chosen = [word for word in value.split() if re.fullmatch(r"\[[^][]+\]", word)]
    return chosen[0][1:-1] if len(chosen) == 1 else value


def write_knob(root: Path, name: str, value: Value, _held: Held = ()) -> None:
    """Write to a knob that exists."""
    if value is None:
        raise OSError(errno.EINVAL, "a knob cannot be removed")
    leaves_haltpoll = _is_governor(name) and read_knob(root, name) == "haltpoll" != value
    _write(name, value)
    if leaves_haltpoll:
        _forget_poll_limits(root, Path(name).parents[1])


def _is_governor(name: str) -> bool:
    return name.endswith("/cpuidle/current_governor")


def _write(name: str, value: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, _bytes(f"{value}\n"))
    finally:
        os.close(descriptor)


def _forget_poll_limits(root: Path, cpus: Path) -> None:
    """Have each CPU choose anew how long its polling state polls.

    The governor haltpoll sets that (dev->poll_limit_ns), and the kernel does not reset it where
    another governor follows. It does where somebody writes to the file of a state
    (cpuidle_state_store() in drivers/cpuidle/sysfs.c), if only what that holds.
    """
    for file in cpus.glob("cpu[0-9]*/cpuidle/state0/disable"):
        with contextlib.suppress(OSError):  # its CPU goes offline, or its driver
            if (value := read_knob(root, str(file))) is not None:
                _write(str(file), value)


# Modules.


def _refuse_module(_root: Path, name: str) -> str | None:
    return None if re.fullmatch(r"\w{1,60}", name, re.ASCII) else f"{name!r} is no module"


def read_module(root: Path, name: str) -> Value:
    """Return None where a module is not loaded; one that is built in has no initstate."""
    return "loaded" if (root / "sys/module" / name / "initstate").exists() else None


def write_module(_root: Path, name: str, value: Value, held: Held = ()) -> None:
    """Unload a module, or load it by the command ``value``.

    The command runs to its end whatever ends the process that started it: half a load is no
    setting that could be set back. So no signal of a terminal reaches the command, nothing kills it
    before MODULE_S, and what it says goes to a file, not to a pipe that could break. It holds the
    owner's end of the pipe, so that the restorer does not look before it has ended.
    """
    argv = ["rmmod", name] if value is None else shlex.split(value)
    if not loads(argv, name) and value is not None:
        raise OSError(errno.EINVAL, f"{value!r} does not load {name}")
    with open(os.memfd_create("said"), "r+b") as said:  # noqa: PTH123 (a descriptor)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=held,
                process_group=0,
                env=os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}"},
            )
            status = process.wait(MODULE_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise OSError(errno.ETIMEDOUT, f"{argv[0]} did not end in {MODULE_S} s") from error
        except FileNotFoundError as error:
            # Not ENOENT, which would say that the module is gone.
            raise OSError(errno.EINVAL, f"there is no command {argv[0]}") from error
        said.seek(0)
        output = " ".join(said.read().decode(errors="replace").split())[-500:]
    if status:
        raise OSError(errno.EIO, output or f"{argv[0]} failed with status {status}")


def loads(argv: list[str], name: str) -> bool:
    """Return whether a command does nothing but load the module ``name``."""
    if len(argv) < 2 or not all(re.fullmatch(r"\w+=[\w.,:-]*", x, re.ASCII) for x in argv[2:]):
        return False
    if argv[0] == "modprobe":
        return argv[1] == name
    file = Path(argv[1])
    return argv[0] == "insmod" and file.is_absolute() and file.name.partition(".")[0] == name


# Files.


def _refuse_file(root: Path, name: str) -> str | None:
    if Path(name) in [root / file for file in FILES]:
        return None
    return f"{name} is none of {', '.join(str(root / file) for file in FILES)}"


def read_file(_root: Path, name: str) -> Value:
    """Return what a file holds, None where it is not there.

    A pipe, which would be waited for, holds nothing, and neither does a device or a socket.
    """
    path = Path(name)
    try:
        mode = path.stat().st_mode
        return _text(path) if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_file(_root: Path, name: str, value: Value, _held: Held = ()) -> None:
    """Replace a file by a whole new one, or remove it; either survives a crash of the machine."""
    path = Path(name)
    scratch = scratch_of(path)
    scratch.unlink(missing_ok=True)  # of one that was killed, or of a crash
    if value is None:
        path.unlink(missing_ok=True)
    else:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # whatever the umask
        try:
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
                os.fchmod(descriptor, 0o644)  # whatever the umask
                file.write(_bytes(value))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    if path.parent.is_dir():
        sync_folder(path.parent)


def scratch_of(path: Path) -> Path:
    """Return where the new content of a file is written before it takes its place.

    No program reads a file of these folders that does not end in .conf.
    """
    return path.with_name(f".{path.name}.new")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _equal(found: Value, written: Value) -> bool:
    return found == written


def _equal_knobs(found: Value, written: Value) -> bool:
    """Compare values; the kernel shows what was written as 1 or 0 as Y or N, where it is a bool."""
    return _spelled(found) == _spelled(written)


def _spelled(value: Value) -> Value:
    return {"Y": "1", "N": "0"}.get(value or "", value)


def _both_loaded(found: Value, written: Value) -> bool:
    return (found is None) == (written is None)


KINDS = {
    "knob": Kind(_refuse_knob, read_knob, write_knob, _equal_knobs),
    "module": Kind(_refuse_module, read_module, write_module, _both_loaded),
    "file": Kind(_refuse_file, read_file, write_file, _equal),
}


# The journal.


def read(journal: Path, root: Path) -> tuple[dict[str, Any], dict[Setting, Undo]]:
    """Return the first line of a journal, and how to undo each change, oldest first.

    There is nothing to undo if the journal is of an earlier boot. Raises ValueError, saying what is
    wrong with the journal, and OSError.
    """
    # What follows the last newline was never acted upon.
    lines = journal.read_text().split("\n")[:-1]
    if not lines:
        return {}, {}
    try:
        header, *changes = [json.loads(line) for line in lines]
        if header["boot_id"] != boot_id():
            return {}, {}
        undos: dict[Setting, Undo] = {}
        for change in changes:
            setting, old, new = _parse(change, root)
            undos.setdefault(setting, Undo(old)).written.add(new)
    except (KeyError, TypeError, RecursionError, StopIteration) as error:
        raise ValueError("a line is not what the restorer writes") from error
    return header, undos


def _parse(change: dict[str, Any], root: Path) -> tuple[Setting, Value, Value]:
    kind = next(kind for kind in KINDS if kind in change)
    name, old, new = change[kind], change["old"], change["new"]
    may_be_none = kind != "knob"
    for value in (old, new):
        if not (isinstance(value, str) or (value is None and may_be_none)):
            raise ValueError(f"{name} has a value that is no text")
    if refusal := KINDS[kind].refuse(root, name):
        raise ValueError(refusal)
    return (kind, name), old, new


def is_kept(journal: Path) -> bool:
    """Return whether the owner had decided to keep what this journal names, and was killed then.

    The record of what is kept takes its place at once, and only then the journal is removed.
    """
    try:
        first = journal.with_name(KEPT).read_bytes().partition(b"\n")[0]
        return bool(first) and first == journal.read_bytes().partition(b"\n")[0]
    except OSError:
        return False


def end(journal: Path, root: Path) -> tuple[list[str], list[str]]:
    """End a session: set back what is not kept. Returns and raises as restore() does."""
    journal.with_name(KEPT_SOON).unlink(missing_ok=True)
    if is_kept(journal):
        journal.unlink()
        return [], []
    return restore(journal, root)


def restore(journal: Path, root: Path) -> tuple[list[str], list[str]]:
    """Set back all settings, and remove the journal unless one refused.

    Returns what is worth telling, and what refused with the reasons. Raises ValueError where the
    journal is not to be trusted, and OSError.
    """
    notes, refused = set_back(read(journal, root)[1], root)
    if not refused:
        journal.unlink()
    return notes, refused


def set_back(
    undos: dict[Setting, Undo], root: Path, held: Held = ()
) -> tuple[list[str], list[str]]:
    """Set back settings, the last first; return as restore() does."""
    notes, refused = [], []
    left = dict(undos)
    while left:
        setting, undo = left.popitem()
        try:
            # Killed before the new content took its place. Only where it is there: a read-only file
            # system refuses to remove what is not.
            scratch = scratch_of(Path(setting[1]))
            if setting[0] == "file" and os.path.lexists(scratch):
                scratch.unlink(missing_ok=True)
            note = _set_back_before(left, setting, undo, root, held)
        except OSError as error:
            if error.errno in GONE:
                note = _gone(setting[1], undo, root)
            else:
                cpu = offline(root, setting[1]) if error.errno == errno.EBUSY else None
                why = f"CPU {cpu} is offline" if cpu else error.strerror
                refused.append(f"cannot {said(setting, undo.old)} again: {why}")
                continue
        notes += [note] if note else []
    return notes, refused


def _set_back_before(
    left: dict[Setting, Undo], setting: Setting, undo: Undo, root: Path, held: Held
) -> str | None:
    """Set one setting back as set_back_one() does; ``left`` are those that come after it.

    The kernel chooses another governor where the driver haltpoll comes, and where it goes. So what
    a knob reads after a module came or went, and did not read before, nobody else has set. Where it
    read somebody else's value before, it gets that again.
    """
    before = read_knobs(left, root) if setting[0] == "module" else {}
    note = set_back_one(setting, undo, root, held)
    knobs = KINDS["knob"]
    for knob, value in read_knobs(before, root).items():
        found, ours = before[knob], left[knob]
        if value == found:
            continue
        if any(knobs.same(found, x) for x in (ours.old, *ours.written)):
            ours.written.add(value)
        else:
            with contextlib.suppress(OSError):  # then it is told what the knob is now
                knobs.write(root, knob[1], found, held)
    return note


def read_knobs(settings: Iterable[Setting], root: Path) -> dict[Setting, Value]:
    """Return the values of the knobs among ``settings`` that are there."""
    found: dict[Setting, Value] = {}
    for kind, name in settings:
        if kind == "knob":
            with contextlib.suppress(OSError):
                found[kind, name] = read_knob(root, name)
    return found


def _gone(name: str, undo: Undo, root: Path) -> str:
    """Return what to say of a knob that is not there.

    A CPU that comes back may have its states as they were when it went (POWER).
    """
    cpu = re.match(rf"{re.escape(str(root / CPUS))}/cpu(\d+)/", name)
    if cpu and _is_offline(root, cpu[1]):
        return f"CPU {cpu[1]} is offline; when it is back, see whether {name} is {undo.old}"
    return f"{name} is gone: nothing to set back"


def offline(root: Path, name: str) -> str | None:
    """Return the number of an offline CPU whose file of cpufreq this is, None for any other file.

    The kernel keeps such a file, and answers EBUSY.
    """
    cpus = re.escape(str(root / CPUS))
    found = re.match(rf"{cpus}/(?:cpu(\d+)/cpufreq|cpufreq/policy(\d+))/", name)
    cpu = found[1] or found[2] if found else None
    return cpu if cpu and _is_offline(root, cpu) else None


def _is_offline(root: Path, cpu: str) -> bool:
    """Return whether a CPU is offline; one that cannot go offline has no such file."""
    try:
        return read_knob(root, str(root / CPUS / f"cpu{cpu}/online")) == "0"
    except OSError:
        return False


def said(setting: Setting, value: Value) -> str:
    """Return in words what is to be done to a setting."""
    kind, name = setting
    if kind == "knob":
        return f"set {name} to {value}"
    there, gone = ("load module", "unload module") if kind == "module" else ("write", "remove")
    return f"{gone if value is None else there} {name}"


def set_back_one(setting: Setting, undo: Undo, root: Path, held: Held = ()) -> str | None:
    """Set one setting back; return why it was left alone. Raises OSError."""
    kind, name = KINDS[setting[0]], setting[1]
    value = kind.read(root, name)
    if kind.same(value, undo.old):
        # Who was killed in the middle of write_knob() may have written to this knob only.
        if _is_governor(name) and "haltpoll" in undo.written and value != "haltpoll":
            _forget_poll_limits(root, Path(name).parents[1])
        return None
    if not any(kind.same(value, written) for written in undo.written):
        return f"{name} was {changed(setting, value)} by somebody else meanwhile: left so"
    kind.write(root, name, undo.old, held)
    if not kind.same(kind.read(root, name), undo.old):
        raise OSError(errno.EIO, "it does not take the value")
    return None


def changed(setting: Setting, value: Value) -> str:
    """Return in words what became of a setting that now has this value."""
    match setting[0]:
        case "knob":
            return f"set to {value}"
        case "module":
            return "unloaded" if value is None else "loaded"
    return "removed" if value is None else "changed"


def main(journal: Path, root: Path) -> None:
    """Wait for the owner's end, set back, and tell those who still listen."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), READY)
    while os.read(sys.stdin.fileno(), 1):
        pass
    notes: list[str] = []
    refused: list[str] = []
    try:
        if journal.exists():  # else what was changed is kept
            notes, refused = end(journal, root)
    except (OSError, ValueError) as error:
        refused = [f"cannot use {journal}: {error}"]
    with contextlib.suppress(OSError):  # nobody left to tell
        os.write(sys.stdout.fileno(), json.dumps([notes, refused]).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

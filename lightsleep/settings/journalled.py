# SPDX-License-Identifier: GPL-2.0-only
"""Changing settings in a session: at its end, however the process ends, all are set back.

A second process, the restorer (restorer.py), sets them back, after SIGKILL too. It works from a
journal, in which each change is noted here before it is made. There is one session at a time: its
owner and the restorer hold a lock (lock.py) until everything is set back. If even the restorer was
killed, the next session finds the journal and sets back first.

The owner of a session may also keep what it changed (``lightsleep enable``). The journal then
becomes the record of what is kept, from which ``lightsleep disable`` sets back by the same rules.
"""

import contextlib
import errno
import getpass
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from lightsleep.errors import LightsleepError
from lightsleep.scan import loading
from lightsleep.settings import restorer
from lightsleep.settings.lock import holder, locked, opened
from lightsleep.settings.restorer import KINDS, Setting, Undo, Value
from lightsleep.settings.restorer_process import RestorerProcess

RUN_DIR = "run/lightsleep"

INSTALL_FAILED = "Error running install command"
"""What modprobe says where a line 'install' of modprobe.d has it run a command, and that fails."""


class KnobGone(LightsleepError):
    """A knob is not there: its CPU goes offline, or its driver was unloaded."""


class ChangedMeanwhile(LightsleepError):
    """Somebody else changed a setting during the session; it is left as it is."""


@dataclass(frozen=True)
class Kept:
    """What a session kept: whose it was, when, under which name, and how to undo its changes.

    ``line`` is the first one of the record, with what is in ``header``.
    """

    header: dict[str, Any]
    undos: dict[Setting, Undo]
    line: str


@dataclass(frozen=True)
class _SideEffect:
    """A kept knob got another value while a module came, or went."""

    module: str
    came: bool
    knob: Setting
    before: Value
    after: Value


class Session:
    """The settings that a process has changed. For one thread at a time."""

    def __init__(
        self, run_dir: Path, journal: IO[bytes], process: RestorerProcess, root: Path
    ) -> None:
        """Note changes in ``journal``, whose first line is written; ``process`` sets them back."""
        self.notes: list[str] = []
        self.refused: list[str] = []
        self._run_dir = run_dir
        self._journal = journal
        self._header_size = os.fstat(journal.fileno()).st_size
        self._restorer = process
        self._root = root
        self._last: dict[Setting, Value] = {}
        # A setting may change a thousand times: the journal has each value once.
        self._noted: set[tuple[Setting, Value]] = set()
        self._side_effects: list[_SideEffect] = []

    def set(self, knob: Path, value: str) -> bool:
        """Set a knob until the end of the session; does nothing if it has that value.

        Returns whether it was changed. Raises KnobGone where there is no such knob,
        ChangedMeanwhile where somebody else has set it since this process did, LightsleepError
        where it cannot be read or written or does not take the value, and ValueError for a path
        outside sysfs.
        """
        return self._change(("knob", str(knob)), value)

    def load(self, module: str, argv: list[str], sets: tuple[Path, str] | None = None) -> bool:
        """Load a module by ``argv``, modprobe or insmod, until the end of the session.

        ``sets`` is a knob that loading it sets, and the value. Returns whether it was loaded now.
        """
        if sets:
            self._expect(("knob", str(sets[0])), sets[1])
        return self._change_module(module, shlex.join(argv))

    def unload(self, module: str, reload: list[str], sets: tuple[Path, str] | None = None) -> bool:
        """Unload a module; ``reload`` is the command that loads it at the end of the session.

        ``sets`` is a knob that loading it sets, and the value: it is set back after that. Returns
        whether it was unloaded now.
        """
        if sets:
            self._expect(("knob", str(sets[0])), sets[1])
        return self._change_module(module, None, old=shlex.join(reload))

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return bool(self._last)

    def write(self, file: Path, text: str | None) -> None:
        """Write one of restorer.FILES, or remove it; it is as before at the end of the session."""
        self._change(("file", str(file)), text)

    def check(self) -> None:
        """Raise ChangedMeanwhile where something that was changed no longer has its value.

        A module that was loaded has to have the parameters that it was loaded with.

        restore() cannot tell when somebody else has set it back already. What is gone is not told
        here: restore() does.
        """
        undos = self._undos()
        for setting in undos.keys() & self._last.keys():
            with contextlib.suppress(OSError):
                self._check_ours(setting, KINDS[setting[0]].read(self._root, setting[1]))
            if setting[0] == "module":
                self._check_parameters(setting[1], self._last[setting])

    def restore(self) -> list[str]:
        """Set everything back now, and go on; return what is worth telling.

        The journal forgets what is set back, so that a value which this process wrote earlier, and
        somebody else writes later, is not taken for this process's own. Killed before that, the
        restorer finds every setting as it was, and writes nothing.

        Raises LightsleepError where something refuses.
        """
        undos = self._undos()
        notes, refused = restorer.set_back(undos, self._root, self._restorer.held)
        if refused:
            raise LightsleepError("; ".join(refused))
        for setting, undo in undos.items():
            self._last[setting] = undo.old
        if not notes and any(kind == "module" and undo.old for (kind, _), undo in undos.items()):
            # A driver that is back may have brought its governor along, after that was set back.
            self._forget_knobs()
        if undos and not notes:
            self._noted.clear()
            self._journal.truncate(self._header_size)
            os.fsync(self._journal.fileno())
        return notes

    def _forget_knobs(self) -> None:
        self._last = {key: value for key, value in self._last.items() if key[0] != "knob"}

    def keep(self) -> None:
        """Keep what was changed: it outlives this process, and Alone.undo() sets it back.

        Killed in the middle, either all is kept or nothing: that turns where ``kept`` is replaced.
        Raises LightsleepError where that fails.
        """
        try:
            self._replace_kept()
        except OSError as error:
            raise LightsleepError(
                f"cannot keep the record in {self._run_dir}: {_why(error)}; so nothing is enabled "
                "by this command"
            ) from error
        (self._run_dir / "journal").unlink()

    def _replace_kept(self) -> None:
        journal, kept = self._run_dir / "journal", self._run_dir / restorer.KEPT
        header = journal.read_text().partition("\n")[0]
        undos = restorer.read(kept, self._root)[1] if kept.exists() else {}
        for change in self._side_effects:
            _follow(undos, change)
        for setting, undo in self._undos().items():
            earlier = undos.get(setting)
            if earlier is None or _was_set_by_others(setting, undo.old, earlier):
                earlier = Undo(undo.old)
            # A value of the meantime that comes back later is somebody else's.
            last = (
                {self._last[setting]} if setting in self._last else undo.written | earlier.written
            )
            undos[setting] = Undo(earlier.old, last)
        _soon(self._run_dir, header, undos).replace(kept)

    def _undos(self) -> dict[Setting, Undo]:
        """Return how to undo what is changed now, from the journal. Raises LightsleepError."""
        journal = self._run_dir / "journal"
        try:
            return restorer.read(journal, self._root)[1]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            names = ", ".join(name for _, name in self._last)
            to_do = f"set back by hand what of these is not as before: {names}"
            raise LightsleepError(
                f"somebody else removed or changed the journal {journal} ({why}): "
                f"{to_do if names else 'nothing was changed'}"
            ) from error

    def _expect(self, setting: Setting, value: Value) -> None:
        """Note that a setting will get this value by the way, and others before."""
        if refusal := KINDS[setting[0]].refuse(self._root, setting[1]):
            raise ValueError(refusal)
        try:
            now = KINDS[setting[0]].read(self._root, setting[1])
            self._check_ours(setting, now)
            self._last.pop(setting, None)
            self._note(setting, now, value)
        except OSError as error:
            raise LightsleepError(f"cannot keep {setting[1]}: {error.strerror}") from error

    def _change_module(self, module: str, value: Value, old: Value = None) -> bool:
        """Change a module as _change() does; see what the kernel does to kept knobs meanwhile."""
        kept: dict[Setting, Undo] = {}
        with contextlib.suppress(OSError, ValueError):  # who keeps something is told of damage
            kept = restorer.read(self._run_dir / restorer.KEPT, self._root)[1]
        before = restorer.read_knobs(kept, self._root)
        changed = self._change(("module", module), value, old)
        self._side_effects += [
            _SideEffect(module, value is not None, knob, before[knob], now)
            for knob, now in restorer.read_knobs(before, self._root).items()
            if now != before[knob]
        ]
        return changed

    def _change(self, setting: Setting, value: Value, old: Value = None) -> bool:
        """Change a setting; return whether it was another one before.

        ``old`` stands for what it is, where reading does not tell all.
        """
        if refusal := KINDS[setting[0]].refuse(self._root, setting[1]):
            raise ValueError(refusal)
        what = restorer.said(setting, value)
        if self._restorer.killed():
            raise LightsleepError(
                f"cannot {what}: the process that would set it back was killed; start again"
            )
        kind = KINDS[setting[0]]
        try:
            now = kind.read(self._root, setting[1])
            self._check_ours(setting, now)
            if kind.same(now, value):
                return False
            before = now if old is None else old
            self._note(setting, before, value)
            kind.write(self._root, setting[1], value, self._restorer.held)
            found = kind.read(self._root, setting[1])
            if not kind.same(found, value) and not kind.same(found, now):
                # Neither ours nor the old value: the restorer would leave it alone.
                self._note(setting, before, found)
                kind.write(self._root, setting[1], before, self._restorer.held)
        except OSError as error:
            # ENODEV: it went while it was open.
            gone = error.errno in (errno.ENOENT, errno.ENODEV)
            error_class = KnobGone if gone else LightsleepError
            why = str(error.strerror)
            if INSTALL_FAILED in why:
                why += f"; {_where_replaced(setting[1])}"
            raise error_class(f"cannot {what}: {why}") from error
        if not kind.same(found, value):
            raise LightsleepError(f"cannot {what}: {_instead(setting, found)}")
        self._last[setting] = value
        return True

    def _note(self, setting: Setting, old: Value, new: Value) -> None:
        """Note a change in the journal, before it is made. Raises OSError."""
        if (setting, new) not in self._noted:
            _append(self._journal, {setting[0]: setting[1], "old": old, "new": new})
            self._noted.add((setting, new))

    def _check_ours(self, setting: Setting, now: Value) -> None:
        if setting in self._last and not KINDS[setting[0]].same(now, self._last[setting]):
            raise ChangedMeanwhile(
                f"{setting[1]} was {restorer.changed(setting, now)} by somebody else meanwhile: "
                "left so; find out who changes it, and start again"
            )

    def _check_parameters(self, module: str, command: Value) -> None:
        """Raise ChangedMeanwhile where a module has another parameter than its command gave it.

        Nobody sets it back: it goes with the module.
        """
        folder = self._root / "sys/module" / module / "parameters"
        for word in shlex.split(command or "")[2:]:
            name, _, given = word.partition("=")
            knob = ("knob", str(folder / name))
            if knob in self._last:
                continue
            with contextlib.suppress(OSError):  # not every parameter has a file
                now = KINDS["knob"].read(self._root, knob[1])
                if not KINDS["knob"].same(now, given):
                    raise ChangedMeanwhile(
                        f"{knob[1]} was {restorer.changed(knob, now)} by somebody else meanwhile: "
                        "find out who changes it, and start again"
                    )


def _follow(undos: dict[Setting, Undo], change: _SideEffect) -> None:
    """Take what the kernel did to a kept knob for a change of our own.

    It chooses a governor where the driver haltpoll comes, and where it goes. Where an earlier
    command unloaded a driver, and a later one kept a knob, the driver brings back what was there at
    first: that knob has nothing to set back any more.
    """
    undo = undos.get(change.knob)
    if undo is None:
        return
    module, order = ("module", change.module), list(undos)
    came_back = change.came and module in undos and undos[module].old is not None
    if _was_set_by_others(change.knob, change.before, undo):
        undos[change.knob] = Undo(change.before, {change.after})
    elif came_back and order.index(module) < order.index(change.knob):
        del undos[change.knob]
    else:
        undo.written.add(change.after)


def _was_set_by_others(setting: Setting, found: Value, earlier: Undo) -> bool:
    """Return whether somebody else has set a knob since an ``earlier`` command kept it.

    What is ``found`` then is to come back. What becomes of modules and files, disable decides.
    """
    same = KINDS[setting[0]].same
    return setting[0] == "knob" and not any(same(found, x) for x in (earlier.old, *earlier.written))


def _instead(setting: Setting, found: Value) -> str:
    """Return what became of a setting that does not have its new value, and what to do."""
    if setting[0] == "module" and found is None:
        return f"modprobe succeeded, but the module is not loaded; {_where_replaced(setting[1])}"
    return f"it reads {found} afterwards"


def _where_replaced(module: str) -> str:
    """Return where to look for what modprobe runs in place of loading a module."""
    return f"look for it in 'install' lines of modprobe.d: modprobe --showconfig | grep {module}"


@contextlib.contextmanager
def session(root: Path = Path("/"), verb: str = "measure", **about: str) -> Iterator[Session]:
    """Change settings of the machine at ``root`` until context or process ends; then all go back.

    ``verb`` is told to whoever wants a session meanwhile; it and ``about`` stand in the record of
    what is kept. ``notes`` of the session say, from the start, what an earlier one had left behind,
    and after the context, what there is to tell of setting back. ``refused`` is then the part of
    it that could not be set back. A LightsleepError that ends the context tells that as well.

    Raises LightsleepError in a container or a chroot, where another process has a session, where
    an earlier one's journal cannot be trusted or its settings not set back, and where the journal
    cannot be kept.
    """
    root = root.absolute()
    _check_place(root, verb)
    run_dir = root / RUN_DIR
    journal = run_dir / "journal"
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(run_dir, verb))
            notes = _recover(journal, root)
            # O_APPEND: after the journal was truncated, the next line goes to its new end.
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND
            file = stack.enter_context(opened(journal, flags))
            unused = stack.enter_context(contextlib.ExitStack())
            unused.callback(journal.unlink, missing_ok=True)
            header = {"boot_id": restorer.boot_id(), "verb": verb, "pid": str(os.getpid())}
            _append(file, {**header, **_origin(), **about})
            restorer.sync_folder(run_dir)
        except OSError as error:
            raise LightsleepError(f"cannot keep a journal in {run_dir}: {_why(error)}") from error
        process = RestorerProcess(journal, root, lock)
        here = Session(run_dir, file, process, root)
        unused.pop_all()
        here.notes += notes
        try:
            yield here
        except LightsleepError as error:
            # Nobody looks at the notes now.
            notes, refused = process.end()
            for note in [*here.notes, *notes, *refused]:
                error.add_note(note)
            raise
        except BaseException:
            notes, refused = process.end()
            for note in [*notes, *refused]:
                click.echo(note, err=True)
            raise
        else:
            notes, here.refused = process.end()
            here.notes += [*notes, *here.refused]


def _check_place(root: Path, verb: str) -> None:
    """Raise LightsleepError where settings would be those of a machine that this is a part of.

    Who builds an image runs enable there, and no other ``verb``.
    """
    if kind := loading.kind_of_container(root):
        system = "an image that is built here"
        why = (
            f"this is a container ({kind}): where it ends, nothing sets back what was changed, and "
            "the record of it is lost; run lightsleep on the host of the container"
        )
    elif loading.has_another_root(root):
        system = "the system in the chroot"
        why = (
            "this is a chroot: the kernel and /sys are those of the machine around it, and the "
            "files are not. To change that machine, run lightsleep outside of the chroot"
        )
    else:
        return
    if verb == "enable":
        later = "lightsleep enable --persist --later"
        why += f". To have {system} load the driver when it boots: {later}"
    raise LightsleepError(why)


def kept(root: Path = Path("/")) -> Kept | None:
    """Return what is kept, None where nothing is. Raises LightsleepError."""
    file = root / RUN_DIR / restorer.KEPT
    try:
        header, undos = restorer.read(file, root)
        line = file.read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
    return Kept(header, undos, line) if header else None


def unfinished(root: Path) -> str | None:
    """Return what to say of a session that has not ended, None where there is none.

    It runs, or it was killed together with the process that would have set its changes back, or
    something refused. A journal without changes is left of one that was killed before the first.
    """
    run_dir = root / RUN_DIR
    journal = run_dir / "journal"
    if not journal.exists():
        return None
    try:
        if process := holder(run_dir):
            return f"{process} is changing settings right now"
    except PermissionError:
        return (
            "a command is changing settings right now, or has not set back what it changed: sudo "
            "lightsleep status says which of the two"
        )
    with contextlib.suppress(OSError, ValueError):
        if not restorer.read(journal, root)[1]:
            return None
    return (
        "an earlier command has not set back what it changed: sudo lightsleep disable sets back "
        "what it can, and says what refuses; so does the next command that changes settings"
    )


def _why(error: OSError) -> str:
    denied = error.errno in (errno.EACCES, errno.EPERM)
    return f"{error.strerror}; are you root?" if denied else str(error.strerror)


def _damaged(record: Path, error: Exception) -> LightsleepError:
    if isinstance(error, PermissionError):
        return LightsleepError(
            f"cannot read the record of what was enabled, {record}: only root may; use sudo"
        )
    return LightsleepError(
        f"cannot use the record of what was enabled, {record}: {error}; set back by hand what it "
        "names, and remove it"
    )


class Alone:
    """Nobody else changes settings meanwhile. ``notes`` tell what an earlier session had left."""

    def __init__(self, root: Path, lock: IO[bytes], notes: list[str]) -> None:
        """Be the one who holds the lock."""
        self.notes = notes
        self._root = root
        self._lock = lock

    def undo(
        self, undos: dict[Setting, Undo], kept: Kept | None, forget: bool = True
    ) -> tuple[list[str], list[str]]:
        """Undo changes, ``kept`` ones included; return what is worth telling, and what refused.

        The record of what is kept is then removed, unless something refused; it stays without
        ``forget``. Killed in the middle, either nothing is undone, or the restorer undoes it all:
        the removal of the record decides which. Raises LightsleepError.
        """
        run_dir = self._root / RUN_DIR
        journal, record = run_dir / "journal", run_dir / restorer.KEPT
        try:
            # Equal first lines: until the record is removed, it counts, and not the journal.
            header = kept.line if kept else json.dumps({"boot_id": restorer.boot_id()})
            soon = _soon(run_dir, header, undos)
            process = RestorerProcess(journal, self._root, self._lock)
            try:
                soon.replace(journal)
                if forget:
                    record.unlink(missing_ok=True)
            finally:
                notes, refused = process.end()
            if refused and journal.exists():
                journal.replace(record) if kept else journal.unlink()
        except OSError as error:
            raise LightsleepError(f"cannot keep a journal in {run_dir}: {_why(error)}") from error
        return notes, refused


@contextlib.contextmanager
def exclusive(root: Path, verb: str) -> Iterator[Alone]:
    """Keep sessions away. Raises LightsleepError as session() does."""
    root = root.absolute()
    run_dir = root / RUN_DIR
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(run_dir, verb))
            notes = _recover(run_dir / "journal", root)
        except OSError as error:
            raise LightsleepError(f"cannot use {run_dir}: {_why(error)}") from error
        yield Alone(root, lock, notes)


def set_back_left(root: Path, verb: str) -> list[str]:
    """Set back what an earlier command had left changed; return what is worth telling.

    For commands that plan by how the machine is, before they look. Raises LightsleepError as
    session() does.
    """
    _check_place(root, verb)
    if not (root / RUN_DIR / "journal").exists():
        return []
    with exclusive(root, verb) as alone:
        return alone.notes


def _origin() -> dict[str, str]:
    """Return who asks, behind sudo too, and when."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return {"user": user, "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _soon(run_dir: Path, header: str, undos: dict[Setting, Undo]) -> Path:
    """Write a record that is to take another one's place; return where it is. Raises OSError."""
    changes = [
        json.dumps({kind: name, "old": undo.old, "new": new})
        for (kind, name), undo in undos.items()
        for new in sorted(undo.written, key=lambda x: (x is not None, x or ""))
    ]
    scratch = run_dir / restorer.KEPT_SOON
    scratch.write_text("".join(f"{line}\n" for line in [header, *changes]))
    scratch.chmod(0o644)  # status reads it without being root
    return scratch


def _append(journal: IO[bytes], entry: dict[str, Value]) -> None:
    """Append a line, all of it or nothing: half a line would spoil the next one. Raises OSError."""
    size = os.fstat(journal.fileno()).st_size
    rest = memoryview(f"{json.dumps(entry)}\n".encode())
    try:
        while rest:
            rest = rest[journal.write(rest) :]
        os.fsync(journal.fileno())
    except OSError:
        journal.truncate(size)
        raise


def _recover(journal: Path, root: Path) -> list[str]:
    """Set back what an earlier process left changed; return what is worth telling."""
    if not journal.exists():
        return []
    try:
        header, undos = restorer.read(journal, root)
        undos = {} if restorer.is_kept(journal) else undos
        notes, refused = restorer.end(journal, root)
    except ValueError as error:
        raise LightsleepError(
            f"cannot read the journal of an earlier command, {journal}: {error}; restore by hand "
            "the settings that it names (mostly the disable files of idle states), then remove it"
        ) from error
    earlier = f"an earlier lightsleep {header.get('verb', 'command')} left settings changed"
    if refused:
        raise LightsleepError(
            f"{earlier}: {'; '.join(refused)}; try again when nothing is in the way, or set it "
            f"back by hand and remove {journal}"
        )
    if undos:
        notes.insert(0, f"{earlier}: they are set back now")
    return notes

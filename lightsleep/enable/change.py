# SPDX-License-Identifier: GPL-2.0-only
"""Keeps a setting, until the next boot or across boots, and takes it away to the last file.

What is kept until the next boot stands in the record of lightsleep/settings/journalled.py. A
setting that comes back at each boot is two files. modules-load.d loads the module; modprobe.d,
where needed, has its parameters. They are the smallest thing that does it: no unit, no script,
nothing that runs.

An enable that is killed leaves nothing: the restorer undoes it. If the machine dies in the middle,
the journal is gone with /run. So the file of modules-load.d is written last and removed first. Only
with it has the other an effect. ``disable`` removes either by itself.

Each file says in its first line who wrote it. One without that line belongs to somebody else, as
does a link, wherever it leads. It is neither overwritten nor removed.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lightsleep.enable import boot
from lightsleep.errors import LightsleepError, Skipped, WrongUsage
from lightsleep.scan.collect import collect
from lightsleep.scan.loading import MODULE, has_another_root
from lightsleep.settings import journalled, restorer
from lightsleep.settings.apply import applied
from lightsleep.settings.catalogue import (
    DEFAULTS,
    GOVERNOR,
    ONLY_LIGHTSLEEP,
    Change,
    Hold,
    Knob,
    Load,
    Unload,
    plan,
    plan_elsewhere,
)
from lightsleep.settings.restorer import Setting, Undo, Value
from lightsleep.sources import DKMS_INSTALL

HEADER = "# Written by lightsleep enable. Remove it with: lightsleep disable"
OPTIONS_FILE = "etc/modprobe.d/lightsleep.conf"
LOAD_FILE = "etc/modules-load.d/lightsleep.conf"
IN_FORCE = ("in_force", "in_force_by", "in_force_since")
"""In the record of an enable that only the next boot makes true: what is kept until then."""
assert set(restorer.FILES) == {OPTIONS_FILE, LOAD_FILE}


@dataclass(frozen=True)
class Changes:
    """What was changed, a sentence each, and what is worth knowing besides."""

    changed: list[str]
    notes: list[str]


class Unfinished(LightsleepError):
    """disable failed; ``done`` is what it had changed by then."""

    def __init__(self, error: LightsleepError, done: Changes) -> None:
        """Say what ``error`` says, and then what was done: nobody will hear of it again."""
        super().__init__(error.message)
        self.done = done
        for line in [*getattr(error, "__notes__", []), *done.changed, *done.notes]:
            self.add_note(line)


def persistent_files(changes: Sequence[Change]) -> dict[str, str | None]:
    """Return what makes the changes last across boots, by file, in the order of writing.

    None stands for a file that must not be there. Raises LightsleepError where there is no such
    file.
    """
    words: list[str] = []
    prefix = f"sys/module/{MODULE}/parameters/"
    for change in changes:
        match change:
            case Load(module, argv, _) if module == MODULE:
                words += [word for word in argv[2:] if "=" in word]
            case Knob(path, value) if path.startswith(prefix):
                words.append(f"{path.removeprefix(prefix)}={value}")
            case Unload(module):
                raise _in_the_way_at_boot(module)
            case _:
                raise WrongUsage(ONLY_LIGHTSLEEP)
    defaults = [f"{name}={value}" for name, value in DEFAULTS.items()]
    words = [word for word in words if word not in defaults]
    options = f"{HEADER}\noptions {MODULE} {' '.join(words)}\n" if words else None
    return {OPTIONS_FILE: options, LOAD_FILE: f"{HEADER}\n{MODULE}\n"}


def _at_boot(changes: Sequence[Change], root: Path) -> list[Change]:
    """Return the changes that a boot has to make, where blacklisted modules are not loaded.

    The governor that is set once such a module is gone is the one that a boot chooses without it.
    """
    made: list[Change] = []
    before: Change | None = None
    for change in changes:
        goes = isinstance(change, Unload) and bool(boot.kept_away_by(root, change.module))
        stays = isinstance(change, Knob) and change.path == GOVERNOR and isinstance(before, Unload)
        if not goes and not stays:
            made.append(change)
        before = change
    return made


def _in_the_way_at_boot(module: str) -> LightsleepError:
    return LightsleepError(
        f"--persist: no file unloads {module} at boot. First keep it from being loaded: write the "
        f"line 'blacklist {module}' to a file such as /etc/modprobe.d/no-{module}.conf, and "
        "repeat this command. Or leave out --persist"
    )


def _built_in(options: str | None) -> WrongUsage:
    """Return the error for a driver that is part of the kernel; ``options`` is OPTIONS_FILE's."""
    words = (options or "").removeprefix(HEADER).split()[2:]
    to_do = f"add {' '.join(f'{MODULE}.{x}' for x in words)} to it, and reboot. " if words else ""
    return WrongUsage(
        f"--persist: {MODULE} is built into this kernel, so it is there at every boot. A boot "
        f"finds its parameters on the kernel command line only: {to_do or 'none is needed here. '}"
        "For this boot, leave out --persist"
    )


def content_of(root: Path, name: str) -> str | None:
    """Return what one of restorer.FILES holds, None without it. Raises LightsleepError."""
    try:
        return restorer.read_file(root, str(root / name))
    except OSError as error:
        raise LightsleepError(f"cannot read /{name}: {error.strerror}") from error


def is_ours(text: str | None) -> bool:
    """Return whether a file says that we wrote it."""
    return text is not None and text.startswith(HEADER)


def _lost(name: str, there: str | None) -> list[str]:
    """Return what to say of lines that somebody added to a file of ours, which is gone now."""
    added = [
        line
        for line in (there or "").splitlines()
        if line.strip()
        and line not in (HEADER, MODULE)
        and not line.startswith(f"options {MODULE}")
    ]
    if not added:
        return []
    return [f"/{name} held lines that lightsleep did not write; they are gone: {'; '.join(added)}"]


def check_lasts(text: str, changes: Sequence[Change]) -> None:
    """Raise WrongUsage where the setting ``text`` ends with the process that makes its changes."""
    if any(isinstance(change, Hold) for change in changes):
        raise WrongUsage(
            f"{text} cannot be enabled: the kernel drops a latency limit when the process that "
            "holds it ends; a service can hold one (tuned: force_latency)"
        )


def enable(
    text: str, root: Path, *, now: bool, persist: bool, module_file: Path | None = None
) -> Changes:
    """Keep the setting ``text``: from ``now`` on, at each boot if ``persist``.

    Raises LightsleepError where it cannot be kept, Skipped where it is kept already.
    """
    if has_another_root(root) and persist and not now:
        return _enable_elsewhere(text, root)
    # What a killed command left is not how the machine is.
    left = journalled.set_back_left(root, "enable")
    try:
        done = _enable(text, root, now, persist, module_file)
    except LightsleepError as error:
        for note in left:
            error.add_note(note)
        raise
    return Changes(done.changed, left + done.notes)


def _enable(text: str, root: Path, now: bool, persist: bool, module_file: Path | None) -> Changes:
    scan, _ = collect(root)
    changes = plan(text, scan, root, module_file)
    check_lasts(text, changes)
    if not changes:
        raise WrongUsage(f"{text} changes nothing: there is nothing to enable")
    files = persistent_files(_at_boot(changes, root)) if persist else {}
    if persist and scan.loading.built_in:
        raise _built_in(files[OPTIONS_FILE])
    if persist and not scan.loading.installed:
        raise LightsleepError(
            f"{MODULE} is not installed for kernel {scan.kernel.release}, so no boot would find "
            f"it: install the package lightsleep-dkms, or {DKMS_INSTALL}"
        )
    if persist:
        _check_boot_loads(root)
    _check_files(root, files)
    # What cannot be read could not be kept, either.
    kept = journalled.kept(root)
    unloaded = sorted(_unloaded(kept) - {MODULE})
    if persist and (loaded := [x for x in unloaded if not boot.kept_away_by(root, x)]):
        raise _in_the_way_at_boot(loaded[0])
    changes = _brought_back(changes, kept)
    changed = []
    in_force = _in_force(kept)
    about = {"setting": text, "later": "yes", **in_force}
    if now:
        about = {"setting": together(in_force.get("in_force"), text)}
    lacking = _without_module(root) if persist else []
    with journalled.session(root, "enable", **about) as session:
        notes = list(session.notes)
        if now:
            with applied(changes, session, root) as made:
                changed += [_said(change) for change in made]
        written = _write(files, root, session.write)
        if not session.changed:
            raise _enabled_already(text, lacking)
        session.keep()
    return Changes(changed + written.changed, notes + written.notes + lacking)


def _enable_elsewhere(text: str, root: Path) -> Changes:
    """Keep the setting for the boots of a system that a chroot is in: only its files are touched.

    It may boot on another machine, with kernels that it does not have yet. So nothing is refused
    because of what runs now.
    """
    files = persistent_files(plan_elsewhere(text))
    _check_boot_loads(root)
    _check_files(root, files)
    before = {name: content_of(root, name) for name in files}
    try:
        written = _write(files, root, partial(_write_elsewhere, root))
    except BaseException as error:
        try:
            _write(before, root, partial(_write_elsewhere, root))
        except LightsleepError as worse:
            error.add_note(f"what was written before that could not be taken back: {worse.message}")
        raise
    lacking = _without_module(root)
    if not written.changed:
        raise _enabled_already(text, lacking)
    return Changes(written.changed, written.notes + lacking)


def _write(
    files: dict[str, str | None], root: Path, write: Callable[[Path, str | None], None]
) -> Changes:
    """Write or remove those of restorer.FILES that are not as wanted."""
    done = Changes([], [])
    for name, content in files.items():
        if content != (there := content_of(root, name)):
            write(root / name, content)
            done.notes.extend(_lost(name, there))
            done.changed.append(f"{'wrote' if content else 'removed'} /{name}")
    return done


def _write_elsewhere(root: Path, file: Path, content: str | None) -> None:
    try:
        restorer.write_file(root, str(file), content)
    except OSError as error:
        raise LightsleepError(f"cannot write {file}: {error.strerror}") from error


def _enabled_already(text: str, notes: Sequence[str]) -> Skipped:
    nothing = Skipped(f"{text} is enabled already: nothing to do")
    for note in notes:
        nothing.add_note(note)
    return nothing


def _without_module(root: Path) -> list[str]:
    lacking = boot.kernels_without_module(root)
    return [without_module(lacking)] if lacking else []


def without_module(releases: Sequence[str]) -> str:
    """Return what to say of kernels that would boot without our module."""
    return f"a boot of {', '.join(releases)} does not load {MODULE}: it is not installed there"


EXCLUDED = {"lightsleep": ("haltpoll",), "haltpoll": ("lightsleep", "governor")}
"""By the name of a part, what no longer holds with it: haltpoll brings its own governor."""


def together(earlier: str | None, text: str) -> str:
    """Return what holds where ``text`` is enabled after ``earlier``, as one setting.

    The driver stands first: without it, other parts may be refused.
    """
    parts: dict[str, str] = {}
    for part in [*(earlier.split("+") if earlier else []), *text.split("+")]:
        name, _, value = part.partition(":")
        own = f"sysfs:{value.partition('=')[0]}" if name == "sysfs" else name
        for key in (own, *EXCLUDED.get(name, ())):
            parts.pop(key, None)
        parts[own] = part
    return "+".join(sorted(parts.values(), key=lambda x: x.partition(":")[0] not in EXCLUDED))


def _in_force(kept: journalled.Kept | None) -> dict[str, str]:
    """Return which setting an earlier enable keeps, by whom and since when; nothing without one."""
    header = kept.header if kept else {}
    if header.get("later"):
        return {name: header[name] for name in IN_FORCE if name in header}
    there = zip(IN_FORCE, ("setting", "user", "since"), strict=True)
    return {name: header[key] for name, key in there if key in header}


def _brought_back(changes: list[Change], kept: journalled.Kept | None) -> list[Change]:
    """Return the changes without what a driver sets that an earlier enable had unloaded.

    To bring it back undoes a change of that enable. The governor that it brings along is the one
    that was there at first; what the journal would note now is the one of the meantime.
    """
    unloaded = _unloaded(kept)
    return [
        replace(x, sets=None) if isinstance(x, Load) and x.module in unloaded else x
        for x in changes
    ]


def _unloaded(kept: journalled.Kept | None) -> set[str]:
    """Return the modules that were loaded before what is kept."""
    undos = kept.undos.items() if kept else ()
    return {name for (kind, name), undo in undos if kind == "module" and undo.old}


def _check_files(root: Path, files: dict[str, str | None]) -> None:
    for name in files:
        there = content_of(root, name)
        if (root / name).is_symlink() or (there is not None and not is_ours(there)):
            raise LightsleepError(
                f"/{name} is there and was not written by lightsleep: move it away first"
            )


def _check_boot_loads(root: Path) -> None:
    if where := boot.kept_away_by(root, MODULE):
        raise LightsleepError(
            f"--persist: {boot.blacklist(where[0])} keeps a boot from loading {MODULE}. Remove it "
            "there, and repeat this command. Or leave out --persist"
        )


def _said(change: Change) -> str:
    match change:
        case Load(_, argv, _):
            return f"loaded the module: {' '.join(argv)}"
        case Unload(module):
            return f"unloaded the module {module}"
        case Knob(path, value):
            return f"set /{path} to {value}"
    raise AssertionError(change)


def disable(root: Path) -> Changes:
    """Undo what was enabled, remove our files, and unload the module.

    In a chroot, only the files go: what is loaded and set is of the machine around it. Raises
    LightsleepError where something refuses or is not ours, Skipped where nothing is there.
    """
    changed: list[str] = []
    notes: list[str] = []
    others: list[str] = []
    try:
        if has_another_root(root):
            _disable_elsewhere(root, changed, notes)
        else:
            with journalled.exclusive(root, "disable") as alone:
                notes += alone.notes
                # Whatever refuses, the next boot is to find the machine as it was.
                if refused := _undo(root, alone, changed, notes):
                    raise LightsleepError("\n".join(refused))
        others = _loaded_by_others(root)
        foreign = [name for name in restorer.FILES if os.path.lexists(root / name)]
        if foreign:
            raise LightsleepError(f"/{foreign[0]} was not written by lightsleep: left as it is")
    except LightsleepError as error:
        raise Unfinished(error, Changes(changed, notes)) from error
    # To set back what a killed command had left is something, too.
    if not changed and not notes:
        nothing = Skipped("lightsleep is not enabled on this machine: nothing to do")
        for line in others:
            nothing.add_note(line)
        raise nothing
    return Changes(changed, notes + others)


def _disable_elsewhere(root: Path, changed: list[str], notes: list[str]) -> None:
    """Remove our files, the one without which the other has no effect first."""
    ours, unreadable = _our_files(root)
    done = _write(dict.fromkeys(reversed(ours)), root, partial(_write_elsewhere, root))
    changed += done.changed
    notes += done.notes
    if unreadable:
        raise LightsleepError("\n".join(unreadable))


def _loaded_by_others(root: Path) -> list[str]:
    """Return what to say of files of somebody else that load the driver at boot."""
    return [
        f"/{name} loads {MODULE} at boot, or a module that needs it, and was not written by "
        f"lightsleep: to end that, remove {boot.loaded_by(name)} there"
        for name in boot.read(root).files
        if name != LOAD_FILE
    ]


def _undo(root: Path, alone: journalled.Alone, changed: list[str], notes: list[str]) -> list[str]:
    """Undo all at once, so that it is finished whatever ends this process; return refusals."""
    kept, damaged = _kept(root)
    files, unreadable = _our_files(root)
    unloads, stays = _unloads(root)
    refused = [*damaged, *unreadable, *stays]
    undos = _undos(root, kept, files, unloads)
    if not undos and not (kept or damaged):
        return refused
    before = _values(root, undos)
    left, more = alone.undo(undos, kept, forget=not damaged)
    after = _values(root, undos)
    if kept:
        changed.append(f"undid lightsleep enable {kept.header.get('setting', '')}".rstrip())
    # What somebody else has changed is left, and notes say so.
    changed += [
        _undone(root, setting, after[setting], kept)
        for setting in reversed(undos)
        if setting in after and before.get(setting) != after[setting]
    ]
    for name, text in files.items():
        if after.get(("file", str(root / name)), text) is None:
            notes += _lost(name, text)
    notes += _of_what_is_there(left, undos, after)
    return refused + (_besides_our_module(more) if stays else more)


def _kept(root: Path) -> tuple[journalled.Kept | None, list[str]]:
    """Return what is kept, and why that cannot be read."""
    try:
        return journalled.kept(root), []
    except LightsleepError as error:
        return None, [error.message]


def _undos(
    root: Path,
    kept: journalled.Kept | None,
    files: dict[str, str],
    unloads: dict[Setting, Undo],
) -> dict[Setting, Undo]:
    """Return how to undo what is kept, our ``files`` and ``unloads``; the last is undone first."""
    ours = {("file", str(root / name)): Undo(None, {text}) for name, text in files.items()}
    earlier = kept.undos if kept else {}
    undos = {x: y for x, y in unloads.items() if x not in earlier} | ours
    return undos | {x: unloads.get(x, y) for x, y in earlier.items() if x not in ours}


def _besides_our_module(refused: list[str]) -> list[str]:
    """Return refusals without what rmmod says of our module: that it stays is no news."""
    again = f"cannot {restorer.said(('module', MODULE), None)} again: "
    return [x for x in refused if not x.startswith(again)]


def _of_what_is_there(
    notes: list[str], undos: Iterable[Setting], after: dict[Setting, Value]
) -> list[str]:
    """Return the notes without those of parameters that were left, but went with their module."""
    gone = [name for kind, name in undos if kind == "knob" and (kind, name) not in after]
    void = tuple(f"{name} was " for name in gone)
    return [note for note in notes if not note.startswith(void)]


def _undone(root: Path, setting: Setting, value: Value, kept: journalled.Kept | None) -> str:
    kind, name = setting
    if kind == "file" and value is None:
        return f"removed /{Path(name).relative_to(root)}"
    if kind == "module" and value is None and not (kept and setting in kept.undos):
        return f"unloaded the module {name}"
    return f"{name} {restorer.changed(setting, value)}"


def _our_files(root: Path) -> tuple[dict[str, str], list[str]]:
    """Return what our files hold, and why others cannot be read.

    The one without which the other has no effect is the last.
    """
    found: dict[str, str] = {}
    unreadable: list[str] = []
    for name in (OPTIONS_FILE, LOAD_FILE):
        try:
            text = content_of(root, name)
        except LightsleepError as error:
            unreadable.append(error.message)
            continue
        if text is not None and is_ours(text) and not (root / name).is_symlink():
            found[name] = text
    return found, unreadable


def _unloads(root: Path) -> tuple[dict[Setting, Undo], list[str]]:
    """Return how to unload our module, where it is loaded and may go; else why it stays.

    It goes whoever loaded it.
    """
    there = restorer.read_module(root, MODULE)
    if there is None:
        return {}, []
    scan, _ = collect(root)
    if kind := scan.loading.container:
        return {}, [
            f"{MODULE} stays loaded: this is a container ({kind}), and all of the machine idles by "
            "it. Unload it on the machine itself: lightsleep disable"
        ]
    if holders := scan.loading.holders:
        return {}, [
            f"{MODULE} stays loaded: {', '.join(holders)} uses it. Unload that first "
            f"(rmmod {' '.join(holders)}), then run lightsleep disable again"
        ]
    return {("module", MODULE): Undo(None, {there})}, []


def _values(root: Path, settings: Iterable[Setting]) -> dict[Setting, Value]:
    """Return the values of those that are there."""
    found: dict[Setting, Value] = {}
    for setting in settings:
        with contextlib.suppress(OSError):
            found[setting] = restorer.KINDS[setting[0]].read(root, setting[1])
    return found

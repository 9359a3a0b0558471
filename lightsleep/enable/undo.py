# SPDX-License-Identifier: GPL-2.0-only
"""Takes away what ``lightsleep enable`` keeps, to the last file, and unloads the module.

If the machine dies in the middle, the file of modules-load.d (see boot_files.py) is gone already:
without it, the other has no effect. ``disable`` removes either by itself.
"""

import contextlib
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from lightsleep.enable import boot
from lightsleep.enable.boot_files import (
    LOAD_FILE,
    OPTIONS_FILE,
    Changes,
    content_of,
    is_ours,
    lost,
    write_elsewhere,
    write_files,
)
from lightsleep.errors import LightsleepError, Skipped
from lightsleep.scan.collect import collect
from lightsleep.scan.loading import MODULE, has_another_root, kind_of_container
from lightsleep.settings import journalled, restorer
from lightsleep.settings.restorer import Setting, Undo, Value


class Unfinished(LightsleepError):
    """disable failed; ``done`` is what it had changed by then."""

    def __init__(self, error: LightsleepError, done: Changes) -> None:
        """Say what ``error`` says, and then what was done: nobody will hear of it again."""
        super().__init__(error.message)
        self.done = done
        for line in [*getattr(error, "__notes__", []), *done.changed, *done.notes]:
            self.add_note(line)


def disable(root: Path) -> Changes:
    """Undo what was enabled, remove our files, and unload the module.

    In a chroot, only the files go: what is loaded and set is of the machine around it. So it is in
    a container, where an image may be built; without our files there, it is taken for an attempt to
    change the machine. Raises LightsleepError where something refuses or is not ours, Skipped where
    nothing is there.
    """
    changed: list[str] = []
    notes: list[str] = []
    try:
        if has_another_root(root):
            _disable_elsewhere(root, changed, notes)
        else:
            with journalled.exclusive(root, "disable") as alone:
                notes += alone.notes
                # Whatever refuses, the next boot is to find the machine as it was.
                if refused := _undo(root, alone, changed, notes):
                    raise LightsleepError("\n".join(refused))
        foreign = [name for name in restorer.FILES if os.path.lexists(root / name)]
        if foreign:
            raise LightsleepError(f"/{foreign[0]} was not written by lightsleep: left as it is")
    except LightsleepError as error:
        # Where a package is being removed, this command does not run again.
        raise Unfinished(error, Changes(changed, notes + _loaded_by_others(root))) from error
    others = _loaded_by_others(root)
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
    for name in reversed(ours):  # one by one: what is done by then is told if the next one fails
        done = write_files({name: None}, root, partial(write_elsewhere, root))
        changed += done.changed
        notes += done.notes
    if refused := unreadable + _remove_scratch(root, changed):
        raise LightsleepError("\n".join(refused))


def _remove_scratch(root: Path, changed: list[str]) -> list[str]:
    """Remove what is left of a file that was being written; return why it cannot be removed.

    No journal may name it: a crash took that along with /run, and a chroot has none.
    """
    refused = []
    for scratch in (restorer.scratch_of(root / name) for name in restorer.FILES):
        if os.path.lexists(scratch):
            try:
                scratch.unlink()
                changed.append(f"removed /{scratch.relative_to(root)}")
            except OSError as error:
                refused.append(f"cannot remove {scratch}: {error.strerror}")
    return refused


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
    scratch = _remove_scratch(root, changed)
    # The beginning of a file of ours is as much of an image as all of it.
    if (files or changed) and kind_of_container(root):
        notes += stays
        stays = []
    refused = [*damaged, *unreadable, *stays, *scratch]
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
            notes += lost(name, text)
    notes += _of_what_is_there(root, left, undos, after)
    notes += _of_our_module(kept, files, before)
    refused += _besides_our_module(more) if stays else more
    return refused


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
    """Return how to undo what is kept, our ``files`` and ``unloads``; the last is undone first.

    That is the file without which no boot loads the module, so that a crash leaves nothing to load.
    Neither the module nor a file comes back, though an enable of this boot may have found it there,
    as an earlier one had left it.
    """
    ours = {("file", str(root / name)): Undo(None, {text}) for name, text in files.items()}
    back: dict[Setting, Undo] = {}
    for setting, undo in (kept.undos if kept else {}).items():
        goes = setting == ("module", MODULE) or setting[0] == "file"
        if setting not in ours:
            back[setting] = unloads.get(setting, Undo(None, undo.written) if goes else undo)
    return {x: y for x, y in unloads.items() if x not in back} | back | ours


def _undone(root: Path, setting: Setting, value: Value, kept: journalled.Kept | None) -> str:
    kind, name = setting
    if kind == "file" and value is None:
        return f"removed /{Path(name).relative_to(root)}"
    if kind == "module" and value is None and not (kept and setting in kept.undos):
        return f"unloaded the module {name}"
    return f"{name} {restorer.changed(setting, value)}"


def _besides_our_module(refused: list[str]) -> list[str]:
    """Return refusals without what rmmod says of our module: that it stays is no news."""
    again = f"cannot {restorer.said(('module', MODULE), None)} again: "
    return [x for x in refused if not x.startswith(again)]


def _of_what_is_there(
    root: Path, notes: list[str], undos: Iterable[Setting], after: dict[Setting, Value]
) -> list[str]:
    """Return the notes without those of parameters that went with their module.

    That others are gone is told, but not those of our module, which goes or went on purpose.
    """
    gone = [name for kind, name in undos if kind == "knob" and (kind, name) not in after]
    ours = f"{root / 'sys/module' / MODULE}/"
    void = tuple(f"{name} was " for name in gone)
    void += tuple(f"{name} is gone" for name in gone if name.startswith(ours))
    return [note for note in notes if not note.startswith(void)]


def _of_our_module(
    kept: journalled.Kept | None, files: dict[str, str], before: dict[Setting, Value]
) -> list[str]:
    """Return the note that our module does not come back, though enable had found it there.

    Where a file of ours had a boot load it, that is what disable is for.
    """
    ours = ("module", MODULE)
    went = kept and ours in kept.undos and kept.undos[ours].old is not None
    if not went or LOAD_FILE in files or before.get(ours) is not None:
        return []
    return [f"{MODULE}, which enable had unloaded, stays unloaded"]


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

# SPDX-License-Identifier: GPL-2.0-only
"""Keeps a setting, until the next boot or across boots; undo.py takes it away again.

What is kept until the next boot stands in the record of lightsleep/settings/journalled.py. What
comes back at each boot is in the files of boot_files.py.

An enable that is killed has kept all or nothing: the restorer undoes it. If the machine dies then,
the journal is gone with /run. So the file of modules-load.d is written last: only with it has the
other an effect.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lightsleep.enable import boot
from lightsleep.enable.boot_files import (
    HEADER,
    LOAD_FILE,
    OPTIONS_FILE,
    Changes,
    content_of,
    is_ours,
    write_elsewhere,
    write_files,
)
from lightsleep.errors import LightsleepError, Skipped, WrongUsage
from lightsleep.scan import facts, requests
from lightsleep.scan.collect import collect
from lightsleep.scan.loading import MODULE, has_another_root, kind_of_container
from lightsleep.scan.model import Scan
from lightsleep.scan.obstacles import OF_THIS_BOOT, OF_THIS_KERNEL, obstacles
from lightsleep.settings import journalled, restorer
from lightsleep.settings.apply import applied
from lightsleep.settings.catalogue import (
    DEFAULTS,
    GOVERNOR,
    LASTING,
    ONLY_LIGHTSLEEP,
    PARAMETERS,
    Change,
    Hold,
    Knob,
    Load,
    Unload,
    driver_first,
    plan,
    plan_elsewhere,
)
from lightsleep.sources import DKMS_INSTALL

IN_FORCE = ("in_force", "in_force_by", "in_force_since")
"""In the record of an enable that only the next boot makes true: what is kept until then."""

ONLY_FILES = (
    "this is a container ({}), so only its files change, for a system that boots from them: the "
    "machine that the container runs on stays as it is"
)

AFTER_MODULES = (
    "kernel.modules_disabled is 1 now. systemd sets that from sysctl.d only after it has loaded "
    f"{MODULE}. If something sets it earlier, such as the kernel command line, the next boot does "
    "not load the module"
)


def persistent_files(changes: Sequence[Change], now: bool) -> dict[str, str | None]:
    """Return what makes the changes last across boots, by file, in the order of writing.

    None stands for a file that must not be there. Raises LightsleepError where there is no such
    file; it depends on ``now`` what it proposes.
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
                raise _in_the_way_at_boot(module, now)
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


def _in_the_way_at_boot(module: str, now: bool) -> LightsleepError:
    return LightsleepError(
        f"--persist: no file unloads {module} at boot. First keep it from being loaded: write the "
        f"line 'blacklist {module}' to a file such as /etc/modprobe.d/no-{module}.conf, and "
        f"repeat this command{_or_without_persist(now)}"
    )


def _or_without_persist(now: bool) -> str:
    """Return how else to have the setting: --later is only there with --persist."""
    return ". Or leave out --persist" if now else ""


def _built_in(options: str | None) -> WrongUsage:
    """Return the error for a driver that is part of the kernel; ``options`` is OPTIONS_FILE's."""
    words = (options or "").removeprefix(HEADER).split()[2:]
    to_do = f"add {' '.join(f'{MODULE}.{x}' for x in words)} to it, and reboot. " if words else ""
    return WrongUsage(
        f"--persist: {MODULE} is built into this kernel, so it is there at every boot. A boot "
        f"finds its parameters on the kernel command line only: {to_do or 'none is needed here. '}"
        "For this boot, leave out --persist (and --later)"
    )


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
    if persist and not now:
        if has_another_root(root):
            return _enable_elsewhere(text, root, [])
        # Images are built in containers, too.
        if kind := kind_of_container(root):
            return _enable_elsewhere(text, root, [ONLY_FILES.format(kind)])
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
    passed = () if now else _of_this_boot(root)
    changes = plan(text, scan, root, module_file, LASTING, passed, now)
    check_lasts(text, changes)
    if not changes:
        raise WrongUsage(f"{text} changes nothing: there is nothing to enable")
    files = _files_of_boot(changes, scan, root, now) if persist else {}
    _check_files(root, files)
    # What cannot be read could not be kept, either.
    kept = journalled.kept(root)
    if persist:
        _check_unloaded_stay_away(kept, root, now)
    changes = _brought_back(changes, kept)
    changed = []
    in_force = _in_force(kept)
    about = {"setting": text, "later": "yes", **in_force}
    if now:
        about = {"setting": together(in_force.get("in_force"), text)}
    lacking = _without_module(root) if persist else []
    lacking += _latency_limits(changes, scan, root)
    if not now:
        lacking += _in_the_way_now(scan, root)
    with journalled.session(root, "enable", **about) as session:
        notes = list(session.notes)
        if now:
            with applied(changes, session, root) as made:
                changed += [_said(change) for change in made]
        written = write_files(files, root, session.write)
        if not session.changed:
            raise _enabled_already(text, lacking)
        session.keep()
    return Changes(changed + written.changed, notes + written.notes + lacking)


def _files_of_boot(
    changes: Sequence[Change], scan: Scan, root: Path, now: bool
) -> dict[str, str | None]:
    """Return persistent_files(). Raises LightsleepError where a boot would not act on them.

    Unless the change is made ``now``, another kernel may be the one that boots next.
    """
    files = persistent_files(_at_boot(changes, root), now)
    if scan.loading.built_in:
        raise _built_in(files[OPTIONS_FILE])
    if not (scan.loading.installed or (not now and boot.any_kernel_has_module(root))):
        raise LightsleepError(
            f"{MODULE} is not installed for kernel {scan.kernel.release}, so no boot would find "
            f"it: install the package lightsleep-dkms, or {DKMS_INSTALL}"
        )
    _check_boot_loads(root, now)
    return files


def _of_this_boot(root: Path) -> tuple[str, ...]:
    """Return the rules of obstacles() that count for this boot, and may not for the next one."""
    return OF_THIS_BOOT + (OF_THIS_KERNEL if boot.any_kernel_has_module(root) else ())


def _in_the_way_now(scan: Scan, root: Path) -> list[str]:
    """Return what to say of all that keeps this boot from loading the module.

    The next boot may have it, too: nothing here tells which kernel that is, and with which options.
    Of kernels that lack the module, each is told anyway.
    """
    without = f"the next boot loads {MODULE} only if it is without this:"
    notes: list[str] = []
    # It keeps away what a boot loads, and not what somebody has loaded by name.
    if boot.COMMAND_LINE in boot.kept_away_by(root, MODULE):
        what = f"{boot.blacklist(boot.COMMAND_LINE)} keeps a boot from loading {MODULE}"
        notes.append(f"{without} {what}. Remove {MODULE} there.")
    if facts.lightsleep_idles(scan):
        return notes
    for x in obstacles(scan):
        # Who hardens a machine by sysctl.d need not take that away.
        if x.id == "no-modules" and scan.loading.modules_disabled:
            notes.append(AFTER_MODULES)
        elif x.id in OF_THIS_BOOT:
            notes.append(f"{without} {x.what}. {x.fix}")
    return notes


def _latency_limits(changes: Sequence[Change], scan: Scan, root: Path) -> list[str]:
    """Return what to say of latency limits that our driver is about to heed.

    Where no driver was, or ours was switched off, nobody has heeded them. How long a halt takes may
    not be known yet, either: the module measures it.
    """
    cpus = [cpu for cpu in scan.cpus if facts.latency_limit_us(scan, cpu) is not None]
    if not cpus or not any(_switches_on(x, scan) for x in changes):
        return []
    lowest_us = min(facts.latency_limit_us(scan, cpu) or 0 for cpu in cpus)
    asked = ", ".join(requests.holders(root))
    who = f" (/dev/cpu_dma_latency is held open by {asked})" if asked else ""
    return [
        f"{facts.on(cpus)}: a latency limit of {lowest_us} us is set{who}. Under this driver, CPUs "
        "whose halts take longer than their limit poll all the time that they are idle: 'sudo "
        "lightsleep scan' tells which"
    ]


def _switches_on(change: Change, scan: Scan) -> bool:
    """Return whether our driver polls from this change on, and did not before."""
    match change:
        case Load(module, argv, _):
            return module == MODULE and "mode=off" not in argv
        case Knob(path, mode) if path == f"{PARAMETERS}/mode" and scan.lightsleep:
            return mode != "off" and scan.lightsleep.mode == "off"
    return False


def _check_unloaded_stay_away(kept: journalled.Kept | None, root: Path, now: bool) -> None:
    """Raise LightsleepError where a boot loads what an earlier enable has unloaded."""
    for module in sorted(_unloaded(kept) - {MODULE}):
        if not boot.kept_away_by(root, module):
            raise _in_the_way_at_boot(module, now)


def _enable_elsewhere(text: str, root: Path, notes: list[str]) -> Changes:
    """Keep the setting for the boots of a system that is in a chroot or a container.

    Only its files are touched. It may boot on another machine, with kernels that it does not have
    yet. So nothing is refused because of what runs now. ``notes`` are told besides.
    """
    files = persistent_files(plan_elsewhere(text), now=False)
    _check_boot_loads(root, now=False)
    _check_files(root, files)
    before = {name: content_of(root, name) for name in files}
    try:
        written = write_files(files, root, partial(write_elsewhere, root))
    except BaseException as error:
        try:
            write_files(before, root, partial(write_elsewhere, root))
        except LightsleepError as worse:
            error.add_note(f"what was written before that could not be taken back: {worse.message}")
        raise
    notes = notes + _without_module(root)
    if not written.changed:
        raise _enabled_already(text, notes)
    return Changes(written.changed, written.notes + notes)


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

    The driver stands first, as it is made first.
    """
    parts: dict[str, str] = {}
    for part in [*(earlier.split("+") if earlier else []), *driver_first(text.split("+"))]:
        name, _, value = part.partition(":")
        own = f"sysfs:{value.partition('=')[0]}" if name == "sysfs" else name
        for key in (own, *EXCLUDED.get(name, ())):
            parts.pop(key, None)
        parts[own] = part
    return "+".join(driver_first(parts.values()))


def _in_force(kept: journalled.Kept | None) -> dict[str, str]:
    """Return which setting an earlier enable keeps, by whom and since when; nothing without one."""
    header = kept.header if kept else {}
    if header.get("later"):
        return {name: header[name] for name in IN_FORCE if name in header}
    there = zip(IN_FORCE, ("setting", "user", "since"), strict=True)
    return {name: header[key] for name, key in there if key in header}


def _brought_back(changes: list[Change], kept: journalled.Kept | None) -> list[Change]:
    """Return the changes without what a driver sets that an earlier enable had unloaded.

    To bring it back undoes a change of that enable. What the journal would note now is the governor
    of the meantime. The session sees which one the driver brings along.
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


def _check_boot_loads(root: Path, now: bool) -> None:
    """Raise LightsleepError where something keeps a boot from loading the module.

    Unless the change is made ``now``, the next boot may have another kernel command line.
    """
    where = [x for x in boot.kept_away_by(root, MODULE) if now or x != boot.COMMAND_LINE]
    if where:
        # Nor would it be loaded now where modprobe runs something else; one that is there stays.
        there = restorer.read_module(root, MODULE) is not None
        instead = _or_without_persist(now and (there or not boot.is_replaced(root, MODULE)))
        raise LightsleepError(
            f"--persist: {boot.blacklist(where[0])} keeps a boot from loading {MODULE}. Remove it "
            f"there, and repeat this command{instead}"
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

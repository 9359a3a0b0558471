# SPDX-License-Identifier: GPL-2.0-only
"""What loads the driver at boot, and with which setting: whoever wrote the files.

systemd-modules-load, or the script of an older init, loads each module that a file of
modules-load.d names, one a line. A module that needs ours loads it as well. modprobe.d has the
parameters: of several options lines, the last one that names a parameter counts. Both are folders
in several places. A file hides those of its name in later places.

The kernel command line names modules to load, too (modules_load=), and parameters, which modprobe
adds after those of modprobe.d. What modprobe.blacklist= or a blacklist of modprobe.d names is not
loaded then; a module that needs it brings it all the same, unless a line 'install' of modprobe.d
has something else run, such as /bin/false.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightsleep.scan.loading import FOLDERS, MODULE, has_another_root, kind_of_container
from lightsleep.scan.tree import Tree
from lightsleep.settings import restorer
from lightsleep.settings.catalogue import DEFAULTS

LOADERS = (MODULE, "virtio_poll_source")
"""The modules that bring the driver: itself, and one that needs it."""
PLACES = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
DEBIAN = "etc/modules"
"""Older than modules-load.d, in which Debian has a link to it."""
COMMAND_LINE = "proc/cmdline"


@dataclass(frozen=True)
class Boot:
    """What a boot does: the files that load the driver, and the setting that they bring.

    ``kept_away_by`` are files that undo what would load it. ``setting`` is spelled as for enable,
    and None where nothing loads the driver or where not all files can be read. ``denied`` says that
    only root may read what loads it.
    """

    files: list[str]
    kept_away_by: list[str]
    setting: str | None
    denied: bool


def read(root: Path) -> Boot:
    """Return what a boot of the machine at ``root`` does."""
    texts, denied = _texts(root, "modules-load.d")
    texts[COMMAND_LINE] = "\n".join(_on_command_line(root, "modules_load"))
    named = {name: loaders for name, text in texts.items() if (loaders := _loaders(text))}
    away = {module: kept_away_by(root, module) for module in LOADERS}
    files = [name for name, loaders in named.items() if any(not away[x] for x in loaders)]
    undone_by = {x: None for loaders in named.values() for y in loaders for x in away[y]}
    options, unsure = _texts(root, "modprobe.d")
    options[COMMAND_LINE] = _options_on_command_line(root)
    brings = setting(options) if files and not unsure else None
    return Boot(files, [] if files else list(undone_by), brings, denied)


def setting(options: dict[str, str]) -> str:
    """Return which setting options lines bring, by file, in words that enable knows.

    Parameters that no setting has are left out.
    """
    found = dict(DEFAULTS)
    for text in options.values():
        for line in _lines(text.replace("\\\n", " "), "#"):
            words = line.split(maxsplit=2)
            if len(words) == 3 and words[0] == "options" and _name(words[1]) == MODULE:
                found |= dict(_parameters(words[2]))
    mode, limit, weight = (found[name] for name in ("mode", "poll_limit_us", "wait_weight"))
    said = ["lightsleep"]
    said += [mode] if mode != DEFAULTS["mode"] else []
    said += [f"{limit}us"] if limit != DEFAULTS["poll_limit_us"] else []
    said += [f"weight={weight}"] if weight != DEFAULTS["wait_weight"] else []
    return ":".join(said)


def kept_away_by(root: Path, module: str) -> list[str]:
    """Return the files that keep a module from being loaded at boot."""
    texts, _ = _texts(root, "modprobe.d")
    found = [x for x, text in texts.items() if _blacklists(text, module) or _replaces(text, module)]
    on_command_line = module in _on_command_line(root, "modprobe.blacklist")
    return found + ([COMMAND_LINE] if on_command_line else [])


def is_replaced(root: Path, module: str) -> bool:
    """Return whether modprobe runs a command in place of loading a module.

    It does so for whoever calls it. A blacklist counts only for what a boot loads.
    """
    texts, _ = _texts(root, "modprobe.d")
    return any(_replaces(text, module) for text in texts.values())


def blacklist(name: str) -> str:
    """Return what in one of kept_away_by() keeps our module away."""
    if name == COMMAND_LINE:
        return "modprobe.blacklist= on the kernel command line"
    return f"a line in /{name}"


def loaded_by(name: str) -> str:
    """Return what in a file loads our module, or one that needs it."""
    return "it from modules_load=" if name == COMMAND_LINE else "the line"


def _blacklists(text: str, module: str) -> bool:
    """Return whether lines of modprobe.d keep a boot from loading a module that it names."""
    lines = [line.split() for line in _lines(text, "#")]
    return module in {_name(x[1]) for x in lines if x[0] == "blacklist" and len(x) > 1}


def _replaces(text: str, module: str) -> bool:
    """Return whether lines of modprobe.d have a command run in place of loading a module.

    That also fails what needs the module. A command may load it all the same.
    """
    lines = [line.split() for line in _lines(text, "#")]
    replaced = {
        _name(x[1])
        for x in lines
        if x[0] == "install" and len(x) > 2 and not re.search("modprobe|insmod", " ".join(x[2:]))
    }
    needed = {module, MODULE} if module in LOADERS else {module}
    return not replaced.isdisjoint(needed)


def _on_command_line(root: Path, option: str) -> list[str]:
    """Return the modules that an option names."""
    pairs = [word.partition("=") for word in _command_line(root)]
    return [_name(x) for name, _, value in pairs if _name(name) == option for x in value.split(",")]


def _options_on_command_line(root: Path) -> str:
    """Return words such as MODULE.mode=fixed as modprobe takes them: as one more options line."""
    pairs = [word.partition(".") for word in _command_line(root)]
    return " ".join(["options", MODULE, *(x for name, _, x in pairs if _name(name) == MODULE)])


def _command_line(root: Path) -> list[str]:
    """Return the words of the kernel command line.

    In a chroot and in a container, it is of another machine's boot.
    """
    if has_another_root(root) or kind_of_container(root):
        return []
    return (Tree(root).text(COMMAND_LINE) or "").replace('"', "").split()


def kernels_without_module(root: Path) -> list[str]:
    """Return the releases of installed kernels that neither have our module nor contain it."""
    return [release for release, has in _kernels(root) if not has]


def any_kernel_has_module(root: Path) -> bool:
    """Return whether an installed kernel has our module, or contains it."""
    return any(has for _, has in _kernels(root))


def _kernels(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield the release of each installed kernel, and whether it has our module.

    A package of a kernel brings modules.builtin, and takes it along when it is removed. DKMS and
    depmod may leave other files.
    """
    for builtin in sorted(root.glob("lib/modules/*/modules.builtin")):
        modules = [x for folder in FOLDERS for x in builtin.parent.glob(f"{folder}/{MODULE}.ko*")]
        with contextlib.suppress(OSError):
            contained = f"/{MODULE}.ko" in _name(builtin.read_text(errors="replace"))
            yield builtin.parent.name, bool(modules) or contained


def _texts(root: Path, folder: str) -> tuple[dict[str, str], bool]:
    """Return the files of a folder in all its places, sorted by name, and whether any is denied."""
    found: dict[str, str] = {}
    denied = False
    places: dict[str, str] = {}
    for place in PLACES:
        try:
            names = [x.name for x in (root / place / folder).iterdir()]
        except OSError as error:
            denied |= isinstance(error, PermissionError)
            continue
        for name in names:
            places.setdefault(name, f"{place}/{folder}/{name}")
    paths = [path for name, path in sorted(places.items()) if name.endswith(".conf")]
    seen: set[Path] = set()
    for path in [*paths, *([DEBIAN] if folder == "modules-load.d" else [])]:
        with contextlib.suppress(OSError, RuntimeError):  # until Python 3.12, of a link to itself
            if (root / path).resolve() in seen:
                continue
            seen.add((root / path).resolve())
        try:
            text = restorer.read_file(root, str(root / path))
        except OSError as error:
            denied |= isinstance(error, PermissionError)
            continue
        if text is not None:
            found[path] = text
    return found, denied


def _loaders(text: str) -> list[str]:
    names = [_name(line) for line in _lines(text, "#;")]
    return [name for name in names if name in LOADERS]


def _lines(text: str, comment: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and line.strip()[0] not in comment:
            yield line.strip()


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(ValueError):
        for word in shlex.split(text):
            name, equals, value = word.partition("=")
            if equals:
                yield name, value


def _name(module: str) -> str:
    """Return the name of a module, in which - and _ mean the same."""
    return module.replace("-", "_")

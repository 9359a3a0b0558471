# SPDX-License-Identifier: GPL-2.0-only
"""The kernel series: what cannot be a module, as patches of a kernel's source.

``kernel/patches/BASE/`` holds patches for one version of the kernel, by topic. A topic is a series
of its own that a maintainer can take without the others. The file ``topics`` names one topic per
line, ``TOPIC [CARRIED...]``, in the order in which all of them apply together. A topic that is not
safe without another one carries it: the patches of CARRIED precede its own.

``TOPIC/series`` names one mechanism per line, in order: ``NAME.patch [FILE...]``. The patch, a
mail, hooks the mechanism into files that the kernel has; the FILEs are new ones, which exist once,
under ``kernel/``, at the path that they have in a kernel's source. What only our modules need of
them, between ``#ifdef LIGHTSLEEP_MODULE`` and ``#endif``, stays behind. ``TOPIC/cover.txt``
introduces the topic to its readers.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.sources import KERNEL, kernel_sources

HOOKED = re.compile(r"^--- a/(\S+)", re.MULTILINE)
CREATED = re.compile(r"^--- /dev/null", re.MULTILINE)
SENDER = re.compile(r"^From: (?P<name>.+?) <(?P<email>[^>]+)>$", re.MULTILINE)
SUBJECT = re.compile(r"^Subject: \[PATCH\] \S+", re.MULTILINE)
SIGNED_OFF = re.compile(r"^Signed-off-by: ", re.MULTILINE)
OPTION = re.compile(r"^\+config (\w+)$", re.MULTILINE)
ARCH_FOLDER = re.compile(r"arch/(\w+)/")
DRIVERS = {"drivers/cpuidle/cpuidle-powernv.c": "powerpc"}
"""Files elsewhere that one architecture alone compiles."""
VERSION = re.compile(r"^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", re.MULTILINE)

OF_MODULE = "LIGHTSLEEP_MODULE"
"""The macro around lines of new files that only modules need; ``kernel/Kbuild`` defines it."""

GET_MAINTAINER = "scripts/get_maintainer.pl"
OF_MAILS = ("MAINTAINERS", "Makefile", GET_MAINTAINER)
"""Files of a kernel's source that tell whom a mail is for, and which kernel that is."""

UNCLAIMED = frozenset({"kernel/smp.c", "kernel/softirq.c"})
"""Files in no entry of MAINTAINERS, of what a CPU does between hotplug, the tick and idle."""

CLAIMED_NEARBY = ("kernel/cpu.c", "kernel/time/tick-sched.c")
"""Files in entries of MAINTAINERS whose people are also asked about UNCLAIMED."""


@dataclass(frozen=True)
class Patch:
    """One mechanism: hooks into files of the kernel, and new files."""

    path: Path
    new: tuple[str, ...]
    """New files, as paths below ``kernel/`` and below a kernel's source alike."""

    @property
    def name(self) -> str:
        """The mechanism's name, the same for every base."""
        return self.path.stem

    @property
    def hooked(self) -> list[str]:
        """The files of the kernel that the patch changes."""
        return sorted(set(HOOKED.findall(self.path.read_text())))

    @property
    def options(self) -> set[str]:
        """The options of a kernel's configuration that the patch brings."""
        return {f"CONFIG_{x}" for x in OPTION.findall(self.path.read_text())}

    def contents(self, kernel: Path = KERNEL) -> list[bytes]:
        """Return all that the mechanism is made of but words, for the key of a cache."""
        code = [x for x in self.new if not x.startswith("Documentation/")]
        named = [part for x in code for part in (x.encode(), (kernel / x).read_bytes())]
        _, _, change = self.path.read_bytes().partition(b"\n---\n")
        return [self.name.encode(), change, *named]


@dataclass(frozen=True)
class Topic:
    """A series of its own: patches that a maintainer can take without those of other topics."""

    path: Path
    carried: tuple[Patch, ...]
    """Patches of other topics, without which this one is not safe."""
    own: tuple[Patch, ...]

    @property
    def name(self) -> str:
        """The topic's name, the same for every base."""
        return self.path.name

    @property
    def cover(self) -> Path:
        """The text of the cover letter."""
        return self.path / "cover.txt"

    @property
    def patches(self) -> tuple[Patch, ...]:
        """All that the topic is sent as, in order."""
        return (*self.carried, *self.own)

    @property
    def folders(self) -> set[str]:
        """The architectures whose files the topic changes, named as the kernel names them."""
        hooked = [file for patch in self.patches for file in patch.hooked]
        folders = {match[1] for file in hooked if (match := ARCH_FOLDER.match(file))}
        return folders | {DRIVERS[file] for file in hooked if file in DRIVERS}


def bases(kernel: Path | None = None) -> list[str]:
    """Return the versions of the kernel that there are topics for."""
    kernel = kernel or kernel_sources()
    return sorted(path.parent.name for path in kernel.glob("patches/*/topics"))


def read_topics(base: str, kernel: Path | None = None) -> tuple[Topic, ...]:
    """Return the topics for version ``base``, in the order in which they apply together.

    Raises LightsleepError, with file and line, where a file names what is not there or what is not
    as this module describes it.
    """
    kernel = kernel or kernel_sources()
    file = kernel / "patches" / base / "topics"
    if not file.exists():
        found = ", ".join(bases(kernel)) or "none"
        raise LightsleepError(f"no series for kernel {base!r}; there are: {found}")
    topics: dict[str, Topic] = {}
    for number, (name, *carried) in _lines(file):
        if name in topics:
            raise LightsleepError(f"{file}:{number}: {name} is there twice")
        if unknown := [x for x in carried if x not in topics]:
            raise LightsleepError(f"{file}:{number}: no earlier line names {unknown[0]!r}")
        path = file.with_name(Path(name).name)
        if name != path.name or not (path / "series").is_file():
            raise LightsleepError(f"{file}:{number}: there is no {name}/series")
        if not (path / "cover.txt").is_file():
            raise LightsleepError(f"{file}:{number}: there is no {name}/cover.txt")
        before = [patch for topic in topics.values() for patch in topic.own]
        # What a carried topic carries comes with it; each patch once.
        others = dict.fromkeys(patch for x in carried for patch in topics[x].patches)
        topics[name] = Topic(path, tuple(others), _read_patches(path / "series", before, kernel))
    if stray := sorted(
        x.parent.name for x in file.parent.glob("*/series") if x.parent.name not in topics
    ):
        raise LightsleepError(
            f"{file}: does not name {', '.join(stray)}, which is in the same folder"
        )
    return tuple(topics.values())


def read_series(base: str, kernel: Path | None = None) -> tuple[Patch, ...]:
    """Return the patches of all topics for version ``base``, in order."""
    return tuple(patch for topic in read_topics(base, kernel) for patch in topic.own)


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and words of each line that says something."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield number, words


def _read_patches(file: Path, others: Sequence[Patch], kernel: Path) -> tuple[Patch, ...]:
    """Return the patches that ``file`` names, none of which brings what ``others`` bring."""
    patches: list[Patch] = []
    for number, words in _lines(file):
        patch = Patch(file.with_name(Path(words[0]).name), tuple(words[1:]))
        if not re.fullmatch(r"[a-z0-9-]+\.patch", words[0]):
            raise LightsleepError(f"{file}:{number}: {words[0]!r} is not of the form NAME.patch")
        if why := _wrong(patch, [*others, *patches], kernel):
            raise LightsleepError(f"{file}:{number}: {why}")
        patches.append(patch)
    if not patches:
        raise LightsleepError(f"{file}: names no patch")
    listed = {patch.path for patch in patches}
    if stray := sorted(x.name for x in file.parent.glob("*.patch") if x not in listed):
        raise LightsleepError(
            f"{file}: does not name {', '.join(stray)}, which is in the same folder"
        )
    return tuple(patches)


def _wrong(patch: Patch, before: Sequence[Patch], kernel: Path) -> str | None:
    """Return what is wrong with a patch that follows those ``before``, or None."""
    name = patch.path.name
    if patch.path in (x.path for x in before):
        return f"{name} is there twice"
    if not patch.path.is_file():
        return f"there is no {name}"
    text = patch.path.read_text()
    for what, pattern in (("From:", SENDER), ("Subject: [PATCH]", SUBJECT)):
        if not pattern.search(text):
            return f"{name} has no line {what!r}: it is to be a mail of git format-patch"
    if not SIGNED_OFF.search(text):
        return f"{name} is not signed off"
    if CREATED.search(text):
        return f"{name} creates a file: name it in series instead, and put it below {kernel.name}/"
    if both := sorted(set(patch.new).intersection(patch.hooked)):
        return f"{name} changes {both[0]}, which it also brings"
    earlier = {x for other in before for x in other.new}
    if twice := sorted(earlier.intersection((*patch.hooked, *patch.new))):
        return f"{name} changes {twice[0]}, which an earlier patch brings"
    for new in patch.new:
        if Path(new).is_absolute() or ".." in Path(new).parts:
            return f"{new!r} is no path below {kernel.name}/"
        if not (kernel / new).is_file():
            return f"there is no {kernel.name}/{new}"
    return None


def apply(patch: Patch, source: Path, kernel: Path = KERNEL) -> None:
    """Change ``source``, a kernel's, as ``patch`` says, and put the new files there.

    Raises LightsleepError where a hook does not apply, to the letter, or a new file is not new.
    """
    host.need("patch")
    host.run(
        [
            *("patch", "--directory", source, "--strip=1", "--forward", "--batch", "--silent"),
            *("--fuzz=0", "--no-backup-if-mismatch", "--input", patch.path.absolute()),
        ],
        f"applying {patch.path.name}",
    )
    _copy_new(patch, source, kernel)


def _copy_new(patch: Patch, source: Path, kernel: Path) -> None:
    for new in patch.new:
        target = source / new
        if target.exists():
            raise LightsleepError(f"{patch.path.name} brings {new}, which the kernel already has")
        target.parent.mkdir(parents=True, exist_ok=True)
        if OF_MODULE in (kernel / new).read_text():
            _copy_without_module(kernel / new, target)
        else:
            shutil.copy(kernel / new, target)


def _copy_without_module(file: Path, target: Path) -> None:
    """Copy ``file`` without the lines that only our modules need, for other kernels than ours."""
    host.need("unifdef")
    # -x2: the exit status is not to say whether there were such lines.
    left = host.run(["unifdef", "-x2", "-B", f"-U{OF_MODULE}", file], f"unifdef {file.name}")
    target.write_text(left.rstrip("\n") + "\n")


def unpack_hooked(
    archive: Path, patches: Sequence[Patch], into: Path, others: Sequence[str] = ()
) -> None:
    """Unpack from a source ``archive`` only the files that ``patches`` change, and ``others``."""
    hooked = {x for patch in patches for x in patch.hooked}
    wanted = sorted(f"*/{x}" for x in hooked.union(others))
    host.need("xz")
    host.run(
        [
            *("tar", "-xJf", archive, "-C", into, "--strip-components=1"),
            *("--wildcards", "--no-wildcards-match-slash", "--occurrence=1", *wanted),
        ],
        f"unpacking {len(wanted)} files of the kernel's source",
    )


def check_without_mails(out: Path) -> None:
    """Raise LightsleepError where a folder holds mails: those of two series would be mixed."""
    if list(out.glob("*.patch")):
        raise LightsleepError(f"{out} already holds patches: name another folder, or remove them")


def write_mails(
    topic: Topic, archive: Path, out: Path, kernel: Path = KERNEL, version: int = 1
) -> list[Path]:
    """Write ``topic`` to ``out`` as numbered mails, a cover letter first, and return them.

    New files are in the mails. Each mail has a copy for everybody whom the kernel's own
    get_maintainer.pl names for any of them. From ``version`` 2 on, it is in the subjects. Raises
    LightsleepError where a patch does not apply to the source in ``archive``, or where ``out``
    holds mails already.
    """
    host.need("git")
    check_without_mails(out)
    patches = topic.patches
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lightsleep-series-") as scratch:
        tree, drafts = Path(scratch) / "tree", Path(scratch) / "drafts"
        tree.mkdir()
        unclaimed = UNCLAIMED.intersection(x for patch in patches for x in patch.hooked)
        nearby = CLAIMED_NEARBY if unclaimed else ()
        unpack_hooked(archive, patches, tree, (*OF_MAILS, *nearby))
        git = _repository(tree, patches[0])
        for patch in patches:
            git("am", "--quiet", str(patch.path.absolute()))
            _copy_new(patch, tree, kernel)
            if patch.new:
                git("add", "--force", "--", *patch.new)
                git("commit", "--quiet", "--amend", "--no-edit")
        git("format-patch", "--quiet", f"--output-directory={drafts}", "base..series")
        linux = ".".join(VERSION.findall((tree / "Makefile").read_text()))
        cover = (
            f"{topic.cover.read_text().rstrip()}\n\nBased on Debian's source of Linux {linux}.\n"
        )
        git("config", "branch.series.description", cover)
        git(
            *("format-patch", "--quiet", "--cover-letter", "--cover-from-description=subject"),
            *(f"--cc={person}" for person in _recipients(tree, drafts, patches[0], nearby)),
            *([f"--reroll-count={version}"] if version > 1 else []),
            *("--no-signature", f"--output-directory={out.absolute()}", "base..series"),
        )
    return sorted(out.glob("*.patch"))


def _recipients(tree: Path, drafts: Path, first: Patch, nearby: Sequence[str]) -> list[str]:
    """Return whom a kernel's get_maintainer.pl names for any of the mails, but for the sender.

    And whom it names for the files ``nearby``. Not for what a mail fixes: for that, it asks git
    about commits that are not here, and takes what git says of them for people. Raises
    LightsleepError for a line without an address.
    """
    host.need("perl")
    options = ("--no-tree", "--no-git", "--no-git-fallback", "--no-fixes", "--no-rolestats")
    asked: list[Sequence[Path | str]] = [sorted(drafts.glob("*.patch"))]
    if nearby:
        asked.append(["--file", *nearby])
    named = "\n".join(
        host.run(["env", "-C", tree, "perl", GET_MAINTAINER, *options, *about], GET_MAINTAINER)
        for about in asked
    )
    people = {x for x in named.splitlines() if x and f"<{_sender(first)['email']}>" not in x}
    if nobody := [x for x in people if "@" not in x]:
        raise LightsleepError(f"{GET_MAINTAINER} names no address: {nobody[0]}")
    return sorted(people)


ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
"""Variables, set inside hooks for one, that have git work on another repository."""


class _Git:
    """Runs git in a folder, undisturbed by whoever's configuration and surroundings."""

    def __init__(self, tree: Path, settings: Sequence[str]) -> None:
        self.tree = tree
        self.settings = settings

    def __call__(self, *words: str) -> str:
        """Run git and return what it prints. Raises LightsleepError where it fails."""
        return host.run(
            [
                *("env", *(word for name in ELSEWHERE for word in ("-u", name))),
                *("GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"),
                *("git", "-C", str(self.tree), *self.settings, *words),
            ],
            f"git {' '.join(words[:3])}",
        )


def _repository(tree: Path, first: Patch) -> _Git:
    """Commit ``tree`` as branch base and open branch series, as the sender of ``first``."""
    sender = _sender(first)
    git = _Git(tree, ["-c", f"user.name={sender['name']}", "-c", f"user.email={sender['email']}"])
    git("init", "--quiet", "--initial-branch=base")
    git("add", "--all", "--force")
    git("commit", "--quiet", "--message=the kernel's own")
    git("checkout", "--quiet", "-b", "series")
    return git


def _sender(patch: Patch) -> re.Match[str]:
    """Return ``name`` and ``email`` of who sends a patch."""
    sender = SENDER.search(patch.path.read_text())
    assert sender is not None  # read_series() saw to it
    return sender

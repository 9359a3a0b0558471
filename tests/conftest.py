# SPDX-License-Identifier: GPL-2.0-only
"""What all tests share."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from lightsleep import cache
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.roots import MirrorOutOfStep

if TYPE_CHECKING:
    from lightsleep.lab.boot.guest import Guest
    from lightsleep.lab.kernels.config import Arch

# A loaded machine is slow; that fails no test.
settings.register_profile("lightsleep", deadline=None)
settings.load_profile("lightsleep")

SLOW = Path(__file__).with_name("slow.txt")
"""The slow tests, as `make slow-tests` measured. A copy of this file has none."""

FOUND_BY = ("boot", "build", "alone")
"""Markers by whose words make check finds the files to read: reading all others takes long."""

# Whoever runs the tests may have set what changes how programs print, and who may read files.
os.umask(0o022)
for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
    os.environ.pop(variable, None)
# Variables on make's command line override the environment of each make that a test runs: make
# check LIGHTSLEEP_CACHE=FOLDER would have a test of make clean-cache remove what is in there.
for variable in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"):
    os.environ.pop(variable, None)
# It would hide a __pycache__ that a program leaves where it must not.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell has its background jobs ignore SIGINT, nohup SIGHUP. What is ignored stays so in their
# children, and tests that send it to one would wait for ever; what a function handles does not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Have a folder of snapshots for all processes that run these tests; see booted.py."""
    # booted.SNAPSHOTS, which is not imported: a test runs a copy of this file elsewhere.
    variable = "LIGHTSLEEP_TEST_SNAPSHOTS"
    if not (hasattr(config, "workerinput") or os.environ.get(variable)):
        stack = contextlib.ExitStack()
        path = stack.enter_context(cache.scratch(f"booted-{os.getpid()}"))
        os.environ[variable] = str(path)
        config.add_cleanup(stack.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow ones, and let those of check-more, which build kernels, take hours.

    Raises UsageError for a test that make check would not find.
    """
    slow = frozenset(SLOW.read_text().split()) if SLOW.exists() else frozenset()
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("more"):
            item.add_marker(pytest.mark.timeout(4 * 3600))
        for name in FOUND_BY:
            if item.get_closest_marker(name) and f"mark.{name}" not in _source(item.path):
                raise pytest.UsageError(
                    f"make check would not find {item.nodeid}: write mark.{name} in its file"
                )


@functools.cache
def _source(path: Path) -> str:
    return path.read_text()


UNPACK = roots.unpack


def unpack(arch: Arch, suite: str, target: str, packages: list[str], into: Path) -> None:
    """Do what roots.unpack() does, but do not ask again for what the mirror did not have.

    Each time would take as long as the first. What this machine itself needs is asked for again.
    """
    asked = cache.digest(arch.name, suite, target, *packages)
    answer = Path(os.environ["LIGHTSLEEP_TEST_SNAPSHOTS"], f"out-of-step-{asked}")
    if answer.exists():
        raise MirrorOutOfStep(answer.read_text(), foreign=True)
    try:
        UNPACK(arch, suite, target, packages, into)
    except MirrorOutOfStep as error:
        if error.foreign:
            answer.write_text(error.message)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remember for all tests of a run which packages the mirror does not have at the moment."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("boot") or item.get_closest_marker("build"):
            patch.setattr(roots, "unpack", unpack)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs a foreign architecture's packages, where no mirror has them at the moment.

    That tells nothing of our code. Without this machine's own packages hardly a guest boots: that
    is no success, so such tests fail.
    """
    report = yield
    if call.excinfo and isinstance(error := call.excinfo.value, MirrorOutOfStep) and error.foreign:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"Skipped: {error.message.splitlines()[0]}")
    return report


@pytest.fixture
def paths_that_hide_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these methods say no to what may not be looked at, as they do since Python 3.14."""

    def hiding(real: Callable[..., bool]) -> Callable[..., bool]:
        def answer(path: Path, **options: bool) -> bool:
            try:
                return real(path, **options)
            except OSError:
                return False

        return answer

    for name in ("exists", "is_dir", "is_file"):
        monkeypatch.setattr(Path, name, hiding(getattr(Path, name)))


@pytest.fixture(scope="session")
def booted_guest() -> Iterator[Guest]:
    """One guest, booted once, for all tests that leave it as they found it."""
    from booted import boot

    from lightsleep.lab.boot.machine import Machine

    with boot(Machine(accel="tcg"), "shared", timeout_s=300) as guest:
        yield guest

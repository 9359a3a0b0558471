# SPDX-License-Identifier: GPL-2.0-only
"""Journals that are not to be trusted, and knobs that cannot be set, are refused with a reason."""

import dataclasses
import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sessions import Machine

from lightsleep.errors import LightsleepError
from lightsleep.settings import journalled, restorer

pytest_plugins = "sessions"


# Journals not to be trusted.


@pytest.mark.parametrize(
    "changes",
    [
        ["garbage"],
        [{}],
        [{"knob": "/sys/x", "old": "0"}],
        [{"knob": 7, "old": "0", "new": "1"}],
        [{"knob": "cpu0/disable", "old": "0", "new": "1"}],
        [{"knob": "/etc/passwd", "old": "0", "new": "1"}],
        [{"knob": "/sys/devices/\0", "old": "0", "new": "1"}],
        [None],
    ],
)
def test_garbage_is_refused_and_kept(machine: Machine, changes: list[object]) -> None:
    machine.plant(machine.change(0, "5", "0"), *changes)
    before = machine.journal.read_text()
    with (
        pytest.raises(LightsleepError, match=r"cannot read.*by hand"),
        machine.session(),
    ):
        pass
    assert machine.values() == ["0", "0", "0"]
    assert machine.journal.read_text() == before


@pytest.mark.parametrize("content", [b"\xff\n", b"[]\n", b"\n", b"7\n", b"[" * 99999 + b"\n"])
def test_a_garbage_header_is_refused(machine: Machine, content: bytes) -> None:
    machine.plant()
    machine.journal.write_bytes(content)
    with pytest.raises(LightsleepError, match="cannot read the journal"), machine.session():
        pass


def test_a_way_out_of_the_tree_is_refused(machine: Machine, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("1\n")
    (machine.root / "sys/link").symlink_to(victim)
    for way in ("link", "../victim"):
        with machine.session() as session, pytest.raises(ValueError, match="does not lie under"):
            session.set(machine.root / "sys" / way, "0")
    machine.journal.unlink(missing_ok=True)
    machine.run_dir.joinpath("lock").unlink()
    machine.run_dir.rmdir()
    machine.plant({"knob": str(machine.root / "sys/link"), "old": "0", "new": "1"})
    with pytest.raises(LightsleepError, match="does not lie under"), machine.session():
        pass
    assert victim.read_text() == "1\n"


def test_another_boots_journal_is_not_replayed(machine: Machine) -> None:
    machine.plant(machine.change(0, "5", "0"), boot="00000000-0000-0000-0000-000000000000")
    with machine.session() as session:
        assert machine.values() == ["0", "0", "0"]
        assert session.notes == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_others_can_write_to_is_refused(machine: Machine, mode: int) -> None:
    machine.run_dir.mkdir(parents=True)
    machine.run_dir.chmod(mode)
    with pytest.raises(LightsleepError, match="others can write"), machine.session():
        pass


# Knobs that cannot be set.


def test_a_knob_that_is_missing(machine: Machine) -> None:
    with machine.session() as session, pytest.raises(LightsleepError, match="No such file"):
        session.set(machine.root / "sys/cpu9/disable", "1")
    assert not (machine.root / "sys/cpu9").exists()


def test_a_value_that_does_not_stick(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    write_knob = restorer.write_knob

    def rounds_up(root: Path, knob: str, value: str | None, _held: Sequence[int] = ()) -> None:
        assert value
        write_knob(root, knob, "9" if value == "5" else value)

    kind = dataclasses.replace(restorer.KINDS["knob"], write=rounds_up)
    monkeypatch.setitem(restorer.KINDS, "knob", kind)
    with machine.session() as session, pytest.raises(LightsleepError, match="it reads 9"):
        session.set(machine.knob(0), "5")
    assert machine.values() == ["0", "0", "0"]


def test_no_folder_for_the_journal(machine: Machine) -> None:
    machine.run_dir.parent.mkdir()
    machine.run_dir.write_text("a file")
    with pytest.raises(LightsleepError, match="cannot keep a journal"), machine.session():
        pass


def test_a_start_that_fails_leaves_no_journal(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(journalled, "_append", full)
        with pytest.raises(LightsleepError, match="No space left"), machine.session():
            pass
    assert not machine.journal.exists()
    monkeypatch.setattr(sys, "executable", str(machine.root / "no-python"))
    with (
        pytest.raises(LightsleepError, match=r"cannot start the process that sets .*: No such"),
        machine.session(),
    ):
        pass
    assert not machine.journal.exists()


@pytest.mark.parametrize("content", ["", "header"])
def test_a_journal_without_changes_tells_of_no_killed_command(
    machine: Machine, content: str
) -> None:
    machine.plant()
    if not content:
        machine.journal.write_text("")
    assert journalled.unfinished(machine.root) is None

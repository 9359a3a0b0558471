# SPDX-License-Identifier: GPL-2.0-only
"""What a trace says of functions and tasks, and what is left out because it would be wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scan_trees import plant

from lightsleep.namespaces import MACHINE_NAMESPACES
from lightsleep.periods import formats
from lightsleep.record import keeper, trace_file

SHOWN = (
    "0000000000000000 A fixed_percpu_data",
    "ffffffff81000000 T _stext",
    "ffffffff82000000 D jiffies",
)


@pytest.mark.parametrize("hidden", [False, True])
def test_functions_whose_addresses_are_hidden_are_told_and_left_out(
    hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kallsyms = tmp_path / "kallsyms"
    lines = [f"{'0' * 16}{x[16:]}\n" if hidden else f"{x}\n" for x in SHOWN]
    kallsyms.write_text("".join(lines))
    assert trace_file.symbols(kallsyms) == (b"" if hidden else b"ffffffff81000000 T _stext\n")
    monkeypatch.setattr(keeper, "PROC", tmp_path)
    assert ["counts as a timer" in note for note in keeper._hidden()] == [True] * hidden


@pytest.mark.parametrize(
    ("namespace", "known"),
    [(MACHINE_NAMESPACES["pid"], True), ("pid:[4026532283]", False), (None, True)],
)
def test_no_names_from_another_namespace(
    namespace: str | None, known: bool, tmp_path: Path
) -> None:
    plant(tmp_path, "1/task/1/comm: systemd")
    if namespace:
        (tmp_path / "self/ns").mkdir(parents=True)
        (tmp_path / "self/ns/pid").symlink_to(namespace)
    assert trace_file.task_names(tmp_path) == ({1: b"systemd"} if known else {})


def test_a_process_that_ends_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(tmp_path, "1/task/1/comm: systemd\n7/task/7/comm: gone")

    def ended(real: Callable[[Path], object]) -> Callable[[Path], object]:
        def listing(path: Path) -> object:
            if Path(path) == tmp_path / "7/task":
                raise FileNotFoundError
            return real(path)

        return listing

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, ended(getattr(os, name)))
    assert trace_file.task_names(tmp_path) == {1: b"systemd"}


def test_a_task_cannot_forge_the_list_of_names() -> None:
    names = {1: b"a\n999 x", 2: b"", 3: b" ", 4: b"\n", 5: b"good"}
    assert trace_file.header({}, b"", names).endswith(b"\0\0\0\x001 a?999 x\n4 ?\n5 good\n")


def test_a_trace_says_of_which_architecture_it_is(tmp_path: Path) -> None:
    (tmp_path / "cpu0").write_bytes(b"")
    with (tmp_path / "x.dat").open("wb") as file:
        trace_file.assemble(file, trace_file.header({}, b"", {}), {0: tmp_path / "cpu0"}, "mono")
    found = formats.of(tmp_path / "x.dat").architecture(tmp_path / "x.dat")
    assert found == os.uname().machine

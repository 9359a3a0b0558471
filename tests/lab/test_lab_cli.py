# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep lab`` and what a user can get wrong."""

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from comparisons import made_up
from result_page import command
from rich.console import RenderableType
from rich.status import Status

from lightsleep import sources, terminal
from lightsleep.cli import main
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.lab import cli, experiments
from lightsleep.lab.boot.initramfs import NO_MODPROBE
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.lab.kernels.series import read_topics
from lightsleep.lab.run import facts, protocol
from lightsleep.lab.run.experiment import Experiment


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may get as far as building something."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "file" / "no-cache"))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["compare", "nap"], 2, "no experiment 'nap'; there are: "),
        (["compare", "idle", "--rounds", "5"], 2, "at least 6"),
        (["compare", "idle", "--rounds", "6"], 2, "too few to judge the control in 5 metrics"),
        (["compare", "idle", "--rounds", "many"], 2, "many"),
        (["compare", "idle", "--kernel", "5.4"], 2, "6.12"),
        (["compare", "idle", "--arch", "vax"], 2, "x86_64"),
        (["shell", "--kernel", "backports", "--arch", "ppc64le"], 2, "there are: 6.12, 6.1"),
        (["compare", "idle", "--accel", "xen"], 2, "tcg"),
        (["compare", "idle", "-o", "."], 2, "is a directory"),
        (["compare", "idle", "-o", "/proc/no/x.json"], 1, "cannot write /proc/no/x.json"),
        (["compare", "idle", "-o", "/proc/x.json"], 1, "cannot write /proc/x.json"),
        (["compare", "idle", "-o", "loop"], 1, "loop: Too many levels of symbolic links"),
        (["compare", "nap", "-o", "new/a/b.json"], 2, "no experiment 'nap'"),
        (["compare", "idle", "-o", "new/a/b.json"], 1, "LIGHTSLEEP_CACHE"),
        (["series", "6.12", "/proc/foo"], 1, "cannot write /proc/foo/softirq/0000-cover-letter"),
        (["series", "6.12", "out", "--topic", "nap"], 2, "no topic 'nap'; there are: softirq, "),
        (["series", "6.12", "loop"], 1, "Too many levels of symbolic links"),
        (["compare"], 2, "NAME"),
        (["compare", "idle", "--arms", ","], 2, "names no arm"),
        (["compare", "idle", "--arms", ""], 2, "'' names no arm"),
        (["compare", "idle", "--arms", "stock"], 2, "stock alone cannot be compared"),
        (["compare", "idle", "--arms", "lightsleep"], 2, "stock, with which the others are"),
        (["compare", "idle", "--arms", "stock,nap"], 2, "no arm 'nap'; there are: stock, "),
        (["compare", "smp-mask", "--kernel", "6.1"], 2, "leave out --kernel"),
        (["compare", "smp-mask", "--kernel-tree", "."], 2, "the kernel is what differs"),
        (["compare", "promotion-sibling", "--vcpus", "3"], 2, "cannot form cores of 2 threads"),
        (["compare", "smp-mask", "--vcpus", "7"], 2, "--vcpus: this experiment needs at least 8"),
        (["compare", "measure-rate", "--vcpus", "1"], 2, "this experiment needs at least 2"),
        (["compare", "promotion-sibling", "--vcpus", "2"], 2, "this experiment needs at least 4"),
        (["compare", "idle", "--image", "file"], 2, "--image file needs --modules"),
        (["shell", "--modules", "."], 2, "--modules needs --image"),
        (["shell", "--kernel-tree", ".", "--modules", "."], 2, "--modules belongs to --image"),
        (["shell", "--kernel-tree", ".", "--kernel", "6.1"], 2, "exclude each other"),
        (["shell", "--kernel-tree", "gone"], 2, "'gone' does not exist"),
        (["shell", "--kernel-tree", "."], 1, "is no tree of a kernel"),
        (["compare", "idle", "--patched-tree", "."], 2, "name the kernel without the patch, too"),
        (
            ["compare", "idle", "--claim", "ipis"],
            2,
            "--claim is about the kernel of --patched-tree",
        ),
        (
            ["compare", "idle", "--kernel-tree", ".", "--patched-tree", "."],
            2,
            "--patched-tree and --kernel-tree have one source, .: our modules would",
        ),
        (
            [
                *("compare", "smp-mask", "--arms", "stock,series"),
                *("--kernel", "6.12", "--patched-tree", "."),
            ],
            2,
            "the kernel is what differs: leave out --kernel",
        ),
        (
            ["compare", "idle", "--kernel", "6.12", "--patched-tree", "."],
            1,
            "is no tree of a kernel",
        ),
        (
            ["compare", "smp-mask", "--kernel", "6.12", "--patched-tree", "."],
            1,
            "is no tree of a kernel",
        ),
        (["compare", "idle-poll", "--kernel-tree", "."], 1, "is no tree of a kernel"),
        (["compare", "idle-poll", "--kernel", "7.3-series"], 1, "LIGHTSLEEP_CACHE"),
        (["compare", "./gone.py"], 2, "cannot read gone.py: No such file"),
        (["compare", "./gone"], 2, "an experiment's file ends in .py"),
        (["shell", "--kernel", "5.4"], 2, "6.12"),
        (["shell", "--vcpus", "0"], 2, "1<=x<=64"),
        (["shell", "--vcpus", "4", "--threads", "3"], 2, "cannot form cores of 3 threads"),
        (["compare", "idle"], 1, "LIGHTSLEEP_CACHE"),
        (["shell"], 1, "LIGHTSLEEP_CACHE"),
        (["series", "5.4", "out"], 2, "no series for '5.4'; there are: 6.12, "),
        (["series", "--help"], 0, "BASE OUT"),
    ],
)
def test_bad_input_is_explained(
    arguments: list[str], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["lab", *arguments])
    assert result.exit_code == status
    assert said in result.output
    assert not status or isinstance(result.exception, SystemExit)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--image arm64 --modules modules", 1, "arm64 is a kernel for aarch64, but the guests are"),
        ("--image arm64", 2, "--image arm64 needs --modules"),
        ("--image arm64 --arch aarch64 --modules empty", 1, "empty has no modules.dep"),
    ],
)
def test_a_kernel_that_cannot_be_booted_leaves_no_result(
    arguments: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arm64").write_bytes(bytes(0x38) + b"ARM\x64" + bytes(64))
    for folder in ("modules", "empty"):
        Path(folder).mkdir()
    Path("modules/modules.dep").touch()
    before = sorted(tmp_path.rglob("*"))
    words = ["lab", "compare", "idle", *arguments.split(), "-o", "x.json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == status
    assert said in " ".join(result.output.split())
    assert isinstance(result.exception, SystemExit)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_kernels_built_from_one_source_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers are those of one of them, as built with make O=FOLDER."""
    (tmp_path / "linux").mkdir()
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source").symlink_to(tmp_path / "linux")
    monkeypatch.chdir(tmp_path)
    words = ["--kernel-tree", "without", "--patched-tree", "with"]
    result = CliRunner().invoke(main, ["lab", "compare", "idle", *words])
    assert result.exit_code == 2
    assert "have one source, with/source" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nEXPERIMENT = (\n", "mine.py, line 2: no valid Python: '(' was never closed"),
        ("import nowhere\n", "mine.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        (
            "import sys\nsys.exit('no disk')\n",
            "mine.py, line 2: it ends the program (SystemExit: no disk), and so defines no",
        ),
        ("import sys\nsys.exit()\n", "mine.py, line 2: it ends the program (SystemExit: None)"),
        ("x = 1\n", "mine.py does not define EXPERIMENT: assign an Experiment"),
        ("EXPERIMENT = 1\n", "mine.py has an EXPERIMENT of another type"),
        ("\0", "mine.py"),
        (
            "from lightsleep.lab.run.experiment import Experiment\n"
            "EXPERIMENT = Experiment('t', 'h', (), (), print)\n",
            "mine.py, line 2: ValueError: arms: exactly one arm must have the role baseline",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    result = CliRunner().invoke(main, ["lab", "compare", "./mine.py", "-o", "x.json"])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not Path("x.json").exists()


@pytest.mark.parametrize(
    ("arguments", "cpus", "said"),
    [
        (["overcommit"], 8, "needs more vCPUs than this host has CPUs: there are 8 and 8"),
        (["overcommit", "--vcpus", "2"], 2, "there are 2 and 2: give a larger --vcpus, or run it"),
        (["overcommit"], 7, "LIGHTSLEEP_CACHE"),
        (["overcommit-neighbour"], 4, "there are 4 and 4"),  # the neighbour has as many
        (["overcommit-neighbour"], 3, "LIGHTSLEEP_CACHE"),
        (["idle"], 16, "LIGHTSLEEP_CACHE"),
    ],
)
def test_a_host_that_is_not_overcommitted_is_refused_before_the_first_boot(
    arguments: list[str], cpus: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    result = CliRunner().invoke(main, ["lab", "compare", *arguments])
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


def test_an_experiment_of_ones_own_is_run_as_the_command_line_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = made_up()
    ran: list[tuple[str, Experiment, Machine]] = []

    def compare(name: str, chosen: Experiment, machine: Machine, *_: object) -> CompareResult:
        ran.append((name, chosen, machine))
        return made

    monkeypatch.setattr(protocol, "compare", compare)
    monkeypatch.setattr(cli, "_print_remarks", lambda *_: None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "my_idle.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, field\n"
        "from lightsleep.lab.experiments.idle import EXPERIMENT\n"
        "@dataclass\n"
        "class Mine:\n"
        "    x: int = field(default=1)\n"
    )
    arguments = [str(tmp_path / "my_idle.py"), "--arms", "stock, lightsleep", "--vcpus", "4"]
    arguments += ["--append", "quiet", "--device", "edu", "--pin"]
    assert CliRunner().invoke(main, ["lab", "compare", *arguments]).exit_code == 0
    ((name, chosen, machine),) = ran
    assert name == "my-idle"
    assert [arm.name for arm in chosen.arms] == ["stock", "lightsleep"]
    assert {claim.arm for claim in chosen.claims} == {"lightsleep"}
    assert all(claim.reference == "stock" for claim in chosen.claims)
    assert (chosen.vcpus, machine.append, machine.devices.device) == (4, "quiet", ("edu",))
    assert machine.pin
    again = "./my_idle.py --arms 'stock, lightsleep' --vcpus 4 --append quiet --device edu --pin"
    assert sorted(made.protocol["arguments"]) == sorted(shlex.split(again))
    text = (tmp_path / "my_idle.py").read_bytes()
    assert made.protocol["experiment_sha256"] == hashlib.sha256(text).hexdigest()
    said = command(made)
    assert shlex.split(said)[3:] == [
        *made.protocol["arguments"],
        *["--rounds", "12", "--boots", "3", "--seed", "1"],
    ]
    assert str(tmp_path) not in said
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(("given", "seconds"), [("10m", 600), ("1.5s", 1.5), ("0.02s", 0.02)])
def test_a_recorded_command_takes_the_time_that_it_names(
    given: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[float] = []

    def compare(_: str, __: Experiment, machine: Machine, *___: object) -> CompareResult:
        ran.append(machine.boot_timeout)
        return made

    made = made_up(n=18)
    monkeypatch.setattr(protocol, "compare", compare)
    arguments = ["lab", "compare", "idle", "--boot-timeout", given]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    again = shlex.split(command(made))[1:]
    assert again[again.index("--boot-timeout") + 1].endswith("s")
    assert "experiment_sha256" not in made.protocol  # the commit tells
    assert CliRunner().invoke(main, again).exit_code == 0
    assert ran == [pytest.approx(seconds)] * 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [("", "tcg-icount"), ("--accel auto", "auto"), ("--accel kvm", "kvm")],
)
def test_an_accelerator_that_is_named_counts_even_auto(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[set[str]] = []

    def compare(_: str, chosen: Experiment, machine: Machine, *__: object) -> CompareResult:
        ran.append({x.accel for x in protocol.machines_of(chosen, machine).values()})
        return made_up()

    monkeypatch.setattr(protocol, "compare", compare)
    arguments = ["lab", "compare", "driver-cost", *words.split()]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert ran == [{expected}]


def test_an_experiment_may_have_rounds_and_boots_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[object, ...]] = []

    def compare(*given: object) -> CompareResult:
        ran.append(given[3:5])
        return made_up()

    monkeypatch.setattr(protocol, "compare", compare)
    monkeypatch.setattr(cli, "_print_remarks", lambda *_: None)
    for words in ("", "--rounds 18", "--rounds 16", "--boots 9"):
        given = ["lab", "compare", "record-cost", *words.split()]
        assert CliRunner().invoke(main, given).exit_code == 0
    assert ran == [(9, 3), (18, 3), (16, 8), (9, 9)]
    assert CliRunner().invoke(main, ["lab", "compare", "idle"]).exit_code == 0
    assert ran[-1] == (protocol.ROUNDS, protocol.BOOTS)


def test_a_full_disk_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise LightsleepError("cannot write x.json: No space left on device")

    made = made_up()
    made.environment["host"]["other_load_pct"] = 90.0
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    monkeypatch.setattr(cli, "write_json", full)
    result = CliRunner().invoke(main, ["lab", "compare", "idle", "-o", "x.json"])
    assert result.exit_code == 1
    assert "sched pipe" in result.stdout
    assert "other work took 90 % or more of as much CPU time as the guests can use" in " ".join(
        result.stderr.split()
    )
    assert "cannot write x.json: No space left on device" in result.stderr


def test_a_host_of_few_cpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up()
    made.protocol["few_cpus"] = f"{facts.FEW_CPUS}: the guests have 2"
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    result = CliRunner().invoke(main, ["lab", "compare", "idle"])
    assert "The host had few CPUs: the guests have 2" in " ".join(result.stderr.split())
    made.protocol["no_modprobe"] = f"{NO_MODPROBE}: guests are without"
    result = CliRunner().invoke(main, ["lab", "compare", "idle"])
    assert "The guests had no modprobe: guests are without" in " ".join(result.stderr.split())


def test_a_turn_that_the_host_disturbed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up()
    loads = {arm: [0.4] * made.protocol["runs"] for arm in made.arms}
    made.protocol["other_load_pct"] = loads
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    result = CliRunner().invoke(main, ["lab", "compare", "idle"])
    assert "not quiet" not in result.stderr
    loads[made.arms[1]][2] = 31.2
    loads[made.arms[2]][0] = 7.0
    result = CliRunner().invoke(main, ["lab", "compare", "idle"])
    turns = made.protocol["runs"] * len(made.arms)
    assert (
        f"The host was not quiet: in 2 of {turns} turns other work took over 5 % of as much CPU "
        f"time as the guests can use, 31 % or more in the worst ({made.arms[1]}, round 3)."
    ) in " ".join(result.stderr.split())
    made.environment["accelerator"]["name"] = "tcg-icount"
    assert "not quiet" not in CliRunner().invoke(main, ["lab", "compare", "idle"]).stderr


SAID = "starting over: b: Oops: int3: 0000 [#1] PREEMPT SMP, in [/usr/bin/foo]"


@pytest.mark.parametrize("screen", [True, False])
def test_what_a_kernel_says_in_brackets_is_shown(
    screen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def compare(*given: object) -> CompareResult:
        show = cast(Callable[[str, float | None], None], given[-1])
        show(SAID, None)
        return made

    made = made_up()
    made.protocol["booted_again"] = [SAID]
    update = Status.update

    def seen(status: Status, said: RenderableType) -> None:
        update(status, said)
        with status.console.capture() as captured:
            status.console.print(status.renderable)
        shown.append(captured.get())

    monkeypatch.setattr(Status, "update", seen)
    monkeypatch.setattr(terminal, "has_screen", lambda _: screen)
    monkeypatch.setattr(protocol, "compare", compare)
    result = CliRunner().invoke(main, ["lab", "compare", "idle"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert result.stderr.count(SAID) == (1 if screen else 2)
    assert SAID in shown[0]


def test_a_shell_without_an_input_is_refused_before_anything_is_prepared() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightsleep", "lab", "shell", "--kernel-tree", "."],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "lab shell needs a terminal" in done.stderr


@pytest.mark.parametrize("how", [facts.LITTLE_MEMORY, facts.FEW_CPUS])
def test_too_little_is_told_above_what_is_replaced(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = f"{how}: more is needed"

    def compare(*given: object) -> CompareResult:
        show = cast(Callable[[str, float | None], None], given[-1])
        show(short, None)
        show("booting stock", None)
        return made_up()

    monkeypatch.setattr(terminal, "has_screen", lambda _: True)
    monkeypatch.setattr(protocol, "compare", compare)
    result = CliRunner().invoke(main, ["lab", "compare", "idle"], env={"COLUMNS": "200"})
    assert result.stderr == f"{short}\n"


def test_a_control_that_differs_fails_the_run_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = made_up()
    made.environment["host"]["other_load_pct"] = 0.0
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    arguments = ["lab", "compare", "idle", "-o", str(tmp_path / "x.json")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    (tmp_path / "x.json").unlink()
    samples = made.metrics["sched_pipe_s"].samples
    samples["control"] = [x * 1.1 for x in samples["control"]]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "control is 1.10 times slower than stock" in " ".join(result.stdout.split())
    assert "the control differs from the baseline" in result.stderr
    assert load(tmp_path / "x.json", FORMAT) == made


@pytest.mark.parametrize(
    "arguments",
    [["compare", "idle"], ["shell"], ["build", "6.12-series"], ["series", "6.12", "out"]],
)
def test_an_incomplete_package_says_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "KERNEL", tmp_path / "site-packages/kernel")
    result = CliRunner().invoke(main, ["lab", *arguments])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "site-packages/kernel" in said
    assert "pip install '.[lab]'" in said


def test_what_needs_no_kernel_part_does_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "KERNEL", tmp_path / "site-packages/kernel")
    assert CliRunner().invoke(main, ["lab", "list"]).exit_code == 0


def test_list_names_everything() -> None:
    result = CliRunner().invoke(main, ["lab", "list"])
    assert result.exit_code == 0
    for word in ("idle", "6.12", "6.1", "backports", *ARCHES):
        assert word in result.output


@pytest.mark.parametrize("columns", ["20", "40", None])
def test_list_cuts_no_name(columns: str | None) -> None:
    out = CliRunner().invoke(main, ["lab", "list"], env={"COLUMNS": columns}).output
    for name in (*experiments.names(), "6.12-series-debug"):
        assert name in out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    if columns is None:
        assert "our series of patches, PREEMPT_RT, and CPUs without the tick\n" in out


def test_a_folder_with_mails_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    *_, last = (topic.name for topic in read_topics("6.12"))
    (tmp_path / "out" / last).mkdir(parents=True)
    (tmp_path / "out" / last / "0001-idle.patch").touch()
    result = CliRunner().invoke(main, ["lab", "series", "6.12", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"out/{last} already holds patches" in result.output
    assert [x.name for x in (tmp_path / "out").iterdir()] == [last]
    other = ["lab", "series", "6.12", str(tmp_path / "out"), "--topic", "softirq"]
    assert "LIGHTSLEEP_CACHE" in CliRunner().invoke(main, other).output


def test_a_series_without_a_kernel_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = {name: row for name, row in ARCHES["x86_64"].built.items() if name != "6.12-series"}
    monkeypatch.setitem(ARCHES, "x86_64", replace(ARCHES["x86_64"], built=built))
    result = CliRunner().invoke(main, ["lab", "series", "6.12", str(tmp_path)])
    assert result.exit_code == 1
    assert "no kernel '6.12-series'; there are: " in result.output

# SPDX-License-Identifier: GPL-2.0-only
"""The command as a whole: help, and verbs that lack what they need."""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import ROOT

from lightsleep.cli import VERBS, main
from lightsleep.lab.cli import lab

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from lightsleep.cli import main
main({arguments!r})
"""


def without(blocked: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where these packages cannot be imported."""
    program = PROGRAM.format(blocked=blocked, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_command_has_its_name_however_it_is_run() -> None:
    """The man page of the Debian package is made of this."""
    command = [sys.executable, "-m", "lightsleep", "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert said.startswith("Usage: lightsleep [OPTIONS]")


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        ("numpy", ["report", "x.json"]),
        ("jinja2", ["report", "x.json"]),
        ("qemu", ["lab", "list"]),
        ("qemu", ["lab", "--help"]),
    ],
)
def test_without_the_lab_extra(blocked: str, arguments: list[str]) -> None:
    done = without([blocked], *arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "is not installed" in said
    assert "pip install '.[lab]'" in said
    assert ("apt install" in said) == (blocked != "qemu")


def test_a_result_is_not_read_without_what_checks_it(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"schema": "lightsleep.compare", "version": 1}')
    done = without(["jsonschema"], "report", str(file))
    assert done.returncode == 1
    assert "jsonschema, which is not installed" in " ".join(done.stderr.split())


@pytest.mark.parametrize("blocked", ["lightsleep.report.page", "json"])
def test_a_bug_is_not_taken_for_a_missing_package(blocked: str) -> None:
    done = without([blocked], "report", "x.json")
    assert "Traceback" in done.stderr
    assert "pip" not in done.stderr


def test_help_names_all_commands_of_the_lab() -> None:
    _, _, text = VERBS["lab"]
    assert sorted(re.findall(r"\w+", text.partition(":")[2])) == sorted(lab.commands)
    assert text in CliRunner().invoke(main, ["lab", "--help"]).output


@pytest.mark.parametrize("variable", ["LIGHTSLEEP_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_whose_path_make_cannot_handle_is_refused_before_anything_is_removed(
    variable: str,
) -> None:
    others = {name: value for name, value in os.environ.items() if name != "LIGHTSLEEP_CACHE"}
    done = subprocess.run(
        ["make", "--dry-run", "clean-cache"],
        cwd=ROOT,
        env=others | {variable: "/mnt/My Disk/cache"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "rm " not in done.stdout
    assert "has spaces" in done.stderr


def test_no_make_of_a_test_goes_by_variables_of_the_make_that_runs_the_tests() -> None:
    """make check LIGHTSLEEP_CACHE=FOLDER: clean_cache() would remove what is in that folder."""
    assert not {"MAKEFLAGS", "MAKEOVERRIDES"} & os.environ.keys()


def clean_cache(cache: Path) -> str:
    """Run make clean-cache; return what it says."""
    environment = os.environ | {"LIGHTSLEEP_CACHE": str(cache)}
    argv = ["make", "--silent", "clean-cache"]
    return subprocess.run(
        argv, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_clean_cache_removes_what_has_a_lock_and_nothing_else(tmp_path: Path) -> None:
    for folder in ("photos", "old", ".old.scratch", "grammar-1", "grammar-1.new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    for lock in (".old.lock", ".gone.lock", ".grammar-1.lock"):
        (tmp_path / lock).touch()
    # These would stand for the folder itself, and for the one around it.
    others = {"photos", "..lock", "...lock", ".lock", "mine.lock"}
    for file in others - {"photos"}:
        (tmp_path / file).touch()
    said = clean_cache(tmp_path)
    assert {x.name for x in tmp_path.iterdir()} == others
    assert (tmp_path / "photos/file").exists()
    assert f"{tmp_path} stays" in said


def test_clean_cache_leaves_what_another_command_makes(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / f".{name}.lock").touch()
    with (tmp_path / ".new.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = clean_cache(tmp_path)
    assert f"{tmp_path}/new stays: in use\n" in said
    assert {x.name for x in tmp_path.iterdir()} == {"new", ".new.lock"}


def test_clean_cache_leaves_what_another_command_uses(tmp_path: Path) -> None:
    """Those that were there already, and those that it made."""
    program = (
        "from lightsleep import cache\n"
        "for name in ('old', 'new', 'new'): cache.entry(name, lambda _: None, 1)\n"
        "print('begun', flush=True)\n"
        "input()\n"
    )
    for name in ("old", "unused"):
        (tmp_path / name).mkdir()
        (tmp_path / f".{name}.lock").touch()
    environment = os.environ | {"LIGHTSLEEP_CACHE": str(tmp_path)}
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout
        assert user.stdout.readline() == "begun\n"
        said = clean_cache(tmp_path)
        assert {x for x in said.splitlines() if x.endswith("in use")} == {
            f"{tmp_path}/{name} stays: in use" for name in ("old", "new")
        }
        assert {x.name for x in tmp_path.iterdir()} == {"old", "new", ".old.lock", ".new.lock"}
        user.communicate("\n")
    assert clean_cache(tmp_path) == ""
    assert not tmp_path.exists()


def recipe_of(verb: str, cache: Path) -> str:
    """Return what make would run for a verb."""
    environment = os.environ | {"LIGHTSLEEP_CACHE": str(cache)}
    # As `make test` may run the test.
    words = ["make", "--no-print-directory", "--dry-run", verb]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


def test_clean_cache_leaves_the_environment_that_another_make_uses(tmp_path: Path) -> None:
    argv = shlex.split(recipe_of("test", tmp_path).splitlines()[-1])
    (python,) = [Path(word) for word in argv if word.endswith("/bin/python")]
    python.parent.mkdir(parents=True)
    venv = python.parents[1]
    lock = tmp_path / f".{venv.name}.lock"
    lock.touch()
    python.write_text("#!/bin/sh\necho begun\nread line\n")
    python.chmod(0o755)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout
        assert test.stdout.readline() == "begun\n"
        assert f"{venv} stays: in use\n" in clean_cache(tmp_path)
        assert python.exists()
        test.communicate("\n")
    assert clean_cache(tmp_path) == ""
    assert not venv.exists()


def test_two_makes_do_not_make_one_environment_at_once(tmp_path: Path) -> None:
    """The second one waits, and would otherwise remove what the first one has not finished."""
    recipe = recipe_of("env", tmp_path)
    (venv,) = set(re.findall(rf"{tmp_path}/(venv-\w+)/ready-", recipe))
    lock = tmp_path / f".{venv}.lock"
    # An interrupt leaves a lock, too, without which nobody would remove the rest.
    assert recipe.index(f"exec 9>> {lock}; }}") < recipe.index("-m venv")


@pytest.mark.parametrize(
    ("verbs", "installed"),
    [(["env", "results", "man"], [1, 1, 1]), (["results", "env", "results"], [1, 2, 2])],
)
def test_who_has_all_extras_installs_none(
    verbs: list[str], installed: list[int], tmp_path: Path
) -> None:
    programs = {
        "dpkg-query": "echo install ok installed",
        # The environment that it makes has itself for a Python.
        "python3": 'echo "$*" >> "$LOG"; test "$2" != venv || install -D "$0" "$3/bin/python"',
    }
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    installs = []
    for verb in verbs:
        subprocess.run(
            ["make", "--silent", verb],
            cwd=ROOT,
            env=os.environ
            | {"LIGHTSLEEP_CACHE": str(tmp_path / "cache"), "LOG": str(log)}
            | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        installs.append(len(re.findall("-m pip", log.read_text())))
    assert installs == installed


def test_a_make_that_waits_for_another_says_so(tmp_path: Path) -> None:
    take, _, _ = recipe_of("env", tmp_path).partition("; missing=")
    lock = tmp_path / ".packages.lock"
    for held in (False, True):
        with lock.open("w") as file:
            if held:
                fcntl.flock(file, fcntl.LOCK_EX)
            release = threading.Timer(60, fcntl.flock, (file, fcntl.LOCK_UN))
            release.start()
            with subprocess.Popen(["bash", "-c", take], stderr=subprocess.PIPE, text=True) as make:
                assert make.stderr
                # The lock is let go once make says so, however long it needs to come to it.
                said = make.stderr.readline()
                fcntl.flock(file, fcntl.LOCK_UN)
                said += make.stderr.read()
            release.cancel()
            release.join()
            assert (said, make.returncode) == ("==> waiting for another make: packages\n" * held, 0)


def test_clean_leaves_results_of_hours(tmp_path: Path) -> None:
    kept = {"bench", "check", "false-alarms"}
    for folder in (*kept, "demo", ".hidden", "old-check", "x.egg-info"):
        (tmp_path / "out" / folder).mkdir(parents=True)
        (tmp_path / "out" / folder / "file").touch()
    words = ["make", "--silent", "-f", str(ROOT / "Makefile"), "clean"]
    for left in (kept, {"check"}, set()):
        for folder in kept - left:
            shutil.rmtree(tmp_path / "out" / folder, ignore_errors=True)
        subprocess.run(words, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
        assert {x.name for x in tmp_path.glob("out/*")} == left
        assert all((tmp_path / "out" / folder / "file").exists() for folder in left)
    assert not (tmp_path / "out").exists()
    subprocess.run(words, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("folder", ["", ".", "/", "/tmp"])
def test_clean_empties_no_folder_that_somebody_names(folder: str) -> None:
    words = ["make", "--dry-run", "clean", f"OUT={folder}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "make clean removes only ./out: call it without OUT" in done.stderr
    assert "find" not in done.stdout


def test_clean_empties_what_out_is_a_link_to(tmp_path: Path) -> None:
    for folder in ("large/bench", "large/demo", "build"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "out").symlink_to("large")
    words = ["make", "--silent", "-f", str(ROOT / "Makefile"), "clean"]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert {x.name for x in tmp_path.iterdir()} == {"out", "large"}
    assert {x.name for x in (tmp_path / "out").iterdir()} == {"bench"}


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file that somebody replaces by another while the first who wants it waits."""
    lock, tools = tmp_path / "cache/.packages.lock", tmp_path / "tools"
    for folder in (lock.parent, tools):
        folder.mkdir()
    (tools / "flock").write_text(
        f'#!/bin/sh\n{shutil.which("flock")} "$@" || exit\n'
        f"[ -e {tmp_path}/once ] || {{ rm {lock}; >{lock}; >{tmp_path}/once; }}\n"
    )
    (tools / "flock").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    lock.touch()
    return lock


def test_who_waits_for_a_lock_that_goes_locks_the_new_one(replaced: Path) -> None:
    take, then, _ = recipe_of("env", replaced.parent).partition("; missing=")
    assert then
    script = f"{take}; flock -n {replaced} echo free || echo held"
    said = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert said.stdout == "held\n"


def test_clean_cache_leaves_what_has_another_lock_by_now(replaced: Path) -> None:
    (replaced.parent / "packages").mkdir()
    clean_cache(replaced.parent)
    assert (replaced.parent / "packages").exists()
    clean_cache(replaced.parent)
    assert not replaced.parent.exists()


def test_clean_cache_leaves_no_empty_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "old").mkdir(parents=True)
    (cache / ".old.lock").touch()
    for _ in range(2):
        assert clean_cache(cache) == ""
        assert not cache.exists()


def test_no_line_of_help_is_cut() -> None:
    for arguments in ([], ["lab"]):
        text = CliRunner().invoke(main, [*arguments, "--help"], env={"COLUMNS": "80"}).output
        assert "..." not in text.partition("Commands:")[2]

# SPDX-License-Identifier: GPL-2.0-only
"""The wheel: all that the command needs is in it, and an installation leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked(*folders: str) -> list[str]:
    """Return the files of this tree, uncommitted ones among them, without what a build makes."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = run(*argv, cwd=ROOT).splitlines()
    return [name for name in names if (ROOT / name).exists()]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Build it from a copy in which the modules were built, too."""
    folder = tmp_path / "wheel"
    for name in tracked("lightsleep", "kernel", "pyproject.toml", "README.md", "LICENSE"):
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "copy" / name, follow_symlinks=False)
    for name in ("cpuidle_lightsleep.ko", "Module.symvers", "drivers/cpuidle/poll_limit.o"):
        (folder / "copy/kernel" / name).write_text("built here")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    run(*pip, folder / "copy", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """Install it into a new environment, which borrows this one's other packages."""
    venv.create(tmp_path / "env")
    before = {x.relative_to(tmp_path) for x in (tmp_path / "env").rglob("*")}
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "env/bin/python")]
    run(*pip, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    borrowed = tmp_path / f"env/lib/python{sysconfig.get_python_version()}/site-packages/x.pth"
    borrowed.write_text(sysconfig.get_path("purelib"))
    yield tmp_path
    borrowed.unlink()
    run(*pip, "uninstall", "--quiet", "--yes", "lightsleep", cwd=tmp_path)
    assert {x.relative_to(tmp_path) for x in (tmp_path / "env").rglob("*")} == before


def test_the_wheel_has_every_file_and_its_command_needs_no_clone(
    wheel: Path, installed: Path
) -> None:
    """One test: two would build the wheel twice, in two processes of pytest."""
    names = {x for x in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in x}
    package = {x for x in tracked("lightsleep") if x != "lightsleep/kernel"}
    assert names == package | {f"lightsleep/{x}" for x in tracked("kernel")}

    def lightsleep(*argv: str) -> str:
        return run(installed / "env/bin/lightsleep", *argv, cwd=installed)

    sources = Path(lightsleep("--sources").strip())
    assert sources.is_relative_to(installed / "env")
    assert (sources / "dkms.conf").is_file()
    assert "enable" in lightsleep("--help")
    assert lightsleep("scan", "--json").startswith("{")
    assert "idle" in lightsleep("lab", "list")
    program = (
        "from lightsleep.lab.kernels.series import bases, read_topics\n"
        "from lightsleep.replay.engine import CompiledEngine\n"
        "assert [read_topics(base) for base in bases()]\n"
        "CompiledEngine()\n"
    )
    run(installed / "env/bin/python", "-c", program, cwd=installed)

# SPDX-License-Identifier: GPL-2.0-only
"""enable that is killed, or has no room: what it changed is kept, all of it, or nothing is."""

import errno
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_modules
import pytest
from enabled import LOAD, OPTIONS, done, mode, run, status

from lightsleep.settings import journalled, restorer

pytest_plugins = "enabled"


KILLED = """
import sys
from pathlib import Path
from lightsleep.enable import change
change.enable("lightsleep:fixed:100us", Path(sys.argv[1]), now=True, persist=True)
"""


def test_killed_at_any_moment_it_is_enabled_or_as_before(root: Path) -> None:
    before = fake_modules.snapshot(root)
    rng = random.Random(1)
    journal = root / "run/lightsleep/journal"
    hits = 0
    for number in range(12):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(root)])
        # By the clock, which may be before or after all changes; or in the middle of them.
        while number % 2 and not journal.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05) if number % 2 else rng.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0)
        hits += process.returncode != 0
        fake_modules.wait_for_the_restorer(root)  # after which nothing changes any more
        found = status()
        assert found["active"] == found["at_boot"] == bool(found["enabled"])
        if found["enabled"]:
            assert sorted(status()["files"]) == [f"/{OPTIONS}", f"/{LOAD}"]
            done("disable")
        assert fake_modules.snapshot(root) == before
    assert hits


def test_no_room_for_the_record(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write_text = fake_modules.snapshot(root), Path.write_text

    def full(path: Path, *words: Any, **more: Any) -> int:
        if path.name == restorer.KEPT_SOON:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, *words, **more)

    monkeypatch.setattr(Path, "write_text", full)
    result = run("enable")
    assert result.exit_code == 1
    folder = root / journalled.RUN_DIR
    assert f"cannot keep the record in {folder}: No space left on device" in result.output
    assert "nothing is enabled by this command" in result.output
    assert fake_modules.snapshot(root) == before
    assert sorted(x.name for x in folder.iterdir()) == ["lock"]


KILLED_WHILE_IT_KEEPS = """
import os, signal
from pathlib import Path
step = Path.{step}
def killed(self, *rest, **more):
    if self.name == "{name}":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *rest, **more)
Path.{step} = killed
"""


@pytest.mark.parametrize(
    ("step", "name"),
    [("unlink", "journal"), ("replace", "kept.new"), ("replace", ".lightsleep.conf.new")],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_killed_while_it_keeps_all_is_kept_or_nothing(
    step: str, name: str, earlier: bool, root: Path
) -> None:
    if earlier:
        done("enable", "--persist", "lightsleep:off")
    before, kept = fake_modules.snapshot(root), status()
    script = KILLED_WHILE_IT_KEEPS.format(step=step, name=name) + KILLED
    process = subprocess.run([sys.executable, "-c", script, str(root)])
    assert process.returncode == -signal.SIGKILL
    fake_modules.wait_for_the_restorer(root)
    found = status()
    if step == "replace":
        assert found == kept
        assert fake_modules.snapshot(root) == before
    else:
        assert found["active"]
        assert found["at_boot"]
        assert found["enabled"] == "lightsleep:fixed:100us"
        assert mode(root) == "fixed"
    assert not (root / "run/lightsleep/journal").exists()
    if found["enabled"]:
        done("disable")
    assert run("disable").exit_code == 4
    assert status()["changed"] == []

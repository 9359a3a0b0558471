# SPDX-License-Identifier: GPL-2.0-only
"""A replay on several cores: the same figures, and no process that outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT
from recordings import PIPE

from lightsleep.errors import LightsleepError
from lightsleep.periods.source import open_recording, write_parquet
from lightsleep.replay import parts, words
from lightsleep.replay.intervals import Costs, costs_of
from lightsleep.replay.parts import replay_table
from lightsleep.replay.policies import STOCK


def test_more_processes_give_the_same(tmp_path: Path) -> None:
    table = tmp_path / "pipe.parquet"
    for _ in write_parquet(open_recording(PIPE), table):
        pass
    recording = open_recording(table)
    costs = costs_of(recording.metadata, recording.batches)
    assert costs
    one, two = (replay_table(table, costs, "stock,lightsleep,haltpoll", 4, jobs) for jobs in (1, 2))
    assert one.wakes == two.wakes > 0
    assert words.to_json(one, []) == words.to_json(two, [])


def killed(_part: parts.Part) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_replayed", killed)
    with pytest.raises(LightsleepError, match=r"x\.parquet: a process of the replay was killed"):
        replay_table(
            tmp_path / "x.parquet",
            Costs(None, {}, 1, np.array([], np.int64), 0.0),
            STOCK,
            4,
            jobs=2,
        )


SLOW = """
import os, sys, time
from pathlib import Path
from lightsleep.ending import orderly_end
from lightsleep.replay import parts

def slow(part):
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    parts._replayed = slow
    with orderly_end():
        parts.replay_table(Path("x.parquet"), None, "stock", 4, jobs=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_its_processes_end_with_it(number: signal.Signals, tmp_path: Path) -> None:
    script, begun = tmp_path / "slow.py", tmp_path / "begun"
    script.write_text(SLOW)
    begun.mkdir()
    deadline = time.monotonic() + 60
    with subprocess.Popen(
        [sys.executable, script, begun],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    ) as process:
        while len(workers := [int(x.name) for x in begun.iterdir()]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) != 0
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)

# SPDX-License-Identifier: GPL-2.0-only
"""The shell commands for many machines, where ssh runs what it is told on machines made up."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from paths import ROOT

PAGE = ROOT / "docs/how-to/many-machines.md"

METRICS = "/var/lib/prometheus/node-exporter/lightsleep.prom"
PAYS = "It is too early to tell: 3 polls, and 1,000 are needed."

# Each machine is a folder. One is out of reach; on one, lightsleep is enabled already. What sudo is
# asked for is not of this machine: it runs no tools but these, and removes nothing.
TOOLS = {
    "cat": "echo none",
    "make": "mkdir -p out/deb; touch out/deb/lightsleep_1.deb out/deb/lightsleep-dkms_1.deb",
    "scp": 'for last; do :; done; [ "${last%:}" != gone ] || exit 255; '
    'cp out/deb/*.deb "$ALL/${last%:}"',
    "ssh": '[ "$6" != gone ] || exit 255; cd "$ALL/$6" && exec sh -c "$7"',
    "sudo": 'echo "$@" >> said; [ "$1" = rm ] || exec "${0%/*}/$@"',
    "apt-get": "exit 0",
    "dpkg": "exit 0",
    "systemctl": "exit 0",
    "lightsleep": f"""case "$PWD $1" in
        *"one enable") exit 4 ;;
        *"one status") printf 'lightsleep  active\\n\\n{PAYS}\\n' ;;
        *status) exit 4 ;;
    esac""",
}


def test_the_page_reaches_every_machine_that_is_there(tmp_path: Path) -> None:
    for name, script in TOOLS.items():
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    for host in ("one", "two"):
        (tmp_path / "all" / host).mkdir(parents=True)
    # What an earlier attempt left, and what somebody copied there for something else.
    for name in ("lightsleep_0", "lightsleep-dkms_0", "lightsleep-test-dkms_0"):
        (tmp_path / f"all/two/{name}.deb").touch()
    # What a server said that is not asked any more.
    (tmp_path / "out").mkdir()
    (tmp_path / "out/former.txt").write_text(f"{PAYS}\n")
    (tmp_path / "hosts").write_text("one\ngone\ntwo\n")
    (tmp_path / "first").write_text("one\n")
    shell = re.findall(r"(?m)^    (.*)$", PAGE.read_text())
    lines = [x for x in shell if not re.match(r" *(- |become|tasks|ansible|reg|chan|fail)", x)]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "ALL": str(tmp_path / "all")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    asked = sum(line.startswith("everywhere hosts") for line in lines)
    assert done.stdout.count("gone: 255\n") == asked
    each = "gone: 255\none: 0\ntwo: 0\n      2 status 0\n      1 status 255\n"
    drivers = ["out/one.txt:none", "out/two.txt:none"]
    begin = [each + drivers[0], drivers[1], f"{each}gone: not copied", each]
    assert done.stdout.startswith("\n".join(begin))
    assert "gone: 255\none: 4\ntwo: 0\n" in done.stdout
    said = (tmp_path / "all/two/said").read_text().splitlines()
    assert said[1].endswith("linux-headers-amd64 ./lightsleep_1.deb ./lightsleep-dkms_1.deb")
    assert said[2:] == [
        "lightsleep status",
        "lightsleep enable --persist",
        "systemctl enable --now lightsleep-watch",
        "systemctl disable --now lightsleep-watch",
        f"rm -f {METRICS}",
        "lightsleep disable",
        "apt-get -q -y purge lightsleep lightsleep-dkms",
    ]
    told = [x for x in done.stdout.splitlines() if x.startswith("out/")]
    assert told == [*drivers, f"out/one.txt:{PAYS}"]
    assert [x.name for x in tmp_path.glob("all/*/*.deb")] == ["lightsleep-test-dkms_0.deb"]


def test_what_the_page_removes_is_what_the_unit_writes() -> None:
    unit = (ROOT / "contrib/systemd/lightsleep-watch.service").read_text()
    assert f"--openmetrics {METRICS}\n" in unit


def test_an_upgrade_keeps_the_servers_on_which_lightsleep_runs() -> None:
    source = (ROOT / "kernel/drivers/cpuidle/cpuidle-lightsleep.c").read_text()
    (driver,) = re.findall(r'struct cpuidle_driver driver = \{\n\t\.name = "(\w+)"', source)
    fine, _, _ = PAGE.read_text().partition("current_driver'")[2].partition("Take each server")
    assert f"`{driver}`" in fine

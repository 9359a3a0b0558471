# SPDX-License-Identifier: GPL-2.0-only
"""Pictures of what a terminal shows of try, status and watch.

Nothing is made up: the commands run in a guest of the lab, on a terminal, beside a Redis server
under load. What they print is kept as it is, escape sequences included, and drawn by rich.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import click
from pictures import terminal
from rich.console import Console
from rich.text import Text

from lightsleep.files import write_text
from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.initramfs import INSTALL_DRIVER
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.loads.programs.run import starter
from lightsleep.lab.loads.programs.servers import REDIS

WIDTH = 140
BENCHMARK = "redis-benchmark -t get -q -c 1 -n 10000"
TYPED = {
    "try": f"sudo lightsleep try -m 'rps=([0-9.]+) requests per second:higher' -- {BENCHMARK}",
    "status": "lightsleep status",
    "watch": "lightsleep watch --count 1",
}
"""Name of the picture -> what is typed. All but the first run once lightsleep is enabled."""

INSTALL = f"""\
{INSTALL_DRIVER}
mkdir -p /dev/pts
busybox mount -t devpts devpts /dev/pts
printf '#!/bin/sh\\nexec python3 -m lightsleep "$@"\\n' > /usr/bin/lightsleep
chmod +x /usr/bin/lightsleep
"""
LOAD = f"while :; do {BENCHMARK}; done > /dev/null 2>&1 &\nsleep 5"
TERMINAL = "import pty, sys; sys.exit(pty.spawn(['sh', '-c', sys.argv[1]]) >> 8)"
ENOUGH_S = 900.0


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(folder: Path) -> None:
    """Boot a guest, type the commands there, and draw in FOLDER what each shows."""
    with boot(Machine(accel="tcg", root="programs"), "screens", ENOUGH_S) as guest:
        starter([REDIS])(guest)
        guest.run(["sh", "-ec", INSTALL])
        for name, line in TYPED.items():
            write_text(folder / f"{name}.svg", picture(name, line, typed(guest, line)))
            if name == "try":
                guest.run(["lightsleep", "enable"], timeout_s=ENOUGH_S)
                guest.run(["sh", "-c", LOAD])


def typed(guest: Guest, line: str) -> str:
    """Return what a line prints on a terminal. Raises LightsleepError where it fails."""
    environment = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "50"}
    argv = ["python3", "-c", TERMINAL, line.removeprefix("sudo ")]
    return guest.run(argv, timeout_s=ENOUGH_S, env=environment).stdout


def picture(name: str, line: str, output: str) -> str:
    """Return an SVG of a terminal with a line that was typed, and what came of it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold"), line), soft_wrap=False)
    console.print(Text.from_ansi("\n".join(screen(output)).strip("\n")))
    return terminal(console, name)


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows in the end: progress is drawn over and wiped out."""
    rows = [""]
    for part in re.split(r"(\r?\n|\r|\x1b\[[0-9;?]*[A-Zhl])", output):
        if part.endswith("\n"):
            rows.append("")
        elif part in ("\r", "\x1b[2K"):
            rows[-1] = ""
        elif part == "\x1b[1A":
            rows.pop()
        elif not re.fullmatch(r"\x1b\[[0-9;?]*[A-Zhl]", part):
            rows[-1] += part
    return rows


if __name__ == "__main__":
    main()

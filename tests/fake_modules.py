# SPDX-License-Identifier: GPL-2.0-only
"""modprobe, insmod and rmmod for a machine in a folder, as settings are tested with it.

Each module is a folder in sys/module with its parameters; the drivers bind and go as theirs do. A
module named in the file ``refused`` of the folder cannot be loaded, nor can one in ``denied``,
which is refused as a kernel does that is locked down. One in ``absent`` is not installed, one in
``ignored`` is not loaded, and nobody complains; one in ``busy`` cannot be unloaded. The file
``slow`` holds how many seconds each takes when it is half done. Of modprobe.d, modprobe obeys the
lines 'install'.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import pytest

LOAD = """\
#!/bin/sh
# $0 [-n] NAME-OR-FILE PARAMETER=VALUE...
[ "$1" = -n ] && exit 0
name=$(basename "$1" .ko)
shift
case $0 in */modprobe)
	grep -qsx "$name" ROOT/absent && {
		echo "modprobe: FATAL: Module $name not found in directory /lib/modules/6.12.0" >&2
		exit 1
	}
	line="install $(echo "$name" | tr _ .)"
	command=$(sed -n "s/^$line //p" ROOT/etc/modprobe.d/*.conf 2>/dev/null)
	case $command in '' | *modprobe*) ;; *)
		sh -c "$command" && exit 0
		why="Error running install command '$command' for module $name: retcode $?"
		echo "modprobe: ERROR: ../libkmod/libkmod-module.c:1084 command_do() $why" >&2
		echo "modprobe: ERROR: could not insert '$name': Operation not permitted" >&2
		exit 1 ;;
	esac ;;
esac
grep -qsx "$name" ROOT/refused && { echo "$0: refused: Key was rejected by service" >&2; exit 1; }
grep -qsx "$name" ROOT/denied && { echo "$0: denied: Operation not permitted" >&2; exit 1; }
grep -qsx "$name" ROOT/ignored && exit 0
here=ROOT/sys/module/$name
idle=ROOT/sys/devices/system/cpu/cpuidle
mkdir -p "$here/parameters"
case $name in
cpuidle_lightsleep)
	echo adaptive >"$here/parameters/mode"
	echo 0 >"$here/parameters/poll_limit_us"
	echo 4 >"$here/parameters/wait_weight"
	echo 52000 >"$here/parameters/halt_cost_ns"
	echo lightsleep >"$idle/current_driver" ;;
cpuidle_haltpoll)
	echo N >"$here/parameters/force"
	cat "$idle/current_governor" >ROOT/governor_before
	echo haltpoll >"$idle/current_driver"
	echo haltpoll >"$idle/current_governor" ;;
esac
for parameter; do
	echo "${parameter#*=}" >"$here/parameters/${parameter%%=*}"
done
[ -e ROOT/slow ] && { >ROOT/started; sleep "$(cat ROOT/slow)"; }
echo live >"$here/initstate"
"""

UNLOAD = """\
#!/bin/sh
grep -qsx "$1" ROOT/busy && { echo "rmmod: ERROR: Module $1 is in use" >&2; exit 1; }
[ -d ROOT/sys/module/$1 ] || exit 1
rm -r ROOT/sys/module/$1
[ -e ROOT/slow ] && { >ROOT/started; sleep "$(cat ROOT/slow)"; }
echo none >ROOT/sys/devices/system/cpu/cpuidle/current_driver
if [ -e ROOT/governor_before ] && [ "$1" = cpuidle_haltpoll ]; then
	cat ROOT/governor_before >ROOT/sys/devices/system/cpu/cpuidle/current_governor
	rm ROOT/governor_before
fi
exit 0
"""


def install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put commands for the modules of the machine at ``root`` in front of PATH."""
    folder = root.parent / f"{root.name}-tools"
    folder.mkdir()
    for name, script in {"modprobe": LOAD, "insmod": LOAD, "rmmod": UNLOAD}.items():
        tool = folder / name
        tool.write_text(script.replace("ROOT", str(root)))
        tool.chmod(0o755)
    (root / "sys/devices/system/cpu/cpuidle").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def snapshot(root: Path) -> dict[str, str]:
    """Return every file of the machine but those of lightsleep's own folder in /run.

    Somebody may remove files meanwhile: one that goes after it is listed is not there.
    """
    found = {}
    for file in _listed(root):
        if file.is_file() and not file.is_relative_to(root / "run/lightsleep"):
            with contextlib.suppress(FileNotFoundError):
                found[str(file.relative_to(root))] = file.read_text(errors="replace")
    return found


def _listed(root: Path) -> list[Path]:
    while True:
        with contextlib.suppress(FileNotFoundError):  # a folder goes while it is listed
            return sorted(root.rglob("*"))


def wait_for_the_restorer(root: Path) -> None:
    """Wait until nobody holds the lock; it and its folder may not be there yet."""
    file = root / "run/lightsleep/lock"
    if file.exists():
        with file.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

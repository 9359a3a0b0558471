# SPDX-License-Identifier: GPL-2.0-only
"""The selftests of cpuidle as a kernel tree with the series runs them: make kselftest."""

from __future__ import annotations

from pathlib import Path

import pytest
from intree import copy

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.boot.guest import boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels import series
from lightsleep.lab.kernels.source import kernel_source
from lightsleep.sources import KERNEL

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

FOLDER = "tools/testing/selftests"
NEEDED = (f"{FOLDER}/lib.mk", f"{FOLDER}/*.sh", f"{FOLDER}/kselftest", "scripts/subarch.include")
NAMES = ("idle_poll.sh", "promote.sh", "test-cpuidle_latency.sh")
"""Selftests of the folder, in the order in which they run."""


def installed(base: str) -> Path:
    """Return what ``make kselftest-install TARGETS=cpuidle`` makes, of a tree with the series."""
    host.need("rsync", packages={"rsync": "rsync"})
    patches = series.read_series(base)
    archive = kernel_source(base)

    def build(scratch: Path) -> None:
        tree = scratch / "linux"
        tree.mkdir()
        series.unpack_hooked(archive, patches, tree)
        host.run(
            [
                *("tar", "-xJf", archive, "-C", tree, "--strip-components=1", "--wildcards"),
                *(f"*/{x}" for x in NEEDED),
            ],
            "unpacking the frame of the selftests",
        )
        for patch in patches:
            series.apply(patch, tree)
        host.run(
            [
                *("make", "-s", "-C", tree / FOLDER, "TARGETS=cpuidle"),
                *(f"INSTALL_PATH={scratch / 'installed'}", "install"),
            ],
            "make kselftest-install TARGETS=cpuidle",
        )

    parts = [part for patch in patches for part in patch.contents(KERNEL)]
    return cache.entry(f"kselftest-{cache.digest(base, *parts)}", build, needs_mb=50) / "installed"


def test_the_kernel_runs_our_selftests() -> None:
    tests = installed("6.12")
    assert (tests / "kselftest-list.txt").read_text().split() == [f"cpuidle:{x}" for x in NAMES]
    machine = Machine(accel="tcg-single")
    with boot(machine, "kselftest", 300) as guest:
        for file in sorted(x for x in tests.rglob("*") if x.is_file()):
            to = f"/run/kselftest/{file.relative_to(tests)}"
            guest.run(["mkdir", "-p", str(Path(to).parent)])
            copy(guest, file, to)
            guest.run(["chmod", f"{file.stat().st_mode & 0o777:o}", to])
        modules = "folder=/lib/modules/$(uname -r)/updates; mkdir -p $folder"
        guest.run(
            ["sh", "-ec", f"{modules}; cp {GUEST_MODULES}/test_cpuidle_latency.ko $folder; depmod"]
        )
        # Each script's own lines then go to a file in /tmp.
        run = ["sh", "/run/kselftest/run_kselftest.sh", "--per-test-log"]
        done = guest.run(run, timeout_s=900, check=False)
        logs = {name: guest.read_text(f"/tmp/{name}") for name in NAMES}
    print(done.stdout, done.stderr)
    results = [x for x in done.stdout.splitlines() if "ok " in x[:7]]
    skip = dict.fromkeys(("idle_poll.sh", "promote.sh"), " # SKIP")
    assert results == [
        f"ok {n} selftests: cpuidle: {x}{skip.get(x, '')}" for n, x in enumerate(NAMES, 1)
    ]
    assert "# ok 1 files_are_for_root_only\n" in logs["test-cpuidle_latency.sh"]
    assert "not ok" not in logs["test-cpuidle_latency.sh"]
    assert "# ok 1 leaves_shallow_states # SKIP\n" in logs["promote.sh"]
    assert "# ok 1 does_nothing_when_off # SKIP\n" in logs["idle_poll.sh"]

# SPDX-License-Identifier: GPL-2.0-only
"""What we say runs on a fresh Debian: the quick tests, from a clone, with what they install.

Each release has a Python, and programs, of its own, and pip takes packages that are for that
Python. Unstable shows early what the next release will be like.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import debian_roots
import pytest
from debian_roots import Root
from paths import ROOT

from lightsleep.lab import host

pytestmark = [
    *(pytest.mark.build, pytest.mark.more),
    pytest.mark.skipif(os.geteuid() != 0, reason="runs a package manager's scripts in a chroot"),
]

FRESH = ("ca-certificates", "git", "make", "sudo")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
OF_THE_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", CERTIFICATES)
"""What this machine was told of its network, and a new one would have been told as well."""
OF_APT = re.compile(r"Acquire::(?:https?|Check-\w+|Retries)\b")
ENOUGH_S = 3600.0


def tell_of_the_network(root: Path) -> None:
    """Write down inside how this machine's apt reaches its mirrors."""
    dumped = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True)
    told = [x for x in dumped.stdout.splitlines() if OF_APT.match(x)]
    (root / "etc/apt/apt.conf.d/90network").write_text("\n".join(told) + "\n")


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_the_quick_tests_pass(suite: str, tmp_path: Path) -> None:
    with debian_roots.root(suite, tmp_path, FRESH) as fresh:
        subprocess.run(
            ["git", "clone", "--quiet", ROOT, fresh.path / "root/lightsleep"], check=True
        )
        tell_of_the_network(fresh.path)
        said = quick_tests(fresh)
    assert "passed" in said.splitlines()[-1]


def quick_tests(fresh: Root) -> str:
    """Run them inside, and return what they printed. Raises LightsleepError where one fails."""
    told = [word for x in OF_THE_NETWORK for word in ("--ro-bind-try", x, x)]
    certificates = [f"{x}={CERTIFICATES}" for x in ("PIP_CERT", "SSL_CERT_FILE")]
    environment = [*debian_roots.ENVIRONMENT, *certificates]
    argv = [*environment, "sh", "-ec", "cd /root/lightsleep && make check-quick"]
    binds = ["--dev-bind", str(fresh.path), "/", "--ro-bind", "/sys", "/sys", *told]
    return host.run(host.contained(argv, *binds), "make check-quick", ENOUGH_S)

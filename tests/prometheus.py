# SPDX-License-Identifier: GPL-2.0-only
"""Prometheus of the distribution's package, in the cache: to install the package starts a server.

A server that a test starts listens on the loopback interface alone. It looks every second.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightsleep import cache

PROGRAMS = ("prometheus", "promtool")
"""From Debian 13 on, each has a package of its name; before, the first one's has both."""
HOST = "127.0.0.1"
ENOUGH_S = 60.0

CONFIGURATION = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: node, static_configs: [{{targets: ['{target}']}}]}}]
"""

Ask = Callable[..., Any]
"""Asks the server's API: a path and parameters; returns the ``data`` of the answer."""


def programs() -> Path:
    """Return the folder of PROGRAMS; skips the test where this machine's apt knows no package."""
    found = [shutil.which(name) for name in PROGRAMS]
    if all(found):
        return Path(found[0] or "").parent
    shown = {name: _shown(name) for name in PROGRAMS}
    if not shown[PROGRAMS[0]]:
        pytest.skip(f"apt knows no package {PROGRAMS[0]}")

    def build(scratch: Path) -> None:
        packages = [name for name, text in shown.items() if text]
        # The cache is for root only, and apt's own user would complain.
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages]
        subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
        for package in scratch.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, scratch / "tree"], check=True)
            package.unlink()
        for name in PROGRAMS:
            shutil.copy2(scratch / "tree/usr/bin" / name, scratch / name)
        shutil.rmtree(scratch / "tree")

    return cache.entry(f"prometheus-{cache.digest(repr(shown))}", build, needs_mb=400)


def _shown(package: str) -> str:
    """Return what apt says of a package; empty where it knows none of this name."""
    shown = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True)
    return "" if shown.returncode else shown.stdout.strip()


@contextlib.contextmanager
def page(text: bytes) -> Iterator[str]:
    """Serve metrics as node_exporter does; yields host and port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def server(folder: Path, rules: Path, target: str) -> Iterator[Ask]:
    """Run Prometheus with these rules and one target, its data in ``folder``."""
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(rules=rules, target=target))
    with socket.socket() as free:
        free.bind((HOST, 0))
        address = f"{HOST}:{free.getsockname()[1]}"
    argv: list[str | Path] = [
        programs() / "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:

        def ask(path: str, **parameters: str) -> Any:
            url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            try:
                # A proxy of the environment is not asked for what is on this host.
                direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                with direct.open(url, timeout=ENOUGH_S) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error

        try:
            eventually(lambda: _answers(ask), process, folder / "log")
            yield ask
        finally:
            process.terminate()


def eventually(
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> None:
    """Wait for what must happen; a machine may be slow."""
    deadline = time.monotonic() + ENOUGH_S
    while not condition():
        said = log.read_text() if log else ""
        assert process is None or process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def _answers(ask: Ask) -> bool:
    try:
        return bool(ask("status/buildinfo"))
    except (AssertionError, OSError):
        return False

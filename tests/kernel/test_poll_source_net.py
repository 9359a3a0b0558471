# SPDX-License-Identifier: GPL-2.0-only
"""The host that the guest of poll-source-net asks."""

from __future__ import annotations

import socket
import threading
import time

from lightsleep.lab.experiments.poll_source_net import LATE_US, late


def test_an_answer_that_is_late_is_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def echo() -> None:
            line, _ = listening.accept()
            with line:
                while message := line.recv(100):
                    line.sendall(message)

        threading.Thread(target=echo, daemon=True).start()
        with (
            late(listening.getsockname()[1]) as port,
            socket.create_connection(("127.0.0.1", port)) as asking,
        ):
            for number in range(10):
                start = time.monotonic()
                asking.sendall(b"%d" % number)
                assert asking.recv(100) == b"%d" % number
                assert time.monotonic() - start >= LATE_US / 1e6

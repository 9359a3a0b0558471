# SPDX-License-Identifier: GPL-2.0-only
"""Talking to the kernel module: requests, answers, and answers that are none."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from lightsleep.errors import LightsleepError
from lightsleep.measure.kernel_backend import (
    DRIVER,
    NO_DEVICE,
    CpuGone,
    KernelBackend,
    exchange_with,
)
from lightsleep.measure.model import Batch, Sample
from lightsleep.measure.observation import COLUMNS, parse
from lightsleep.sources import KERNEL

BATCH = Batch("ipi", 0, 1, "2", 200, 50_000, 150_000, 10_000)
REQUEST = "ipi 0 1 0 200 50000 150000 1000000000\n"
COLUMN_NAMES = "launch_ns wake_ns cpu path state entered_ns left_ns\n"
HEADER = REQUEST + COLUMN_NAMES
LINE = "123456789012 123456799999 1 ipi 2 123456705801 0\n"


def backend(answer: str | OSError, root: Path = Path("/nowhere")) -> KernelBackend:
    def exchange(request: str) -> str:
        assert request == REQUEST
        if isinstance(answer, OSError):
            raise answer
        return answer

    return KernelBackend(root, exchange)


def test_a_batch() -> None:
    (sample,) = backend(HEADER + LINE).run(BATCH)
    assert sample == Sample(
        "ipi", 0, 1, "2", 2, "ipi", 83211, 123456789012, 123456799999, 10987, "ok"
    )
    assert sample.valid


def test_columns_are_those_of_the_module() -> None:
    assert " ".join(COLUMNS) + "\n" == COLUMN_NAMES
    source = (KERNEL / "drivers/cpuidle/test-cpuidle_latency.c").read_text()
    assert f'"%s\\n{COLUMN_NAMES[:-1]}\\n", batch.request' in source


def test_both_pages_name_the_errors_that_a_request_returns() -> None:
    drivers = KERNEL / "drivers/cpuidle"
    sources = [drivers / name for name in ("test-cpuidle_latency.c", "latency_device.c")]
    returned = {x for file in sources for x in re.findall(r"-(E[A-Z]+)\b", file.read_text())}
    returned -= {"EFAULT", "ENOENT"}  # a bad pointer; a kernel that the module does not fit
    returned |= {"EPERM"}  # of debugfs
    page = (ROOT / "docs/latency-test.md").read_text()
    assert set(re.findall(r"(?m)^\| `(E[A-Z]+)` \|", page)) == returned
    abi = (KERNEL / "Documentation/ABI/testing/debugfs-cpuidle-latency-test").read_text()
    assert set(re.findall(r"\bE[A-Z]{4,}\b", abi.partition("A write fails with")[2])) == returned
    assert "60 s at most" in page
    assert "60 s at most" in abi


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "garbage",
        REQUEST,
        HEADER.replace("path ", ""),
        HEADER + "12 34 1 ipi\n",
        HEADER + LINE.replace("123456705801", "soon"),
        HEADER + LINE.replace("ipi", "pigeon"),
        HEADER + LINE + LINE[:30],
        HEADER + LINE.replace("123456799999", "123456789011"),
        HEADER,
    ],
)
def test_answers_that_are_none(answer: str) -> None:
    with pytest.raises(LightsleepError, match="the module"):
        backend(answer).run(BATCH)


@given(st.text(max_size=300))
def test_any_text_is_samples_or_an_error(text: str) -> None:
    with pytest.raises(LightsleepError):
        parse(text, REQUEST)
    with contextlib.suppress(LightsleepError):
        parse(HEADER + text, REQUEST)


@pytest.mark.parametrize("other", [REQUEST.replace("0 1", "0 2"), "ipi 0 1\n", "\n"])
def test_an_answer_to_another_request(other: str) -> None:
    with pytest.raises(LightsleepError, match="the module answers another request"):
        backend(other + COLUMN_NAMES + LINE).run(BATCH)


def test_a_module_that_does_not_repeat_the_request_is_of_another_version() -> None:
    with pytest.raises(LightsleepError, match="in the same version"):
        backend(COLUMN_NAMES + LINE).run(BATCH)


def test_a_device_may_wake_through_a_thread() -> None:
    assert backend(HEADER + LINE.replace("ipi", "thread")).run(BATCH)[0].path == "thread"


def test_more_samples_than_asked_for() -> None:
    with pytest.raises(LightsleepError, match="asked the module for 200 samples, got 201"):
        backend(HEADER + LINE * 201).run(BATCH)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (errno.EBUSY, "CPU 1, source ipi: another measurement is running"),
        (errno.EINTR, "was interrupted"),
        (errno.EINVAL, "CPU 1, source ipi: the module refuses the request"),
        (errno.ETIMEDOUT, "too busy to run a thread"),
        (errno.EPERM, "Operation not permitted"),
    ],
)
def test_refusals_say_why(number: int, shown: str) -> None:
    with pytest.raises(LightsleepError) as raised:
        backend(OSError(number, "")).run(BATCH)
    assert shown in raised.value.message
    assert not isinstance(raised.value, CpuGone)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "CPU 1, source ipi: CPU 1, or CPU 0, which wakes it, went offline"),
        ({"source": "timer", "src": 1}, "CPU 1, source timer: CPU 1 went offline"),
        ({"source": "device"}, "or the device is no longer there, or the device owes an answer"),
    ],
)
def test_a_cpu_that_went_offline_ends_only_its_batches(changed: dict[str, Any], said: str) -> None:
    def exchange(_: str) -> str:
        raise OSError(errno.ENODEV, "")

    with pytest.raises(CpuGone, match=said):
        KernelBackend(Path("/"), exchange).run(dataclasses.replace(BATCH, **changed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").touch()
    (tmp_path / "samples").write_text(HEADER + LINE * 4000)
    return tmp_path


def test_exchange_writes_the_request_and_reads_the_whole_answer(folder: Path) -> None:
    assert exchange_with(folder, REQUEST) == HEADER + LINE * 4000
    assert (folder / "run").read_text() == REQUEST


def test_only_one_process_measures_at_a_time(folder: Path) -> None:
    descriptor = os.open(folder / "run", os.O_WRONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(OSError, match="busy"):
        exchange_with(folder, REQUEST)
    os.close(descriptor)
    assert exchange_with(folder, REQUEST)


def test_a_module_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="was unloaded meanwhile"):
        KernelBackend(tmp_path).run(BATCH)


def test_sources(tmp_path: Path) -> None:
    sources = KernelBackend(tmp_path).sources()
    assert sources == {"timer": None, "ipi": None, "store": None, "device": NO_DEVICE}
    assert "unbind it from virtio_rng" in NO_DEVICE
    (tmp_path / DRIVER / "virtio3").mkdir(parents=True)
    assert set(KernelBackend(tmp_path).sources().values()) == {None}

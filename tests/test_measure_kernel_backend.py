# SPDX-License-Identifier: GPL-2.0-only
"""Talking to the kernel module: requests, answers, and answers that are none."""

import contextlib
import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightsleep.errors import LightsleepError
from lightsleep.measure.kernel_backend import (
    COLUMNS,
    CpuGone,
    KernelBackend,
    RunFailed,
    exchange_with,
    parse_answer,
    parse_sources,
)
from lightsleep.measure.model import Batch, Sample

BATCH = Batch("ipi", 0, 1, "2", 200, 50_000, 150_000, 10_000)
REQUEST = "source=ipi src=0 dest=1 state=2 samples=200 min_ns=50000 max_ns=150000 settle_ns=10000\n"
HEADER = "source src dest requested entered path settled_ns launch_ns wake_ns latency_ns verdict\n"
LINE = "ipi 0 1 2 2 ipi 83211 123456789012 123456799999 10987 ok\n"


def backend(answer: str | Exception, folder: Path = Path("/nowhere")) -> KernelBackend:
    def exchange(request: str) -> str:
        assert request == REQUEST
        if isinstance(answer, Exception):
            raise answer
        return answer

    return KernelBackend(folder, exchange)


def test_a_batch() -> None:
    (sample,) = backend(HEADER + LINE).run(BATCH)
    assert sample == Sample(
        "ipi", 0, 1, "2", 2, "ipi", 83211, 123456789012, 123456799999, 10987, "ok"
    )
    assert sample.valid


def test_columns_are_those_of_the_module() -> None:
    assert " ".join(COLUMNS) + "\n" == HEADER


def test_invalid_and_negative_samples() -> None:
    line = "timer 1 1 busy -1 timer 0 200 150 -50 busy-was-idle\n"
    (sample,) = parse_answer(HEADER + line)
    assert not sample.valid
    assert (sample.entered, sample.latency_ns, sample.requested) == (-1, -50, "busy")


def test_a_wake_that_never_came() -> None:
    (sample,) = parse_answer(HEADER + "ipi 0 1 2 -1 - 0 200 0 -200 timeout\n")
    assert sample.path is None
    assert not sample.valid


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "garbage",
        HEADER.replace("path ", ""),
        HEADER + "ipi 0 1 2\n",
        HEADER + LINE.replace("10987", "soon"),
        HEADER + LINE.replace("ipi 0", "smoke 0"),
        HEADER + LINE.replace("2 ipi", "2 pigeon"),
        HEADER + LINE + LINE[:30],
    ],
)
def test_answers_that_are_none(answer: str) -> None:
    with pytest.raises(LightsleepError, match="the module"):
        backend(answer).run(BATCH)


@given(st.text(max_size=300))
def test_any_text_is_samples_or_an_error(text: str) -> None:
    for answer in (text, HEADER + text):
        with contextlib.suppress(LightsleepError):
            assert all(isinstance(x, Sample) for x in parse_answer(answer))


def test_more_samples_than_asked_for() -> None:
    with pytest.raises(LightsleepError, match="asked for 200 samples, got 201"):
        backend(HEADER + LINE * 201).run(BATCH)


@pytest.mark.parametrize(
    ("number", "said", "shown"),
    [
        (errno.EBUSY, "", "CPU 1, source ipi: another measurement is running"),
        (errno.EBUSY, "a batch is running", "a batch is running (another measurement is running"),
        (errno.EINTR, "", "was interrupted"),
        (errno.EINVAL, "min_ns 3: at least 1000", "CPU 1, source ipi: min_ns 3: at least 1000"),
        (errno.EPERM, "", "Operation not permitted"),
    ],
)
def test_refusals_say_why(number: int, said: str, shown: str) -> None:
    with pytest.raises(LightsleepError) as raised:
        backend(RunFailed(number, said)).run(BATCH)
    assert shown in raised.value.message
    assert not isinstance(raised.value, CpuGone)


def test_a_cpu_that_went_offline_ends_only_its_batches() -> None:
    with pytest.raises(CpuGone, match="dest=1: offline"):
        backend(RunFailed(errno.ENODEV, "dest=1: offline")).run(BATCH)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="cannot open") as raised:
        exchange_with(tmp_path / "run", REQUEST)
    assert raised.value.number == errno.ENOENT


def test_exchange_reads_the_whole_answer_back(tmp_path: Path) -> None:
    # A plain file is not the module, but it keeps what is written, and long answers come in parts.
    run = tmp_path / "run"
    run.touch()
    assert exchange_with(run, REQUEST * 4000) == REQUEST * 4000


def test_sources(tmp_path: Path) -> None:
    text = "timer\nipi\nstore\ndevice: no virtio entropy device: is bound\nfuture: thing\n"
    assert parse_sources(text) == {
        "timer": None,
        "ipi": None,
        "store": None,
        "device": "no virtio entropy device: is bound",
    }
    (tmp_path / "sources").write_text(text)
    assert backend("", tmp_path).sources() == parse_sources(text)
    with pytest.raises(LightsleepError, match="cannot read /nowhere/sources"):
        backend("").sources()

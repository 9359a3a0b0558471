# SPDX-License-Identifier: GPL-2.0-only
"""The columns of the table of idle periods.

One row is one idle period of one CPU. Rows of a CPU are in the order of time. docs/record.md
describes each column for a reader of the Parquet file.
"""

from __future__ import annotations

import pyarrow as pa

COLUMNS = pa.schema(
    [
        pa.field("host", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("cpu", pa.int32(), nullable=False),
        pa.field("entered_ns", pa.int64(), nullable=False),
        pa.field("length_ns", pa.int64(), nullable=False),
        pa.field("state", pa.int16(), nullable=False),
        pa.field("sleep_length_ns", pa.int64()),
        pa.field("ended_by", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("waker_comm", pa.string()),
        pa.field("waker_pid", pa.int32()),
        pa.field("wakee_comm", pa.string()),
        pa.field("wakee_pid", pa.int32()),
        pa.field("waking_to_running_ns", pa.int64()),
        pa.field("miss", pa.dictionary(pa.int8(), pa.string())),
        pa.field("next_event_ns", pa.int64()),
        pa.field("waker_cpu", pa.int32()),
    ]
)

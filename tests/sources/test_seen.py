"""What a cut of sensors holds is known without reading it."""

from __future__ import annotations

import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tidegate.sources import Constant, Ramp, Rate, Sensors, Sine

START = 1_700_000_000_000_000


@given(
    rate=st.sampled_from(
        [Constant(1000), Ramp(10, 5000, "10 s"), Sine(mean=500, amplitude=400, period=3), None]
    ),
    low=st.integers(0, 5000),
    rows=st.integers(1, 3000),
)
def test_it_is_what_the_rows_say(rate: Rate | None, low: int, rows: int) -> None:
    source = Sensors(sensors=100, rate=rate)
    ends = [{"start": START, "offset": offset} for offset in (low, low + rows)]
    told = source.seen(*ends)
    times = pc.sort_indices(source.batch(low, low + rows, start=START)["timestamp"])
    micros = source.batch(low, low + rows, start=START)["timestamp"].cast("int64").take(times).to_pylist()
    assert (told.rows, told.newest) == (rows, micros[-1])
    assert (told.oldest_percent, told.median) == (micros[rows // 100], micros[rows // 2])


def test_the_first_cut_has_no_start_and_an_empty_one_no_times() -> None:
    source = Sensors(sensors=100, rate=10)
    assert source.seen(None, {"start": START, "offset": 5}).rows == 5
    assert source.seen({"start": START, "offset": 5}, {"start": START, "offset": 5}).newest is None

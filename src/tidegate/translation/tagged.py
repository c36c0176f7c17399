"""Several frames as one: each row holds the number of its frame, and a struct of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def tagged(frames: Sequence[DataFrame], tag: str, rows: Sequence[str]) -> DataFrame:
    """All rows: `tag`, and for each frame a column named in `rows`, null in the rows of the others."""
    return reduce(
        DataFrame.union,
        (
            frame.select(
                F.lit(number).alias(tag),
                *(
                    (F.struct("*") if other == number else F.lit(None).cast(frames[other].schema)).alias(name)
                    for other, name in enumerate(rows)
                ),
            )
            for number, frame in enumerate(frames)
        ),
    )

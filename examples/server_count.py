"""The server count of the state disaggregation prototype: heavy state per key, rewritten with each record.

Lines of 100,000 servers come in, one per 9 ms as there; three quarters pass the filter, and each
one that does adds to its server's counter and rewrites five entries of about 6.9 kB beside it.

tidegate run examples/server_count.py --for "60 seconds"
"""

import pyarrow as pa
import pyarrow.compute as pc

import tidegate as tg

ENTRY = 6_900
ENTRIES = 5


def count(lines: pa.Table, state: pa.Table, time: object) -> tuple[pa.Table, pa.Table]:
    """Lines per server so far. All keys of a task at once: no loop over lines or servers."""
    new = lines.group_by("server_name").aggregate([("server_name", "count"), ("timestamp", "max")])
    new = new.rename_columns(["server_name", "n", "timestamp"])
    before = state.select(["server_name", "n"]).append_column(
        "timestamp", pa.nulls(len(state), new["timestamp"].type)
    )
    total = pa.concat_tables([new, before.cast(new.schema)]).group_by("server_name")
    total = total.aggregate([("n", "sum"), ("timestamp", "max")])
    total = total.rename_columns(["server_name", "n", "timestamp"])
    # The entries are there to make the state heavy; each one begins with the count that wrote it.
    entry = pc.binary_join_element_wise(
        pc.cast(total["n"], pa.string()), pa.scalar("x" * ENTRY), pa.scalar(":")
    )
    kept = total.drop_columns(["timestamp"])
    for number in range(ENTRIES):
        kept = kept.append_column(f"entry_{number}", entry)
    return total, kept


p = tg.Pipeline("server-count")
lines = p.source(tg.sources.Sensors(sensors=100_000, rate=1000 / 9, keys=tg.sources.Uniform())).select(
    "timestamp", id="1 + id % 100", server_name="concat('server-', id + 1)"
)
counts = (
    lines.filter("id % 4 != 0")
    .key_by("server_name")
    .process(
        count,
        state_schema="n bigint, " + ", ".join(f"entry_{number} string" for number in range(ENTRIES)),
        output_schema="server_name string, n bigint, timestamp timestamp",
    )
)
counts.sink(tg.sinks.Files("out/server-count", format="parquet"))

if __name__ == "__main__":
    p.run()

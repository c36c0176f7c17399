"""A surge: readings of 200,000 sensors are summed up per sensor; after 20 seconds twice as many come in.

The pipeline is rescaled while it runs, and no output is late for it.

tidegate run examples/surge.py --for "60 seconds" --at "25 seconds: nodes=4" --plot out/surge.png
"""

import tidegate as tg

p = tg.Pipeline("surge")
readings = p.source(
    tg.sources.Sensors(
        sensors=200_000, rate=tg.sources.Step([(0, 20_000), (20, 40_000)]), keys=tg.sources.Zipf()
    )
)
summed = readings.key_by("id").aggregate(
    n=tg.agg.count(), mean=tg.agg.mean("value"), most=tg.agg.max("value"), last=tg.agg.last("value")
)
summed.sink(tg.sinks.Files("out/surge", format="parquet"))

if __name__ == "__main__":
    p.run()

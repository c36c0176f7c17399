"""Two groups of sensors under changing load, brought together and checked; the alarms go to the terminal.

tidegate run examples/two_sites.py --for "30 seconds"
"""

import tidegate as tg

p = tg.Pipeline("two-sites")
harbour = p.source(
    tg.sources.Sensors(sensors=2_000, rate=tg.sources.Sine(mean=2_000, amplitude=1_500, period=20), seed=1)
)
airport = p.source(
    tg.sources.Sensors(
        sensors=500, rate=tg.sources.Step([(0, 500), (10, 4_000)]), keys=tg.sources.Zipf(1.2), seed=2
    )
)
everywhere = harbour.with_column("site", "'harbour'").union(airport.with_column("site", "'airport'"))
alarms, calm = everywhere.branch(lambda df: df.value > 34)
alarms.select("site", "id", celsius="round(value, 1)").sink(tg.sinks.Console(rows=5))
calm.sink(tg.sinks.Discard())

if __name__ == "__main__":
    p.run()

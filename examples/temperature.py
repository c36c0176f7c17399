"""The first pipeline: readings above 30 degrees, in kelvin, as Parquet files.

tidegate run examples/temperature.py
"""

import tidegate as tg

p = tg.Pipeline("temperature")
readings = p.source(tg.sources.Sensors(sensors=100_000, rate=100_000))
hot = readings.filter("value > 30").with_column("kelvin", "value + 273.15")
hot.sink(tg.sinks.Files("out/hot", format="parquet"))

if __name__ == "__main__":
    p.run()

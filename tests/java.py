"""Java for what lives for a few tests: it ends before it pays to optimise."""

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DRIVER_JAVA, EXECUTOR_JAVA = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
"""The settings that take such options."""

"""What a user writes: pipelines, streams, windows; validated into a plan before any JVM starts."""

"""The compute behind a pipeline: executors that come and go while it runs."""

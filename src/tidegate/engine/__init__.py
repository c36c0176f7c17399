"""The plan on Structured Streaming: batch runner, admission, watermark, progress."""

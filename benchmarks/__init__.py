"""Side by side with what others offer: `python -m benchmarks.NAME [--quick] [--json]`."""

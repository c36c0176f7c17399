"""Rescales: the route, how it is spread, how state follows it, and what each one did to the latency."""

"""Vectorised operators with state: what a Spark task does with its rows and the state of their keys."""

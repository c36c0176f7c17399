"""Keyed state beside Spark: key groups, the log they are kept in, and the nodes that serve them."""

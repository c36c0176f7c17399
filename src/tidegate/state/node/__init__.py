"""A state node: the process that holds key groups and serves them."""

"""The state nodes of a run, as the driver sees them."""

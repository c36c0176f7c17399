"""State as a Spark task sees it."""

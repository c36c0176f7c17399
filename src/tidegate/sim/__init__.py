"""Seeded simulation: the same decisions as in a real run, under faults by the thousand."""

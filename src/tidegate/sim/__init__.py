"""The real classes of a run over a simulated network, disk and clock, under faults, by the seed."""

"""State tables: their columns, keys and key groups."""

"""One batch: its ticket, its cut and watermark, the protocol that commits it once."""

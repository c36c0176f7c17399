"""Committed batches and generations."""

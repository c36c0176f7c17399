"""Whole-column work that the operators share."""

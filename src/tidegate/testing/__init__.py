"""What users of Tidegate, and Tidegate itself, test with."""

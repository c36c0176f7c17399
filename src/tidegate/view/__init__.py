"""What people and programs see of a running pipeline."""

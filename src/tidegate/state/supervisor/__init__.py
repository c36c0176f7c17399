"""What starts and ends state nodes on a machine for drivers elsewhere."""

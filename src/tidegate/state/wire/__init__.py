"""What travels between driver, tasks and state nodes."""

"""Who may talk to whom in a run."""

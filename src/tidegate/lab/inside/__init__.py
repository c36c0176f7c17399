"""Small programs that run once per host or command, started as files: they import nothing but Python's own
modules, so that ten of them cost little."""

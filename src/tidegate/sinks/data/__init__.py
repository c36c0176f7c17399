"""The data files of a `Files` sink: where they are, and how they are written, read and merged."""

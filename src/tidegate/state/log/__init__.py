"""The durable log: runs of sorted rows, where they are kept, and their compaction."""

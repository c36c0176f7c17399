"""How values look as JSON, wherever a sink writes it."""

from __future__ import annotations

# Spark's default drops the microseconds of a timestamp.
LINES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Options for files, which come with a schema: a null needs no mention."""

VALUES = {**LINES, "ignoreNullFields": "false"}
"""Options for values that must speak for themselves."""

"""Settings of the tests of sources."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow at times; that is no failure. A failing case can be run again from its blob.
settings.register_profile("sources", deadline=None, print_blob=True)
settings.load_profile("sources")

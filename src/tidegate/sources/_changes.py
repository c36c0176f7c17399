"""Invented changes in the form of Wikimedia's stream of recent changes."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from tidegate.sources._words import below, fractions, words
from tidegate.sources.keys import Zipf

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

# 1 June 2024, UTC.
_FIRST_ID, _FIRST_SECOND, _CHANGES_PER_SECOND = 1_700_000_000, 1_717_200_000, 50

_COMMENTS = [
    "",
    "typo",
    "/* External links */ fix link",
    "rv vandalism",
    'quote: "sic"',
    "+cat",
    "tidy\\clean",
    "ref",
]
_LANGUAGES = ("en", "de", "fr", "es", "it", "ru", "ja", "zh", "pl", "pt", "nl", "sv", "ar", "uk", "fa", "he")
_WIKIS = [
    ("www.wikidata.org", "wikidatawiki"),
    ("commons.wikimedia.org", "commonswiki"),
    *((f"{code}.wikipedia.org", f"{code}wiki") for code in _LANGUAGES),
]


def changes(seed: int, first: int, last: int) -> pa.StringArray:
    """The lines of the changes from `first` up to but not including `last`, each with its line end.

    There are 50 per second from 1 June 2024 on. Wikis, titles and users follow Zipf's law.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.arange(first, last)

    def number(values: NDArray[Any]) -> pa.StringArray:
        return pa.array(values).cast(pa.string())

    def drawn(stream: int, name: str, exponent: float) -> pa.StringArray:
        texts = _vocabulary(name)
        return texts.take(pa.array(Zipf(exponent).ids(words(seed, stream, offsets), len(texts))))

    kinds = drawn(1, "type", 1.6)
    old = below(words(seed, 7, offsets), 120_000)
    # Most changes are small: the cube of a number from -1 to 1 is mostly close to 0.
    grown = old + np.rint((2 * fractions(words(seed, 8, offsets)) - 1) ** 3 * 4_000).astype(np.int64)
    both = pc.binary_join_element_wise(
        '{"old":', number(old), ',"new":', number(np.maximum(grown, 0)), "}", ""
    )
    fresh = pc.binary_join_element_wise('{"new":', number(np.maximum(grown, 0)), "}", "")
    is_edit, is_new = (pc.equal(kinds, f',"type":"{kind}"') for kind in ("edit", "new"))
    return pc.binary_join_element_wise(
        '{"id":', number(offsets + _FIRST_ID), kinds, drawn(2, "namespace", 1.5), drawn(3, "title", 0.8),
        drawn(4, "comment", 0.6), ',"timestamp":', number(offsets // _CHANGES_PER_SECOND + _FIRST_SECOND),
        drawn(5, "user", 0.9), drawn(6, "flags", 1.0), ',"length":',
        pc.case_when(pc.make_struct(is_edit, is_new), both, fresh, "null"), drawn(9, "wiki", 1.1), "}\n", "",
    )  # fmt: skip


@lru_cache(maxsize=16)
def _vocabulary(name: str) -> pa.StringArray:
    """All that a field can be, commonest first, as JSON from the comma before its name on."""
    import pyarrow as pa

    fields: dict[str, list[dict[str, object]]] = {
        "type": [{"type": kind} for kind in ("edit", "categorize", "log", "new")],
        "namespace": [{"namespace": number} for number in (0, 14, 6, 1, 3, 2, 4, 10, 5)],
        "title": [{"title": title} for title in _titles()],
        "comment": [{"comment": comment} for comment in _COMMENTS],
        "user": [{"user": user} for user in _users()],
        "flags": [{"bot": bot, "minor": minor} for bot, minor in product((False, True), (False, True))],
        "wiki": [{"server_name": server, "wiki": wiki} for server, wiki in _WIKIS],
    }
    texts = (json.dumps(field, ensure_ascii=False, separators=(",", ":")) for field in fields[name])
    return pa.array(["," + text[1:-1] for text in texts])


def _titles() -> list[str]:
    what = [
        "List of",
        "History of",
        "Geography of",
        "Talk:",
        "Category:",
        "Flag of",
        "Rivers of",
        "User:",
        "Music in",
    ]
    where = [
        "Málaga",
        "Łódź",
        "O'Higgins",
        'the "Old" Town',
        "東京",
        "Reykjavík",
        "Ohio",
        "Québec",
        "Bern",
        "Goa",
    ]
    return [f"{a} {b} ({year})" for year, a, b in product(range(1900, 1960), what, where)]


def _users() -> list[str]:
    names = ["Ada", "Bot", "Curie", "Dijkstra", "Euler", "Franklin", "Gauss", "Hopper", "Ibn Sina", "Ünal"]
    return [f"{name} {number}" for number, name in product(range(500), names)]

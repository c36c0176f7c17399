"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def count(value: float) -> str:
    """A number with three digits that matter.

    >>> count(7), count(999), count(1_250_000), count(43_210), count(999_960)
    ('7', '999', '1.25 M', '43.2 k', '1.00 M')
    """
    if abs(value) < 1000 and value == int(value):
        return str(int(value))
    units = ["", " k", " M", " G", " T"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}{units[0]}"


def amount(value: float) -> str:
    """Bytes.

    >>> amount(7), amount(43_210), amount(1_250_000)
    ('7 B', '43.2 kB', '1.25 MB')
    """
    text = count(value)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def across_hosts(remote: int, total: int) -> str:
    """The part of what went between tasks and state nodes that left its host.

    >>> across_hosts(1, 8)
    'state across hosts 12%'
    """
    return f"state across hosts {remote / total:.0%}"


def backlog(rows: int | None, files: int | None, size: int | None) -> str:
    """What waits in the sources: rows where they can be told, else files.

    >>> backlog(43_210, None, None), backlog(None, 290, 12_300_000), backlog(None, None, None)
    ('43.2 k', '290 files, 12.3 MB', '-')
    """
    if rows is not None:
        return count(rows)
    return "-" if files is None else f"{count(files)} files, {amount(size or 0)}"


def rate(value: float) -> str:
    """Rows per second.

    >>> rate(1_250_000), rate(0), rate(820)
    ('1.25 M/s', '0/s', '820/s')
    """
    return f"{count(value)}/s"


def span(value: float | None) -> str:
    """A time in seconds, in the unit that suits it, in at most nine characters.

    >>> span(0.82), span(1.347), span(412), span(7500), span(100_000), span(0.0004)
    ('820 ms', '1.35 s', '6 m 52 s', '2 h 05 m', '1 d 04 h', '0.4 ms')

    A negative time, which clocks that differ can give, counts as unknown:

    >>> span(None), span(-3.0)
    ('-', '-')
    """
    if value is None or value < 0:
        return "-"
    if value < 0.0095:
        return f"{value * 1000:.1f} ms" if value else "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.2f} s".replace(".00 s", " s")
    if value < 3599.5:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} m {rest:02d} s"
    if value < 24 * 3600 - 30:
        hours, rest = divmod(round(value / 60), 60)
        return f"{hours} h {rest:02d} m"
    days, rest = divmod(round(value / 3600), 24)
    return f"{days} d {rest:02d} h" if days < 100 else f"{days} d"


def sparkline(values: Iterable[float | None], *, width: int, top: float = 0.0, plain: bool = False) -> str:
    """The last `width` values as a line of bars between zero and the largest of them (or `top`).

    Of eight values or more, the largest twentieth does not count for the scale: one spike would flatten all
    the others.

    >>> sparkline([0, 1, 2, None, 4], width=5), sparkline([1, 2, 4], width=3, plain=True)
    ('▁▂▄ █', '.=#')
    """
    steps = "_.-=+*%#" if plain else "▁▂▃▄▅▆▇█"
    shown = list(values)[-width:] if width > 0 else []
    highest = max(top, _scale(sorted(value for value in shown if value is not None))) or 1.0
    return "".join(
        " " if value is None else steps[min(7, int(max(0.0, value) / highest * 7.999))] for value in shown
    )


def _scale(ordered: Sequence[float]) -> float:
    spikes = math.ceil(len(ordered) / 20) if len(ordered) >= 8 else 0
    usual = ordered[-1 - spikes] if ordered else 0.0
    return usual if usual > 0 or not ordered else ordered[-1]

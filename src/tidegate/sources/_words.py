"""Random words without a generator: a word is a pure function of (seed, stream, offset).

A counter goes through the finaliser of splitmix64, so any row can be drawn without its neighbours and
on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def words(seed: int, stream: int, offsets: NDArray[Any]) -> NDArray[np.uint64]:
    """One uniform 64-bit word per offset. `stream` keeps apart what is drawn for one row.

    >>> import numpy as np
    >>> both = words(7, 0, np.arange(100))
    >>> bool((both[40:] == words(7, 0, np.arange(40, 100))).all())
    True
    >>> bool((both == words(7, 1, np.arange(100))).any())
    False
    """
    import numpy as np

    base = _mix(_mix(seed & _MASK) + stream * _GOLDEN & _MASK)
    with np.errstate(over="ignore"):
        word = offsets.astype(np.uint64)
        word *= np.uint64(_GOLDEN)
        word += np.uint64(base)
        word ^= word >> np.uint64(30)
        word *= np.uint64(_MIX_1)
        word ^= word >> np.uint64(27)
        word *= np.uint64(_MIX_2)
        word ^= word >> np.uint64(31)
    return word


def fractions(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Words as numbers in [0, 1), evenly spread, 53 bits each."""
    import numpy as np

    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(drawn: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Words as whole numbers in [0, bound), evenly spread. `bound` is at most 2**31."""
    import numpy as np

    return ((drawn >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def _mix(word: int) -> int:
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ word >> 30) * _MIX_1) & _MASK
    word = ((word ^ word >> 27) * _MIX_2) & _MASK
    return word ^ word >> 31

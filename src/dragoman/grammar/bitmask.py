"""Sets of tokens as bits: bit i of word w stands for token 32 * w + i. Used by grammars and by the sampler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MaskWords = npt.NDArray[np.uint32]


def ids_of(words: MaskWords, most_words: int) -> npt.NDArray[np.intp] | None:
    """The tokens of a set in ascending order; None if more than `most_words` of its words are not 0. Shapes: words [W]."""
    places = np.flatnonzero(words)
    if len(places) > most_words:
        return None
    bits = np.unpackbits(words[places].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    found, offsets = np.nonzero(bits)
    return places[found] * 32 + offsets


def holds_only(words: MaskWords, token_id: int) -> bool:
    """True if the set has only this token. Shapes: words [W]."""
    return int(words[token_id >> 5]) == 1 << (token_id & 31) and int(np.count_nonzero(words)) == 1

"""Keeps what the tests themselves are made of, nearly a million objects, out of every search for garbage.

The product thaws what is frozen when a model goes (`give_back`). In a server that is little, and soon looked through.
Here it would be all the tests, at each of hundreds of models' ends and ever after: minutes. So thawing does nothing here.
The test of thawing takes `thaw`, and freezes again.
"""

from __future__ import annotations

import gc

thaw = gc.unfreeze


def freeze_for_good() -> None:
    """Freeze all that there is now, and leave it so."""
    gc.collect()
    gc.freeze()
    vars(gc)["unfreeze"] = _stay_frozen


def _stay_frozen() -> None:
    """Take the place of `gc.unfreeze`."""

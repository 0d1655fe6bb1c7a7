"""Random numbers by a counter instead of a state: preemption and other requests of a batch cannot change them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_SEED_MASK = (1 << 64) - 1


def philox4x32(counters: UInt64Array, keys: UInt64Array) -> UInt64Array:
    """Four random 32-bit words per row, in 64-bit integers. Shapes: counters [4, R], keys [2, R]; returns [4, R].

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3: Philox4x32-10.
    """
    rounds = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
    schedule = (keys[None] + rounds * _KEY_STEPS[None, :, None]) & _LOW_32  # [rounds, 2, R]
    even, odd = counters[0::2], counters[1::2]
    for round_keys in schedule:
        product = even * _MULTIPLIERS
        # [::-1]: each half is mixed with the product of the other half
        even = (product >> _SHIFT_32)[::-1] ^ odd ^ round_keys
        odd = (product & _LOW_32)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniforms(
    seeds: Sequence[int], sequence_indices: Sequence[int], positions: Sequence[int], purpose: int = 0
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row, with 53 random bits. Seeds are taken modulo 2**64.

    `positions` count generated tokens. Numbers for different purposes are independent.
    """
    keys = np.array([seed & _SEED_MASK for seed in seeds], dtype=np.uint64)
    counters = np.zeros((4, len(seeds)), dtype=np.uint64)
    counters[0], counters[1], counters[2] = positions, purpose, sequence_indices
    words = philox4x32(counters, np.stack([keys & _LOW_32, keys >> _SHIFT_32]))
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    numbers: npt.NDArray[np.float64] = (high * np.float64(1 << 26) + low) * np.float64(2.0**-53)
    return numbers

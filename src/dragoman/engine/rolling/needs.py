"""The memory that the rolling engine will take for a model, by config.json and the headers of its weight files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple, cast

from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import USUAL_RANK, EngineOptionError, EngineSetup, adapter_room
from dragoman.engine.rolling.blocks.block_manager import blocks_for, most_blocks
from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig, SpeculationConfig
from dragoman.engine.rolling.options import RollingOptions
from dragoman.files.model_texts import is_gguf, naming_gguf
from dragoman.models import BLOCK_SIZE, ModelOptions
from dragoman.models.adapters.adapted_model import ModelAdapters
from dragoman.models.adapters.files import most_numbers
from dragoman.models.blocks.step import rows_per_block
from dragoman.models.facts import ModelFacts
from dragoman.models.families import read_model
from dragoman.models.ir.files import is_ir
from dragoman.models.ir.read import read_ir
from dragoman.models.profile import KernelProfile, computes_alike, keeps_file_types, kernel_profile
from dragoman.models.storage.groups import INT4_GROUP_SIZE
from dragoman.models.stored.opening import stored_weights
from dragoman.models.vision.described import is_described, read_seeing_config

_GIB = 1024**3

# Of the free memory after the weights are loaded. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5
# One CPU rarely uses more cache, as its speed bounds the number of useful sequences.
_MOST_AUTOMATIC_BYTES = 8 * _GIB
# Longer sequences gain little from batching. With 386 million parameters, 32 streams gave 1.5 times the tokens of 8 after
# 1,024 tokens, 1.2 times after 4,096, and no more after 8,192.
_MODERATE_TOKENS = 1024
PLENTY_BYTES = int(_MOST_AUTOMATIC_BYTES / _SHARE_OF_FREE_MEMORY)
"""The free memory from which on the cache has its largest automatic size."""

_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
_PACKED = 1.05  # buffers and machine code besides the weights; the share is largest for small models
_STATE_BYTES = 4  # of a number
_U8_OVERHEAD = 8  # bytes of scale and zero point per token and head
_VALUE_STEP = 16  # of which values are a multiple in caches of the library of kernels
_FIRST_KEY_STEP = 64  # bytes, of which a block's first key takes a multiple there


class _ModelSize(NamedTuple):
    """`block_bytes`: of one block of each cache kind."""

    weights: int
    block_bytes: tuple[int, ...]
    facts: ModelFacts
    profile: KernelProfile


def memory_needs(model_dir: Path, options: RollingOptions) -> MemoryNeeds:
    """Raises: EngineOptionError, ModelError, OSError."""
    model = _model_size(model_dir, options.model_options)
    draft = None
    if options.draft_model is not None:
        directory = draft_directory(options.draft_model, model.facts)
        draft = _model_size(directory, options.draft_options)
    refuse_guesses(options, model.facts, draft.facts if draft else None)
    shape = cache_shape(model.facts, model.block_bytes, draft.block_bytes if draft else ())
    context = max_model_len(options, model.facts.max_position)
    least, useful = (shape.bytes_of(num_blocks(options, shape, context, available)) for available in (0, PLENTY_BYTES))
    weights = model.weights + _expected_adapter_bytes(model_dir, options, model.profile)
    return MemoryNeeds(weights, draft.weights if draft else 0, least, useful)


def settled_options(setup: EngineSetup) -> RollingOptions:
    """The options, with the cache's type chosen if they leave it open: u8 if the machine's memory is scarce.

    Not by its free part: an answer's bits must not depend on other programs. Raises: EngineOptionError, ModelError,
    OSError.
    """
    options = RollingOptions.among(setup.options)
    is_told = options.kv_cache_gb is not None or setup.machine_bytes is not None
    if options.kv_dtype != "auto" or options.dtype == "f32" or not is_told:  # f32 weights imply exact arithmetic
        return options
    model = _model_size(setup.model_dir, options.model_options)
    weights = model.weights
    drafted: tuple[int, ...] = ()
    if options.draft_model is not None:
        draft = _model_size(draft_directory(options.draft_model, model.facts), options.draft_options)
        weights, drafted = weights + draft.weights, draft.block_bytes
    is_short = is_scarce(
        cache_shape(model.facts, model.block_bytes, drafted),
        CacheUse(max_model_len(options, model.facts.max_position), options.max_num_seqs, options.max_batch_tokens),
        kv_cache_gb=options.kv_cache_gb,
        available_bytes=max((setup.machine_bytes or 0) - weights, 0),
    )
    return replace(options, kv_dtype="u8") if is_short else options


class ExpectedEngine(NamedTuple):
    facts: ModelFacts
    limits: RollingConfig
    shape: CacheShape
    num_blocks: tuple[int, ...]


def expected_engine(model_dir: Path, options: RollingOptions, memory_bytes: int) -> ExpectedEngine:
    """The engine with `memory_bytes` besides its weights. Raises: EngineOptionError, ModelError, OSError."""
    size = _model_size(model_dir, options.model_options)
    context = max_model_len(options, size.facts.max_position)
    shape = cache_shape(size.facts, size.block_bytes, ())
    limits = limits_of(options, size.facts, size.profile, context)
    return ExpectedEngine(size.facts, limits, shape, num_blocks(options, shape, context, memory_bytes))


def limits_of(options: RollingOptions, facts: ModelFacts, profile: KernelProfile, context: int) -> RollingConfig:
    takes_back = not (facts.convolution_layers or facts.state_layers)
    return RollingConfig(
        max_batch_tokens=options.max_batch_tokens,
        max_num_seqs=options.max_num_seqs,
        prefix_cache=prefix_cache_mode(options, facts, profile),
        max_slowdown=options.max_step_slowdown,
        max_model_len=context,
        repeats_steps=takes_back,
        has_states=bool(facts.state_layers) and not computes_alike(facts, profile),
        speculation=SpeculationConfig(
            options.num_assistant_tokens,
            options.max_ngram_size,
            options.speculative_max_batch,
            pads_steps=takes_back,
        ),
    )


def prefix_cache_mode(options: RollingOptions, facts: ModelFacts, profile: KernelProfile) -> PrefixCacheMode:
    """The blocks that can be reused; by default also those of answers, if decoding writes the same as a prompt."""
    if options.prefix_cache == "auto":
        return "all" if computes_alike(facts, profile) else "prompt"
    return cast(PrefixCacheMode, options.prefix_cache)


def _expected_adapter_bytes(model_dir: Path, options: RollingOptions, profile: KernelProfile) -> int:
    """The most bytes that adapters will take."""
    wanted = options.adapter_options
    if wanted is None or wanted.merges:
        return 0
    number_bytes = 2 if profile.inference_type == "bf16" else 4
    first = number_bytes * sum(most_numbers(path) for _, path in wanted.directories)
    if not options.enable_lora:
        return first
    shapes = stored_weights(model_dir).shapes().items()
    sides = sum(
        sum(shape)
        for name, shape in shapes
        if len(shape) == 2 and re.search(r"\.\d+\.", name) and ".experts." not in name
    )
    return max(first, options.max_loras * (options.max_lora_rank or USUAL_RANK) * number_bytes * sides)


def adapter_slots(options: RollingOptions, adapters: ModelAdapters) -> tuple[int, int]:
    """The number of places for adapters, and their rank. Raises: EngineOptionError."""
    ranks = [adapter.rank for adapter in adapters.first.values()]
    if not options.enable_lora:
        return len(ranks), max(ranks, default=0)
    return adapter_room(ranks, options.max_loras, options.max_lora_rank)


def adapter_bytes(options: RollingOptions, adapters: ModelAdapters) -> int:
    slots, rank = adapter_slots(options, adapters)
    return slots * rank * adapters.row_bytes


def cache_shape(facts: ModelFacts, block_bytes: tuple[int, ...], draft_block_bytes: tuple[int, ...]) -> CacheShape:
    """The shape of the cache: a draft model has as many blocks of all its kinds as the model has of its first."""
    first, *others = block_bytes
    windows = tuple(kind.window for kind in facts.cache_kinds)
    return CacheShape((first + sum(draft_block_bytes), *others), windows, BLOCK_SIZE)


def max_model_len(options: RollingOptions, longest: int) -> int:
    """Raises: EngineOptionError if the configured length exceeds the model's."""
    if options.max_model_len is not None and options.max_model_len > longest:
        raise EngineOptionError("max_model_len", f"must be at most {longest}, the model's context length")
    return options.max_model_len or longest


def num_blocks(options: RollingOptions, shape: CacheShape, context: int, available_bytes: int) -> tuple[int, ...]:
    """The cache's blocks of each kind. Raises: EngineOptionError if there would be none."""
    use = CacheUse(context, options.max_num_seqs, options.max_batch_tokens)
    try:
        return choose_num_blocks(shape, use, kv_cache_gb=options.kv_cache_gb, available_bytes=available_bytes)
    except ValueError as error:
        raise EngineOptionError("kv_cache_gb", str(error)) from error


def draft_directory(path: Path, facts: ModelFacts) -> Path:
    """Raises: EngineOptionError if the directory does not exist, or if this model cannot have drafts."""
    if not path.is_dir() and not is_gguf(path):
        raise EngineOptionError("draft_model", "must be a directory on this machine that holds a model, or a GGUF file")
    window = facts.cache_kinds[0].window
    if window:  # the draft uses the model's block tables
        problem = f"must not be set: all layers of the model have windows (of {window} tokens), so its cache forgets"
        raise EngineOptionError("draft_model", problem)
    return path


def refuse_guesses(options: RollingOptions, facts: ModelFacts, draft: ModelFacts | None) -> None:
    """Raises: EngineOptionError if guessing is requested, but the model or its draft model has states."""
    option, allowed = ("draft_model", "left out") if options.draft_model is not None else ("speculation", "auto or off")
    for model in (facts, draft):
        if model is not None and model.state_layers and options.speculates:
            reason = "has layers with one state for all tokens of a sequence, from which none can be taken back"
            raise EngineOptionError(option, f"must be {allowed}: {model.architecture} {reason}")


def _model_size(model_dir: Path, options: ModelOptions) -> _ModelSize:
    if is_ir(model_dir):
        return _exported_size(model_dir, options)
    with naming_gguf(model_dir):
        model = read_model(read_seeing_config(model_dir), sees=options.sees and is_described(model_dir))
    seeing = () if model.vision is None else model.vision.prefixes
    facts, weight_type = model.facts, options.weight_type
    keeps_rows, stored = keeps_file_types(options), 0.0
    weights = stored_weights(model_dir, keeps_mxfp4=options.keeps_mxfp4, keeps_rows=keeps_rows)
    packed = {} if weight_type == "f32" else weights.packed_bytes()
    profile = kernel_profile(options, has_states=bool(facts.state_layers), smallest_group=weights.smallest_group)
    # of the head, and of separate matrices of values
    careful_type = "int8" if weight_type == "int4" else weight_type
    careful = tuple(f"{name}.weight" for name in ("v_proj", *(layout.head for layout in model.layouts)))
    for name, shape in weights.shapes().items():
        if name.endswith(f"{model.table}.weight"):
            as_head = packed.get(name) or _stored_bytes(shape, careful_type)
            # our kernels use the table's rows in the file or in the head's matrix; OpenVINO's have both
            is_read = profile.kernels == "own" and (model.is_tied or (keeps_rows and name in packed))
            stored += as_head if is_read or model.is_tied else 0
            stored += 0 if is_read else _table_bytes(shape, weight_type)
        elif model.large_table and name.endswith(f"{model.large_table}.weight"):
            as_matrix = packed.get(name) or _stored_bytes(shape, careful_type)
            stored += as_matrix if profile.kernels == "own" else _table_bytes(shape, weight_type)
        elif any(re.match(pattern, name) for pattern in seeing) or not any(
            re.search(pattern, name) for pattern in model.unread
        ):
            stored += packed.get(name) or _stored_bytes(shape, careful_type if name.endswith(careful) else weight_type)
    sizes = block_bytes(facts, profile.kv_type, attends=profile.attends, takes_back=options.takes_back)
    return _ModelSize(int(stored * _PACKED), sizes, facts, profile)


def _exported_size(model_dir: Path, options: ModelOptions) -> _ModelSize:
    exported = read_ir(model_dir, options)
    sizes = block_bytes(exported.facts, exported.profile.kv_type)
    return _ModelSize(int(exported.weights_bytes * _PACKED), sizes, exported.facts, exported.profile)


def block_bytes(
    facts: ModelFacts, cache_type: str, *, attends: bool = False, takes_back: bool = False
) -> tuple[int, ...]:
    """The bytes of one block in each cache kind, over all its layers. `attends`: with the library's attention."""
    total = [0] * len(facts.cache_kinds)
    for layer, attention in facts.attention_layers.items():
        if attention.cache is not None:
            continue
        value_size = -(-attention.value_size // _VALUE_STEP) * _VALUE_STEP if attends else attention.value_size
        head_bytes = BLOCK_SIZE * sum(_head_bytes(size, cache_type) for size in (attention.head_size, value_size))
        if attends and cache_type == "u8":  # the block's first key; the others are stored as differences from it
            head_bytes += -(-2 * attention.head_size // _FIRST_KEY_STEP) * _FIRST_KEY_STEP
        total[facts.cache_kind(layer)] += attention.num_kv_heads * head_bytes
    for state in facts.state_layers.values():
        total[facts.state_kind] += prod(state.state_shape) * _STATE_BYTES
    for convolution in facts.convolution_layers.values():
        num_rows = rows_per_block(convolution, takes_back=takes_back)
        total[facts.convolution_kind] += num_rows * convolution.width * _STATE_BYTES
    return tuple(total)


def _head_bytes(head_size: int, cache_type: str) -> int:
    return head_size + _U8_OVERHEAD if cache_type == "u8" else int(head_size * _BYTES[cache_type])


def _table_bytes(shape: tuple[int, ...], weight_type: str) -> float:
    return prod(shape) * (4 if weight_type == "f32" else 2)


def _stored_bytes(shape: tuple[int, ...], weight_type: str) -> float:
    """A tensor's bytes in the graph: matrices compressed with their scales, the rest as f32."""
    size = prod(shape)
    if len(shape) < 2:
        return size * 4
    columns = max(shape[-1], 1)
    if weight_type == "int4" and not columns % INT4_GROUP_SIZE:
        return size * _BYTES["int4"] + size / INT4_GROUP_SIZE * 2.5
    if weight_type in ("int8", "int4"):
        return size * _BYTES["int8"] + size / columns * 3
    return size * _BYTES[weight_type]


# --- the cache's size in blocks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Bytes of a block and visible tokens (0 = all) of each cache kind."""

    block_bytes: tuple[int, ...]
    windows: tuple[int, ...]
    block_size: int

    def bytes_of(self, num_blocks: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(num_blocks, self.block_bytes, strict=True))


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The expected sequences: their length, the number that runs at once, and the tokens of a step."""

    max_model_len: int
    max_num_seqs: int
    max_batch_tokens: int


def choose_num_blocks(
    shape: CacheShape, use: CacheUse, *, kv_cache_gb: float | None, available_bytes: int
) -> tuple[int, ...]:
    """Blocks of each kind: what fits into `kv_cache_gb`, or else enough for `max_num_seqs` sequences of full length.

    Bounded by a share of the available memory, but for one sequence of full length at least. Kinds with a window get at
    most as many blocks as the first kind, and at most an equal part of the memory. Raises: ValueError if not even one
    block fits.
    """
    wanted = [_wanted(window, shape.block_size, use, use.max_num_seqs) for window in shape.windows]
    if kv_cache_gb is not None:
        size = int(kv_cache_gb * _GIB)
        if size < sum(shape.block_bytes):
            block = sum(shape.block_bytes)
            raise ValueError(f"kv-cache-gb {kv_cache_gb} is smaller than one block ({block} bytes)")
        return _divided(size, shape.block_bytes, [size, *wanted[1:]])
    affordable = int(min(available_bytes * _SHARE_OF_FREE_MEMORY, _MOST_AUTOMATIC_BYTES))
    counts = _divided(affordable, shape.block_bytes, wanted)
    least = [_wanted(window, shape.block_size, use, 1) for window in shape.windows]
    raised = list(map(max, counts, least))
    excess = shape.bytes_of(raised) - max(affordable, shape.bytes_of(least))
    for kind, size in enumerate(shape.block_bytes):  # one kind needed more, so others have too much
        surplus = max(min(raised[kind] - least[kind], -(-excess // size)), 0)
        raised[kind] -= surplus
        excess -= surplus * size
    return tuple(raised)


def is_scarce(shape: CacheShape, use: CacheUse, *, kv_cache_gb: float | None, available_bytes: int) -> bool:
    """True if more cache would help `max_num_seqs` sequences of moderate length, or a single one of full length."""

    def bytes_of(length: int, num_sequences: int) -> int:
        lengths = replace(use, max_model_len=min(use.max_model_len, length))
        return shape.bytes_of([_wanted(window, shape.block_size, lengths, num_sequences) for window in shape.windows])

    longest, moderate = bytes_of(use.max_model_len, 1), bytes_of(_MODERATE_TOKENS, use.max_num_seqs)
    if kv_cache_gb is not None:
        return max(longest, moderate) > int(kv_cache_gb * _GIB)
    affordable = available_bytes * _SHARE_OF_FREE_MEMORY
    return longest > affordable or moderate > max(min(affordable, _MOST_AUTOMATIC_BYTES), longest)


def _wanted(window: int, block_size: int, use: CacheUse, num_sequences: int) -> int:
    longest = blocks_for(use.max_model_len, block_size)
    most = most_blocks(window, block_size)
    if not window or longest <= most:
        return longest * num_sequences
    pieces = 2 * blocks_for(use.max_batch_tokens, block_size)  # of prompts: they get half of what one window leaves
    return most * num_sequences + pieces


def _divided(total: int, block_bytes: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The blocks of each kind within `total` bytes, none more than needed."""
    part = total // len(block_bytes)
    first, *others = wanted
    most = [first, *(min(count, max(part // size, 1)) for count, size in zip(others, block_bytes[1:], strict=True))]
    level = _level(total, block_bytes, most)
    return tuple(min(count, level) for count in most)


def _level(total: int, block_bytes: Sequence[int], most: Sequence[int]) -> int:
    """The largest equal number of blocks, up to each kind's bound, that fits `total` bytes."""
    unfilled = sum(block_bytes)
    for count, size in sorted(zip(most, block_bytes, strict=True)):
        if count * unfilled >= total:
            return total // unfilled
        total -= count * size
        unfilled -= size
    return max(most)

"""Decides by this machine's processor how to store, compile and run a model, once for each; does not benchmark."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import openvino as ov

from dragoman.kernels.native import LibraryMissing, library
from dragoman.kernels.presence import BUILD, BUILD_CLONE, STALE, is_stale
from dragoman.models.config import ModelError
from dragoman.models.facts import ModelFacts, StateFacts
from dragoman.models.storage.constants import StoredType, WeightFormat, WeightType

logger = logging.getLogger(__name__)

KvType = Literal["auto", "bf16", "f16", "f32", "u8"]
Kernels = Literal["own", "openvino"]

COMPRESSED: tuple[WeightType, ...] = ("int8", "int4")
CPU_INFO = Path("/proc/cpuinfo")
BLOCK_SIZE = 32  # tokens in a KV block: fixed by the CPU plugin's kernels

_AT_HWCAP, _HWCAP_SVE = 16, 1 << 22  # Linux, its arm64/elf_hwcaps

# The most columns of activations that OpenVINO's kernels quantise together. With 32, their default, prompts take a
# quarter longer, and with larger groups again. Smaller groups must be multiples of the step, or few rows are computed
# otherwise.
_LARGEST_GROUP, _GROUP_STEP = 128, 32

# Values of OV_CPU_MAX_ISA that hold the kernels to instructions without integer dot products.
_WITHOUT_DOT_PRODUCTS = ("SSE41", "AVX", "AVX2", "AVX512_CORE")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options for storing and running a model. `num_threads` None = all cores; `cache_dir` None = build at every start.

    `cache_max_gb`: of all graphs in that directory, 0 = none is kept. `has_neighbours`: other models compute in this
    process at the same time (see `runtime.memory`). `takes_back`: computed tokens may be taken back, as those
    of refused drafts. `sees`: a tower is loaded, if there is one. `picture_changes`: a JSON object with keys that
    replace those of preprocessor_config.json. `asks_for_type`: the operator chose the weights' type.
    """

    weight_type: WeightType = "int8"
    kv_type: KvType = "auto"
    num_threads: int | None = None
    cache_dir: Path | None = None
    cache_max_gb: float = 64.0
    has_neighbours: bool = False
    takes_back: bool = False
    sees: bool = True
    picture_changes: str = "{}"
    asks_for_type: bool = False
    adapters: AdapterOptions | None = None
    kernels: Kernels | Literal["auto"] = "auto"

    @property
    def keeps_mxfp4(self) -> bool:
        """True if no other type is asked for, and no adapter merged into matrices of MXFP4."""
        merges = self.adapters is not None and self.adapters.merges
        return self.weight_type == "int8" and not self.asks_for_type and not merges


@dataclass(frozen=True, slots=True)
class Processor:
    """This machine's processor. `capabilities`: the runtime's words for its kinds of arithmetic.

    Without `has_integer_dot_products` (x86 without VNNI) kernels unpack int8 weights to f32. `has_tiles`: AMX, for
    which only the plugin has kernels. Without `has_paged_attention` (no SVE, no AVX2) there are none.
    """

    name: str
    capabilities: tuple[str, ...]
    is_arm: bool = False
    has_integer_dot_products: bool = True
    has_paged_attention: bool = True
    has_tiles: bool = False

    @property
    def has_bf16(self) -> bool:
        return "BF16" in self.capabilities


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The way to run a model on a processor. `inference_type`, `kv_type`: of arithmetic, and of the cache.

    `activation_group`: columns of activations that OpenVINO's kernels quantise together, 0 = they do not. `kernels`:
    those that compute products. `attends`: the library's attention is used, whose caches are its own.
    """

    processor: Processor
    inference_type: str
    kv_type: str
    weights: WeightFormat
    activation_group: int
    kernels: Kernels = "openvino"
    attends: bool = False
    block_size: int = BLOCK_SIZE

    @property
    def is_exact(self) -> bool:
        """True if weights, arithmetic and cache are f32: what is computed equals the checkpoint's own arithmetic."""
        return self.weights.stored_type == self.inference_type == self.kv_type == "f32"

    @property
    def properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.inference_type,
            "KV_CACHE_PRECISION": self.kv_type,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.activation_group,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if self.kv_type == "u8":  # by channel, a key's quantisation would depend on how its prompt was chunked
            properties["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
        return properties


@cache
def this_processor() -> Processor:
    core = ov.Core()
    name, capabilities = (core.get_property("CPU", key) for key in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES"))
    is_arm = platform.machine() in ("aarch64", "arm64")
    lacks_attention = _lacks_scalable_vectors() if is_arm else lacks_avx2()
    lacks_dot_products = lacks_vnni() or most_instructions() in _WITHOUT_DOT_PRODUCTS
    return Processor(
        str(name),
        tuple(capabilities),
        is_arm,
        not lacks_dot_products,
        not lacks_attention,
        "amx_int8" in _flags(CPU_INFO).split(),
    )


def most_instructions() -> str:
    """The limit that OV_CPU_MAX_ISA sets for OpenVINO's kernels; "" = none."""
    return os.environ.get("OV_CPU_MAX_ISA", "").upper()


def kernel_profile(
    options: ModelOptions,
    processor: Processor | None = None,
    *,
    has_states: bool = False,
    smallest_group: int | None = None,
    is_exported: bool = False,
) -> KernelProfile:
    """The profile of a model with these options. Raises: ModelError if a precision is not supported on that processor.

    `has_states`: layers have states, which are computed in f32: one of bf16 cannot fade by less than a part in 512.
    `smallest_group`: the fewest columns that share a scale in a packed matrix: kernels are slow where activations are
    quantised in larger groups than weights.
    """
    processor = processor or this_processor()
    if not processor.has_paged_attention:
        lacking = "Arm processor has no SVE" if processor.is_arm else "processor has no AVX2"
        raise ModelError(f"this {lacking}, and the attention kernels need it; `dragoman doctor` tells what it has")
    inference_type, kv_type = _precisions(options, processor, has_states)
    kernels = "openvino" if is_exported else _kernels(options, processor, has_states=has_states)
    weights = replace(
        _weight_format(options, processor, kernels),
        keeps_half=inference_type == "bf16",
        keeps_mxfp4=options.keeps_mxfp4,
    )
    return KernelProfile(
        processor=processor,
        inference_type=inference_type,
        kv_type=kv_type,
        weights=weights,
        activation_group=_activation_group(options, smallest_group),
        kernels=kernels,
        attends=_attends(options, processor),
    )


def _attends(options: ModelOptions, processor: Processor) -> bool:
    if options.kernels == "openvino" or _lacks_library():
        return False
    is_chosen = options.kernels == "own" or not (processor.is_arm or processor.has_tiles)
    return is_chosen and library().attends


def keeps_file_types(options: ModelOptions) -> bool:
    is_default = options.weight_type in COMPRESSED and not options.asks_for_type
    return is_default and _kernels(options, this_processor()) == "own"


def _kernels(options: ModelOptions, processor: Processor, *, has_states: bool = False) -> Kernels:
    """The kernels that compute products; ours have no f32. Raises: ModelError if ours are asked for and missing.

    Ours widen bf16 and f16 to f32. Where the plugin multiplies them in bf16, it computes prompts faster: 290 to 380
    GFLOP/s against 180 to 210 on a core with AVX-512. Elsewhere it keeps such weights as f32 in memory: one row then
    takes it 1.5 to 1.9 times as long as ours.
    """
    reason = _lacks_library()
    if options.kernels == "own" and reason:
        raise ModelError(f"kernels 'own' are not here: {reason}; must be auto or openvino, or {BUILD}")
    if options.weight_type == "f32":
        return "openvino"
    if options.kernels != "auto":
        return options.kernels
    if reason or processor.is_arm or processor.has_tiles:
        return "openvino"
    if options.weight_type in COMPRESSED:
        return "own"
    return "openvino" if _precisions(options, processor, has_states)[0] == "bf16" else "own"


def _lacks_library() -> str:
    try:
        library()
    except LibraryMissing as error:
        return str(error)
    return ""


def uses_library(facts: ModelFacts, profile: KernelProfile) -> bool:
    return profile.attends or profile.kernels == "own" or facts.needs_library


def computes_alike(facts: ModelFacts, profile: KernelProfile) -> bool:
    """True if a token's keys, values and states have the same bits decoded as in a prompt, however that is cut.

    Not measured on Arm, nor with matrix tiles. OpenVINO's kernels compute packed weights, and states, otherwise for
    few rows.
    """
    processor = profile.processor
    is_measured = profile.attends and not (processor.is_arm or processor.has_tiles)
    has_other_products = profile.kernels != "own" and profile.weights.stored_type not in ("f32", "bf16", "f16")
    has_other_states = any(isinstance(layer.mixer, StateFacts) for layer in facts.layers)
    return is_measured and not has_other_products and not has_other_states


def require_library(architecture: str) -> None:
    """Raises: ModelError if our kernels are not here, which alone compute convolutions and states."""
    if reason := _lacks_library():
        raise ModelError(
            f"{architecture} has layers that only dragoman's own kernels compute, and they are not here: {reason}; {BUILD}"
        )


@cache
def tell_library(kernels: Kernels | Literal["auto"]) -> None:
    reason = _lacks_library() if kernels == "auto" else ""
    if reason:
        logger.info("OpenVINO's kernels are used; dragoman's own are not here: %s; %s", reason, BUILD)
    elif kernels != "openvino" and is_stale():
        logger.warning("%s; %s", STALE, BUILD_CLONE)


def _activation_group(options: ModelOptions, smallest_group: int | None) -> int:
    """The largest group of activations that fills weights' groups; with a rest, kernels may compute something else."""
    if options.weight_type == "f32":
        return 0
    sizes = [size for size in range(1, _LARGEST_GROUP + 1) if (smallest_group or _LARGEST_GROUP) % size == 0]
    return max([size for size in sizes if size % _GROUP_STEP == 0] or sizes)


def profile_departures(options: ModelOptions, profile: KernelProfile) -> tuple[str, ...]:
    if options.kernels == "own" and profile.kernels != "own":
        message = f"kernels own attend, and multiply int8, int4, bf16 and f16 weights, not {options.weight_type}"
        return (message,)
    return ()


def _precisions(options: ModelOptions, processor: Processor, has_states: bool) -> tuple[str, str]:
    """Inference and KV precision. f32 weights mean f32 everywhere (reference precision)."""
    is_exact = options.weight_type == "f32"
    may_round = processor.has_bf16 and not is_exact and not has_states
    inference = "bf16" if may_round and not processor.is_arm else "f32"
    allowed = {"bf16": ("bf16", "u8"), "f32": ("f16", "f32", "u8")}[inference]
    if processor.is_arm:
        allowed = ("f32", "u8")  # its attention kernels have only these
    automatic = "f32" if is_exact else allowed[0]
    kv_type = automatic if options.kv_type == "auto" else options.kv_type
    if kv_type not in allowed:
        raise ModelError(f"kv-dtype {kv_type!r} does not go with {inference} inference; allowed: {', '.join(allowed)}")
    return inference, kv_type


def _weight_format(options: ModelOptions, processor: Processor, kernels: Kernels) -> WeightFormat:
    compresses = options.weight_type in COMPRESSED
    if kernels == "own":
        return WeightFormat(
            options.weight_type,
            careful_type="int8" if compresses else None,
            is_ours=True,
            keeps_file_types=compresses and not options.asks_for_type,
        )
    if not compresses:
        return WeightFormat(options.weight_type)
    eight_bits: StoredType = "int8" if processor.has_integer_dot_products else "int8_symmetric"
    return WeightFormat("int4" if options.weight_type == "int4" else eight_bits, careful_type=eight_bits)


def _lacks_scalable_vectors() -> bool:
    getauxval = getattr(ctypes.CDLL(None), "getauxval", None)
    if getauxval is None:
        return False
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return not getauxval(_AT_HWCAP) & _HWCAP_SVE


def lacks_vnni(cpu_info: Path = CPU_INFO) -> bool:
    """True if this is surely an x86 processor without VNNI."""
    flags = _flags(cpu_info)
    return bool(flags) and "vnni" not in flags


def lacks_avx2(cpu_info: Path = CPU_INFO) -> bool:
    """True if this is surely an x86 processor without AVX2."""
    flags = _flags(cpu_info)
    return bool(flags) and "avx2" not in flags.split()


def _flags(cpu_info: Path) -> str:
    """The feature flags of an x86 processor, as Linux lists them; "" = another processor, or they are not listed."""
    try:
        with cpu_info.open(encoding="ascii", errors="replace") as lines:
            return next((line for line in lines if line.startswith("flags")), "")  # "Features" elsewhere than on x86
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Names and paths of the first adapters. `merges`: the only one is merged into the weights.

    `takes_more`: others may come while the model runs, for any linear layer.
    """

    directories: tuple[tuple[str, Path], ...] = ()
    merges: bool = False
    takes_more: bool = False

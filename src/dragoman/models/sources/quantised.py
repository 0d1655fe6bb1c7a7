"""Finds the layout of a quantised checkpoint, and refuses unknown settings. Called on any thread.

Families ask for matrices by their names in checkpoints that are not quantised, and do not know layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dragoman.models.config import Config, ModelError, read_json, shown
from dragoman.models.sources.compressed_tensors import CompressedTensors
from dragoman.models.sources.fp8 import Fp8
from dragoman.models.sources.gptq import Awq, Gptq
from dragoman.models.sources.mxfp4 import Mxfp4

Layout: TypeAlias = Awq | CompressedTensors | Fp8 | Gptq | Mxfp4
"""One way of keeping quantised matrices. `label`: its name for people. `unread`: patterns of needless tensors.

`find`: the packed matrices, by the names that families ask for.
"""

OF_FAMILIES = ("mxfp4",)
"""The quant_methods of which only some families have checkpoints."""

_LAYOUTS: dict[str, Any] = {
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": Fp8,
    "fp8": Fp8,
    "gptq": Gptq,
    "sparseml": CompressedTensors,  # its first name
}
QUANTISATION_KEYS = ("quantization_config", "compression_config")
"""The keys of config.json, or of its part about text, that describe it."""

_AUTO_ROUND = ("auto-round", "auto_round", "intel/auto-round")

_ITSELF = "use the checkpoint that is not quantised, which is compressed here (--dtype), or one in AWQ or GPTQ"
_REFUSED = {
    "bitsandbytes": f"its 4-bit floats and outliers have no kernels on processors; {_ITSELF}",
    "modelopt": f"of its formats only fp8 could be read, and is not; {_ITSELF}",
    "nvfp4": f"its 4-bit floats have no kernels on processors; {_ITSELF}",
}

# Files beside config.json in which the first tools describe their checkpoints.
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def read_layout(raw_config: Mapping[str, Any], of_family: tuple[str, ...] = OF_FAMILIES) -> Layout | None:
    """The layout by config.json, None = there is none. `of_family`: of `OF_FAMILIES`. Raises: ModelError."""
    described = _described(raw_config)
    return None if described is None else _layout(described, of_family)


def find_layout(
    model_dir: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False
) -> tuple[Layout | None, Path | None]:
    """The layout of a directory, and the file that describes it if that is not config.json. Raises: ModelError."""
    mxfp4 = Mxfp4(keeps_mxfp4, bits=4 if keeps_rows else 8)
    path = model_dir / "config.json"
    described = _described(read_json(path)) if path.exists() else None
    if described is not None:
        return _layout(described, OF_FAMILIES, mxfp4), None
    for name, method in _OLD_FILES.items():
        if (model_dir / name).exists():
            described = Config({"quant_method": method, **read_json(model_dir / name)}, name)
            return _layout(described, OF_FAMILIES, mxfp4), model_dir / name
    return None, None


def _described(raw_config: Mapping[str, Any]) -> Config | None:
    places = [Config(raw_config)]
    for name in ("text_config", "llm_config"):
        if isinstance(text := raw_config.get(name), dict):
            places.append(Config(text, f"config.json {name}"))
    found = [part for place in places for key in QUANTISATION_KEYS if (part := place.part(key)) is not None]
    if not found:
        return None
    inner = found[0].part("quantization_config")  # part of compression_config
    return found[0] if inner is None else inner


def _layout(described: Config, of_family: tuple[str, ...], mxfp4: Mxfp4 | None = None) -> Layout:
    method = str(described.value("quant_method", _unnamed(described))).lower()
    if method in of_family:
        described.skip("modules_to_not_convert")  # names tell which tensors are packed
        described.refuse_unread()
        return mxfp4 or Mxfp4(keeps=False)
    if method in _AUTO_ROUND:
        method = _auto_round(described)
    if method in _LAYOUTS:
        layout: Layout = _LAYOUTS[method](described)
        return layout
    allowed = ", ".join(sorted(_LAYOUTS))
    reason = _REFUSED.get(method, _ITSELF)
    raise ModelError(
        f"quantization_config quant_method {shown(method)} is not supported (supported: {allowed}): {reason}"
    )


def _unnamed(described: Config) -> str:
    if "config_groups" in described:
        return "compressed-tensors"
    return "bitsandbytes" if "load_in_4bit" in described or "load_in_8bit" in described else "unknown"


def _auto_round(described: Config) -> str:
    kind = described.value("packing_format", described.value("backend", "auto_round:auto_gptq"))
    if "awq" in str(kind):
        return "awq"
    if "gptq" not in str(kind):
        raise described.error("packing_format", "auto_round:auto_gptq, auto_round:auto_awq")
    return "gptq"

"""Options of the rolling engine, and what they mean for storing and running the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dragoman.models import ModelOptions
from dragoman.models.profile import AdapterOptions

DEFAULT_WEIGHT_TYPE = "int8"  # int4 decodes a sixth faster but costs accuracy: the operator's decision


@dataclass(frozen=True, slots=True)
class RollingOptions:
    """The options by their names, as in docs/options.md, with the same meaning of None."""

    dtype: str = "auto"
    kv_dtype: str = "auto"
    kernels: str = "auto"
    threads: int | None = None
    cache_dir: Path | None = None
    cache_max_gb: float = 64.0
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_batch_tokens: int = 512
    max_step_slowdown: float = 2.5
    prefix_cache: str = "auto"
    prefix_store_gb: float | None = None
    prefix_store_dir: Path | None = None
    kv_cache_gb: float | None = None
    step_log: Path | None = None
    draft_model: Path | None = None
    speculation: str = "auto"
    speculation_across_keys: bool = False
    num_assistant_tokens: int | None = None
    max_ngram_size: int | None = None
    speculative_max_batch: int = 8
    limit_mm_per_prompt: int | None = None
    mm_processor_kwargs: str | None = None
    lora: tuple[str, ...] = ()
    merge_lora: bool = False
    enable_lora: bool = False
    max_loras: int = 4
    max_lora_rank: int | None = None

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> RollingOptions:
        """This engine's options among these; ignores others, and keeps defaults."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    @property
    def speculates(self) -> bool:
        """True if tokens are guessed even at a cost in memory; `auto` guesses only where that costs none."""
        return self.speculation not in ("auto", "off") or self.draft_model is not None

    @property
    def stores_prefixes(self) -> bool:
        has_place = self.prefix_store_gb is not None and self.prefix_store_dir is not None
        return has_place and self.prefix_cache != "off"

    @property
    def model_options(self) -> ModelOptions:
        weight_type: Any = (
            DEFAULT_WEIGHT_TYPE if self.dtype == "auto" else self.dtype
        )  # the loader uses the options' words
        kv_type: Any = self.kv_dtype
        kernels: Any = self.kernels
        return ModelOptions(
            weight_type,
            kv_type,
            self.threads,
            self.cache_dir,
            self.cache_max_gb,
            takes_back=self.speculates,
            sees=self.limit_mm_per_prompt != 0,
            picture_changes=self.mm_processor_kwargs or "{}",
            asks_for_type=self.dtype != "auto",
            adapters=self.adapter_options,
            kernels=kernels,
        )

    @property
    def draft_options(self) -> ModelOptions:
        """The options of the draft model: the model's, but for text only."""
        return replace(self.model_options, sees=False, adapters=None)

    @property
    def adapter_options(self) -> AdapterOptions | None:
        """None if there are no adapters and none can be loaded later."""
        directories = tuple((name, Path(path)) for name, _, path in (text.partition("=") for text in self.lora))
        if not directories and not self.enable_lora:
            return None
        return AdapterOptions(directories, self.merge_lora, self.enable_lora)

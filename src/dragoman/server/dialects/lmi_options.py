"""What the operator sets for the LMI dialect of one model.

Does: hold values. Does not: read configuration (the composition root does). Immutable; imported by the LMI modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LmiOptions:
    """Options of the LMI dialect, named as `option.*` in serving.properties.

    `rolling_batch`: auto, vllm, lmi-dist, trtllm, scheduler, deepspeed or disable. `lmi_version`: 0.26, 0.31 or 0.32.
    `output_formatter`: json, jsonlines or sse; every other name is the operator's own and changes nothing here.
    """

    rolling_batch: str = "auto"
    lmi_version: str = "0.31"
    batch_size: int = 1
    enable_streaming: bool = False
    output_formatter: str | None = None
    tgi_compat: bool = False
    max_best_of: int = 20
    max_logprobs: int = 20  # 20: vLLM's and LMI's max_logprobs
    max_stop_strings: int = 64

    @property
    def is_dynamic(self) -> bool:
        """True if answers have the dynamic-batch shapes."""
        return self.rolling_batch == "disable" or self.batch_size > 1

    @property
    def profile(self) -> str:
        """The parameter profile: dynamic batching has no backend of its own."""
        return "disable" if self.is_dynamic else self.rolling_batch

    @property
    def has_tgi_shape(self) -> bool:
        """True if answers look like TGI's; there is no such shape for dynamic batches."""
        return self.tgi_compat and not self.is_dynamic

    @property
    def limits(self) -> Mapping[str, int]:
        """The bounds that the parameter table names."""
        return {
            "max_best_of": self.max_best_of,
            "max_logprobs": self.max_logprobs,
            "max_stop_strings": self.max_stop_strings,
        }

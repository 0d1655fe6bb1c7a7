"""The options of speculative decoding: rows of the table in `options`, which says what a row means.

Does: declare. Does not: read anything. Used by `options`, and (the settings class) by the composition root.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, as in `options`

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.config.kinds import FilePath, Integer, Switch
from dragoman.config.option import Alias, option


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculative decoding"""

    prompt_lookup: bool = option(
        False,
        Switch(),
        "Draft tokens by copying what followed the last tokens earlier in the text.",
    )
    draft_model: Path | None = option(
        None,
        FilePath("MODEL_DIR", "directory"),
        "A smaller model with the same vocabulary drafts tokens. Not together with prompt_lookup.",
        unset="no draft model",
        keys=(Alias("option.speculative_draft_model"), Alias("option.speculative_model")),
    )
    num_assistant_tokens: int = option(
        5,  # 5: default of OpenVINO Model Server
        Integer(1, 32),
        "Tokens drafted per step for a request that does not say how many.",
        unit="tokens",
        keys=(Alias("option.num_speculative_tokens"), Alias("option.speculative_length")),
    )
    max_ngram_size: int = option(
        3,  # 3: default of OpenVINO Model Server
        Integer(1, 16),
        "Longest run of tokens that prompt_lookup matches, for a request that does not say it.",
        unit="tokens",
        keys=(Alias("option.ngram_prompt_lookup_max"),),
    )
    speculative_max_batch: int = option(
        8,
        Integer(1, 4096),
        "With more running sequences nobody speculates: verifying drafts then costs more than it saves.",
        unit="sequences",
        keys=(Alias("option.speculative_disable_by_batch_size"),),
    )

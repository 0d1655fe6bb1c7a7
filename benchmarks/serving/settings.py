"""What one run of the benchmarks is told: where things are, how often and how much to measure.

Does: hold the values and their defaults, and the small ones of `--quick`. Does not: parse a command line.
Made by `__main__`, read by every row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serving.peers import DEFAULT_ROOT, default_vllm_dtype


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run. Lengths in tokens.

    `model`: a directory made by `benchmarks.serving.model --gguf`. `peers`: where they are installed. `out`: results, logs
    and built graphs. `rounds`: repetitions that a median is taken over; `long_rounds`: those of rows 5, 8 and 9, whose
    runs are long. `clients`, `requests` (per client), `prompt_tokens`, `output_tokens`: the load of rows 1 and 3.
    `vllm_dtype`: what vLLM computes in. `gguf`: the file that llama.cpp and we serve alike in rows 6 and 10, None = the
    model's Q4_K_M.
    """

    model: Path
    out: Path
    peers: Path = DEFAULT_ROOT
    rounds: int = 5
    long_rounds: int = 1
    clients: int = 32
    requests: int = 4
    prompt_tokens: int = 128
    output_tokens: int = 64
    prefix_tokens: int = 1000  # row 4
    prefill_tokens: int = 2000  # row 5
    most_streams: int = 128  # rows 8 and 9
    longest_prompt: int = 8192  # rows 8 and 9
    vllm_dtype: str = field(default_factory=default_vllm_dtype)
    peers_only: bool = False
    without: frozenset[str] = field(default_factory=frozenset)  # peers to leave out
    gguf: Path | None = None

    @property
    def file(self) -> Path:
        """The file that llama.cpp and we serve alike."""
        return self.model / "model-Q4_K_M.gguf" if self.gguf is None else self.gguf

    @property
    def logs(self) -> Path:
        """Where servers write."""
        return self.out / "logs"

    @property
    def graphs(self) -> Path:
        """Where our server keeps built graphs: not in the user's own cache."""
        return self.out / "graphs"


QUICK: dict[str, int] = {
    "rounds": 1,
    "clients": 4,
    "requests": 1,
    "prompt_tokens": 32,
    "output_tokens": 8,
    "prefix_tokens": 128,
    "prefill_tokens": 256,
    "most_streams": 4,
    "longest_prompt": 512,
}
"""Settings that only show that the tools work: their numbers mean nothing."""

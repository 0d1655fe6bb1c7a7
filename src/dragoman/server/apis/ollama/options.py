"""`options` of a request. On the event loop. Sources: Ollama's Modelfile reference; its API types, `Options`."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.parameters import PARAMETERS, UINT32_MAX, Bounds, SamplingFields
from dragoman.server.apis.openai_wire.profile import Profile

WORDS = Profile(name="ollama")
_STARTED = "the model was loaded when the server started, as the operator chose"
_NO_MIROSTAT = "there is no Mirostat sampling here"

IGNORED_OPTIONS: Mapping[str, str] = {
    "num_ctx": "the context is as long as the server was started with",
    "mirostat": _NO_MIROSTAT,
    "mirostat_tau": _NO_MIROSTAT,
    "mirostat_eta": _NO_MIROSTAT,
    "tfs_z": "there is no tail-free sampling here",
    "penalize_newline": "penalties hold for line ends as for other tokens",
    "draft_num_predict": "the server decides how tokens are guessed",
    **dict.fromkeys(
        (
            "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
            "vocab_only", "use_mmap", "use_mlock", "embedding_only",
        ),
        _STARTED,
    ),
}  # fmt: skip
"""Options without effect, and why; they are named to the client."""

OPTIONS = Profile(
    name="ollama",
    place="options.",
    bounds={
        "num_predict": Bounds(-2, UINT32_MAX),
        "num_keep": Bounds(-1, UINT32_MAX),
        "temperature": PARAMETERS["temperature"].bounds or Bounds(),
    },
    clips_overflow=True,
    defaults={"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    random_seeds=frozenset({-1}),
    ignored=IGNORED_OPTIONS,
    asks_nothing={"mirostat": 0, "tfs_z": 1.0},
)


class OllamaOptions(SamplingFields, kw_only=True):
    """Everything in `options` that has an effect; None = not given."""

    num_predict: int | None = None
    num_keep: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None

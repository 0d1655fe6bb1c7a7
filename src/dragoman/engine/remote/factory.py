"""Makes remote engines: reads the model's text files, probes the upstreams, puts the engine together.

`load` runs on its own thread; the engine connects again on the server's event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragoman.engine.base import EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup
from dragoman.engine.remote.profile import Common, Profile, common
from dragoman.errors import ServerError, how_to_install
from dragoman.models.config import ModelError, read_config
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer

if TYPE_CHECKING:
    from dragoman.engine.remote.probe import Sample
    from dragoman.engine.remote.upstream import Upstream

logger = logging.getLogger(__name__)

_SAMPLE = "Hello, how are you today?"
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    urls: tuple[str, ...]
    model: str | None
    timeout_s: float
    hedge_after_s: float | None
    max_model_len: int | None
    max_running: int
    max_logprobs: int
    api_key: str | None = field(repr=False)

    @staticmethod
    def among(setup: EngineSetup) -> RemoteOptions:
        """Raises: EngineOptionError if no server is named, or the HTTP client is not installed."""
        options = setup.options
        if not options.get("upstream"):
            raise EngineOptionError(
                "upstream", "must name at least one server, as http://HOST:PORT, with engine=remote"
            )
        if importlib.util.find_spec("aiohttp") is None:
            raise EngineOptionError("engine", f"needs a package that is not installed: {how_to_install('remote')}")
        return RemoteOptions(
            tuple(dict.fromkeys(map(_with_prefix, options["upstream"]))),
            options.get("upstream_model"),
            options.get("upstream_timeout", 300.0),
            None if options.get("hedge_after_ms") is None else options["hedge_after_ms"] / 1000,
            options.get("max_model_len"),
            options.get("max_num_seqs", 64),
            options.get("max_logprobs", 20),
            setup.secrets.get("upstream_api_key"),
        )


def _with_prefix(url: str) -> str:
    """An address without a path gets /v1."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"


class RemoteFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> LoadedRemote:
        """Raises: EngineOptionError if no upstream answers, or they do not fit; ModelError."""
        options = RemoteOptions.among(setup)
        config = read_config(setup.model_dir)
        try:
            tokenizer = load_tokenizer(setup.model_dir)
        except ValueError as error:
            raise ModelError(str(error)) from error
        setup.progress("asking the servers", 0.0)
        found = asyncio.run(_find_out(options, tokenizer))
        profiles = {url: profile for url, profile in found.items() if isinstance(profile, Profile)}
        problems = [problem for problem in found.values() if isinstance(problem, str)]
        if not profiles:
            raise EngineOptionError("upstream", f"none of the servers can be used: {'; '.join(problems)}")
        for problem in problems:
            logger.warning("left out until it can be used: %s", problem)
        limit = _max_model_len(options, list(profiles.values()), config)
        vocab_size = _number(config, ("vocab_size",)) or tokenizer.vocab_size
        return LoadedRemote(options, tokenizer, profiles, common(list(profiles.values()), limit, vocab_size))


async def _find_out(options: RemoteOptions, tokenizer: Tokenizer) -> dict[str, Profile | str]:
    """Each upstream's profile, or the reason why it has none."""
    from dragoman.engine.remote.probe import find_out
    from dragoman.engine.remote.upstream import Upstream, UpstreamError, new_session

    sample = _sample(tokenizer, options)

    async def profile(url: str) -> Profile | str:
        upstream = Upstream(url, options.timeout_s)
        upstream.attach(session)
        try:
            return await find_out(upstream, sample, options.model)
        except UpstreamError as error:
            return str(error)
        except ServerError as error:
            return f"{url}: {error.message}"

    async with new_session(options.api_key) as session:
        answers = await asyncio.gather(*map(profile, options.urls))
    return dict(zip(options.urls, answers, strict=True))


def _sample(tokenizer: Tokenizer, options: RemoteOptions) -> Sample:
    from dragoman.engine.remote.probe import Sample

    return Sample(_SAMPLE, tuple(tokenizer.encode(_SAMPLE)), options.max_logprobs)


def _max_model_len(options: RemoteOptions, profiles: Sequence[Profile], config: Mapping[str, Any]) -> int:
    """The option, or what the upstreams say, or what config.json does. Raises: EngineOptionError."""
    shortest = min((profile.max_model_len for profile in profiles if profile.max_model_len is not None), default=None)
    if options.max_model_len is not None:
        if shortest is not None and options.max_model_len > shortest:
            raise EngineOptionError("max_model_len", f"must be at most {shortest}, which the servers accept")
        return options.max_model_len
    length = shortest or _number(config, _LENGTHS)
    if length is None:
        raise EngineOptionError("max_model_len", "must be set: neither the servers nor config.json define it")
    return length


def _number(config: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    """The first of these keys that config.json has as a number, also in the text part of a multimodal model."""
    inner = config.get("text_config", config.get("llm_config"))
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for key in keys:
            if isinstance(part.get(key), int):
                return int(part[key])
    return None


@dataclass(frozen=True, slots=True)
class LoadedRemote:
    """Probed upstreams, before the engine is built. `profiles`: by address."""

    options: RemoteOptions
    tokenizer: HfTokenizer
    profiles: Mapping[str, Profile]
    common: Common

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        from dragoman.engine.remote.answer import Retokeniser
        from dragoman.engine.remote.engine import RemoteEngine
        from dragoman.engine.remote.fleet import Fleet
        from dragoman.engine.remote.upstream import Upstream

        options = self.options
        upstreams = [Upstream(url, options.timeout_s, self.profiles.get(url)) for url in options.urls]
        fleet = Fleet(upstreams, options.api_key, self._greet, options.hedge_after_s)
        capabilities = replace(self.common.capabilities, cache_key=len(upstreams) > 1)
        common = replace(self.common, capabilities=capabilities)
        engine = RemoteEngine(fleet, common, tools, Retokeniser(self.tokenizer), options.max_running)
        return BuiltEngine(engine, self._facts(), "")

    async def _greet(self, upstream: Upstream) -> None:
        """Raises: UpstreamError if a new upstream cannot do what the others do."""
        from dragoman.engine.remote.probe import find_out, make_a_token
        from dragoman.engine.remote.upstream import UpstreamError

        sample, known = _sample(self.tokenizer, self.options), upstream.profile
        if known is not None and upstream.is_known:
            if upstream.doubt:
                await make_a_token(upstream, sample, known)
                upstream.doubt = ""
            return
        profile = await find_out(upstream, sample, self.options.model if known is None else known.model)
        missing = self.common.lacks(profile)
        if missing:
            raise UpstreamError(f"{upstream.url} lacks features that the other servers have: {missing}")
        upstream.profile, upstream.is_known, upstream.doubt = profile, True, ""

    def _facts(self) -> tuple[str, ...]:
        from dragoman.engine.remote.probe import kind_words

        shared = self.common
        kinds = sorted({kind_words(profile.kind) for profile in self.profiles.values()})
        facts = [
            f"{len(self.profiles)} of {len(self.options.urls)} servers: {', '.join(kinds)}",
            f"{shared.capabilities.max_model_len} tokens of context",
        ]
        if not shared.takes_ids:
            facts.append("prompts go as text")
        if not shared.gives_ids:
            facts.append("tokens are counted by this model directory's tokenizer, from the servers' text")
        if shared.capabilities.unsupported:
            facts.append(f"without {', '.join(sorted(shared.capabilities.unsupported))}")
        return tuple(facts)


factory = RemoteFactory()

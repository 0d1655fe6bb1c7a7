"""Finds out what an upstream can do by requests for a token or two, and judges whether each ability was honoured.

Called when the model is loaded, and when an upstream comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dragoman.engine.remote.profile import Kind, Profile
from dragoman.engine.remote.upstream import Upstream, UpstreamBusy, UpstreamError
from dragoman.engine.remote.wire import Ask, Choice, Model, Trace, adapters_of, body, prompt_body
from dragoman.errors import InvalidRequest, ServerError
from dragoman.types import EngineRequest, Grammar, RepetitionDetection, SamplingParams

_CHANGED: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.01,
    "typical_p": 0.9,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "bad_words": ("qzx",),
    "min_tokens": 1,
    "ignore_eos": True,
    "seed": 1,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": (".",),
    "top_n_sigma": 1.0,
    "xtc_probability": 0.1,
    "xtc_threshold": 0.2,
    "thinking_token_budget": 1000,
    "repetition_detection": RepetitionDetection(8, 1, 1000),
}
"""A value of each field that is not its neutral one; those of token ids come from the prompt."""

TOKEN_TIMEOUT_S = 30.0
_TRACE = Trace("probe")
_FIRST_NAMES = {"temperature": "temperature"}  # before anything is known: greedy answers

_WORD = "qzxqzx"  # no model writes this by itself: only a grammar makes it
_GRAMMARS = {
    "json_schema": Grammar("json_schema", msgspec.json.encode({"const": _WORD}).decode()),
    "json_object": Grammar("json_object"),
    "regex": Grammar("regex", _WORD),
    "choice": Grammar("choice", msgspec.json.encode([_WORD]).decode()),
    "lark": Grammar("lark", f'start: "{_WORD}"'),
}
_BEGINS = {"json_schema": f'"{_WORD}"', "json_object": "{"}  # of an answer that follows the grammar; else the word


@dataclass(frozen=True, slots=True)
class Sample:
    """A short prompt, as text and ids. `max_logprobs`: the most that clients may request."""

    text: str
    token_ids: tuple[int, ...]
    max_logprobs: int = 20


async def find_out(upstream: Upstream, sample: Sample, wanted_model: str | None) -> Profile:
    """Raises: UpstreamError if the upstream does not answer, lacks the model, or has another tokenizer."""
    listed = await upstream.models()
    served = _served(upstream.url, listed, wanted_model)
    adapters = adapters_of(served.id, listed)
    profile = Profile(served.id, served.kind, served.context_len, names=_FIRST_NAMES, adapters=adapters)
    return await _Probe(upstream, sample).run(profile)


async def make_a_token(upstream: Upstream, sample: Sample, profile: Profile) -> None:
    """Have a known upstream generate a token. Raises: UpstreamError if it fails or takes too long."""
    try:
        async with asyncio.timeout(TOKEN_TIMEOUT_S):
            await _Probe(upstream, sample).make_a_token(profile)
    except TimeoutError as error:
        raise UpstreamError(f"{upstream.url} does not generate a token within {TOKEN_TIMEOUT_S:g} s") from error
    except ServerError as error:
        raise UpstreamError(f"{upstream.url} refuses a completion: {error.message}") from error


def _served(url: str, models: Sequence[Model], wanted: str | None) -> Model:
    names = [model.id for model in models]
    if not names:
        raise UpstreamError(f"{url} lists no models")
    if wanted is None:
        return models[0]
    if wanted not in names:
        raise UpstreamError(f"{url} has no model {wanted} (upstream_model): it has {', '.join(names[:8])}")
    return models[names.index(wanted)]


class _Probe:
    def __init__(self, upstream: Upstream, sample: Sample) -> None:
        self._upstream = upstream
        self._sample = sample

    async def run(self, profile: Profile) -> Profile:
        profile = await self._prompt_form(profile)
        profile = await self._token_ids(profile)
        profile = replace(profile, names=await self._names(profile, dict(profile.kind.names)))
        if profile.gives_ids:
            profile = replace(profile, max_logprobs=await self._max_logprobs(profile))
        if profile.max_logprobs is not None and profile.kind.prompt_logprobs:
            profile = replace(profile, prompt_logprobs=await self._has_prompt_logprobs(profile))
        profile = replace(
            profile,
            has_usage=await self._has_usage(profile),
            cache_salt=profile.kind.cache_salt and await self._goes_by(profile, cache_salt="probe"),
            priority=profile.kind.priority and await self._goes_by(profile, priority=-1),  # fields that every kind has
        )
        return replace(profile, has_n=await self._has_n(profile), grammars=await self._grammars(profile))

    async def make_a_token(self, profile: Profile) -> None:
        await self._choices(self._ask(profile, by_ids=False), profile)

    async def _prompt_form(self, profile: Profile) -> Profile:
        """Sets whether prompts may be token ids. Raises: UpstreamError if texts are refused too."""
        for takes_ids in (True, False):
            profile = replace(profile, takes_ids=takes_ids)
            try:
                await self._choices(self._ask(profile, by_ids=False), profile)
            except InvalidRequest as error:
                problem = f"{self._upstream.url} refuses a completion: {error.message}"
            except UpstreamBusy:
                raise
            except UpstreamError as error:
                if not takes_ids or error.is_unreachable:
                    raise
                problem = str(error)
            else:
                return profile
        raise UpstreamError(problem)

    async def _token_ids(self, profile: Profile) -> Profile:
        """Sets whether answers have token ids. Raises: UpstreamError if the prompt's ids differ from our tokenizer's."""
        ask = replace(self._ask(profile, max_tokens=4), prompt=self._sample.text)
        choices = await self._accepted(ask, profile)
        token_ids = next((choice.prompt_token_ids for choice in choices or () if choice.prompt_token_ids), None)
        if token_ids is not None and tuple(token_ids) != self._sample.token_ids:
            problem = (
                f"makes {token_ids[:8]} of {self._sample.text!r}, the tokenizer here {list(self._sample.token_ids[:8])}"
            )
            raise UpstreamError(f"{self._upstream.url} has another tokenizer: it {problem}")
        has_some = any(choice.text for choice in choices or ())
        return replace(profile, gives_ids=has_some and all(_has_ids(choice) for choice in choices or ()))

    async def _names(self, profile: Profile, names: dict[str, str]) -> dict[str, str]:
        """The fields that the server accepts. Tries all at once first, since servers rarely refuse one."""
        if await self._is_accepted(replace(profile, names=names), names):
            return names
        return {
            name: there
            for name, there in names.items()
            if await self._is_accepted(replace(profile, names={name: there}), {name: there})
        }

    async def _is_accepted(self, profile: Profile, names: Mapping[str, str]) -> bool:
        some = self._sample.token_ids
        ids = {"logit_bias": {some[0]: 1.0}, "allowed_token_ids": some, "stop_token_ids": some[:1]}
        values = {name: value for name, value in {**_CHANGED, **ids}.items() if name in names}
        return await self._accepted(self._ask(profile, SamplingParams(**values)), profile) is not None

    async def _max_logprobs(self, profile: Profile) -> int | None:
        """The largest accepted number of candidates, of those that servers usually allow."""
        most = self._sample.max_logprobs
        for count in dict.fromkeys((most, *(number for number in (20, 5, 1) if number < most), 0)):
            sampling = SamplingParams(temperature=0.0, logprobs=count)
            choices = await self._accepted(replace(self._ask(profile, sampling), logprobs=count), profile)
            if choices and all(
                choice.logprobs is not None and choice.logprobs.ids() for choice in choices if choice.token_ids
            ):
                logprobs = choices[0].logprobs
                if logprobs is not None and logprobs.ids() is not None:
                    return count
        return None

    async def _has_prompt_logprobs(self, profile: Profile) -> bool:
        try:
            chunk = await self._upstream.whole(prompt_body(self._ask(profile), profile, 1), _TRACE)
        except (InvalidRequest, UpstreamError):
            return False
        rows = chunk.choices[0].prompt_logprobs if chunk.choices else None
        return rows is not None and len(rows) == len(self._sample.token_ids)

    async def _goes_by(self, profile: Profile, **values: Any) -> bool:
        ask = self._ask(profile)
        changed = replace(ask, request=msgspec.structs.replace(ask.request, **values))
        return await self._accepted(changed, profile) is not None

    async def _has_usage(self, profile: Profile) -> bool:
        return await self._accepted(self._ask(profile), replace(profile, has_usage=True)) is not None

    async def _has_n(self, profile: Profile) -> bool:
        if not profile.kind.has_n:
            return False
        sampled = SamplingParams(temperature=1.0)  # some servers refuse several greedy sequences, which are equal
        choices = await self._accepted(replace(self._ask(profile, sampled), count=2), profile)
        return {choice.index for choice in choices or ()} == {0, 1}

    async def _grammars(self, profile: Profile) -> dict[str, str]:
        found: dict[str, str] = {}
        for way in profile.kind.grammars:
            for kind, path in way.items():
                if kind not in found and await self._follows(kind, replace(profile, grammars={kind: path})):
                    found[kind] = path
        return found

    async def _follows(self, kind: str, profile: Profile) -> bool:
        ask = self._ask(profile, SamplingParams(temperature=0.0, grammar=_GRAMMARS[kind]), max_tokens=4)
        text = "".join(choice.text for choice in await self._accepted(ask, profile) or ()).strip()
        expected = _BEGINS.get(kind, _WORD)
        size = min(len(text), len(expected))
        return bool(text) and text[:size] == expected[:size]

    def _ask(
        self, profile: Profile, sampling: SamplingParams | None = None, *, by_ids: bool = True, max_tokens: int = 1
    ) -> Ask:
        sample = self._sample
        request = EngineRequest(
            "probe", sample.token_ids, sampling or SamplingParams(temperature=0.0), max_tokens, seed=1
        )
        prompt = sample.token_ids if profile.takes_ids else sample.text
        return Ask(prompt, request, 1, 1, by_ids=by_ids)

    async def _accepted(self, ask: Ask, profile: Profile) -> list[Choice] | None:
        """The answer, None if the request is refused or fails. Raises: UpstreamError if the server does not answer."""
        try:
            return await self._choices(ask, profile)
        except ServerError:
            return None
        except UpstreamError as error:
            if error.is_unreachable or isinstance(error, UpstreamBusy):
                raise
            return None

    async def _choices(self, ask: Ask, profile: Profile) -> list[Choice]:
        found: list[Choice] = []
        with closing(await self._upstream.open(body(ask, profile), _TRACE)) as stream:
            while (more := await stream.more()) is not None:
                found += more
        return found


def _has_ids(choice: Choice) -> bool:
    return not choice.text or bool(choice.token_ids) or (choice.logprobs is not None and bool(choice.logprobs.ids()))


def kind_words(kind: Kind) -> str:
    return f"{kind.name} (uses {kind.hidden})" if kind.hidden else kind.name

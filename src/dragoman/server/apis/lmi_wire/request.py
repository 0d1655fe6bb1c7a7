"""Decides what the parameters of an LMI or TGI request mean together, and builds the neutral requests. On the event loop."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import InvalidParameter, InvalidPayload, InvalidRequest
from dragoman.parameters import Need, asks_for_something, idle_parameters, lacking_needs
from dragoman.server.apis.lmi_wire.body import show
from dragoman.server.apis.lmi_wire.parameters import LmiBody, LmiOptions, Parsed, name_as_sent
from dragoman.server.apis.openai_wire.sampling import shared_request
from dragoman.types import GenerationRequest, Limits, SamplingParams, TextPrompt

SAMPLING_TARGETS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability")
_OF_DRAWING = frozenset({*SAMPLING_TARGETS, "xtc_threshold"})
MAX_PROMPTS = Limits().max_prompts


class Prompts(NamedTuple):
    """The prompts of a call, in order. `is_array`: they came as an array, so the answer is one too."""

    texts: tuple[str, ...]
    is_array: bool


class AnswerPlan(msgspec.Struct, frozen=True):
    """The content of a call's answers. `is_several`: best_of, n or num_beams is above 1, details are always shown."""

    prompts: Prompts
    has_details: bool = False
    is_several: bool = False
    is_beam_search: bool = False
    is_sampling: bool = False
    has_full_text: bool = False
    has_prefill: bool = False
    has_prompt_top_tokens: bool = False
    has_top_tokens: bool = False


def read_prompts(inputs: Any) -> Prompts:
    """Raises: InvalidPayload unless it is a non-empty string or an array of such strings."""
    if inputs is None:
        raise InvalidPayload("Field 'inputs' is missing: it must be a string or an array of strings", param="inputs")
    texts = inputs if isinstance(inputs, list) else [inputs]
    if len(texts) > MAX_PROMPTS:
        raise InvalidPayload(
            f"Field 'inputs' must have at most {MAX_PROMPTS} entries, got {len(texts)}", param="inputs"
        )
    if not all(isinstance(text, str) for text in texts):
        raise InvalidPayload(
            f"Field 'inputs' must be a string or an array of strings, got {show(inputs)}", param="inputs"
        )
    if not texts or not all(texts):
        raise InvalidPayload(f"Field 'inputs' must not be empty, got {show(inputs)}", param="inputs")
    return Prompts(tuple(texts), isinstance(inputs, list))


def make_requests(
    prompts: Prompts, parsed: Parsed, options: LmiOptions, request_id: str, *, is_stream: bool
) -> tuple[tuple[GenerationRequest, ...], AnswerPlan, dict[str, str]]:
    """The requests of a call, one per prompt, what its answer shows, and the parameters without effect, with the reasons.

    Raises: InvalidParameter where parameters contradict each other.
    """
    values = parsed.values
    is_one_answer = is_stream or options.is_dynamic
    decided = _decided(parsed, options, is_one_answer=is_one_answer)
    is_details = options.tgi_compat if values.details is None else values.details
    answer = AnswerPlan(
        prompts=prompts,
        has_details=is_details and not options.is_dynamic,
        is_several=not is_one_answer and max(decided.n or 1, decided.best_of or 1) > 1,
        is_beam_search=bool(decided.use_beam_search),
        is_sampling=not decided.use_beam_search and decided.temperature != 0,
        has_full_text=bool(values.return_full_text),
        has_prefill=bool(values.decoder_input_details) or values.prompt_logprobs is not None,
        has_prompt_top_tokens=bool(values.prompt_logprobs),
        has_top_tokens=bool(values.top_n_tokens or values.logprobs),
    )
    ids = [f"{request_id}-{i}" for i in range(len(prompts.texts))] if prompts.is_array else [request_id]
    try:
        first = shared_request(
            decided,
            parsed.reading,
            request_id=ids[0],
            prompt=TextPrompt(prompts.texts[0]),
            logprobs=values.top_n_tokens or values.logprobs or 0,  # tokens always carry their own
        )
    except InvalidRequest as error:
        name_as_sent(error, parsed.documented, parsed.sent)
        raise
    first = _with_grammar_as_sent(first, parsed)
    # LMI writes the tokens one by one, the last as any other; OpenAI's APIs end before it.
    first = msgspec.structs.replace(first, include_end_in_text=not first.skip_special_tokens)
    if options.model.takes_adapters and values.adapter_id is not None:
        first = msgspec.structs.replace(first, adapter=values.adapter_id)
    others = zip(ids[1:], prompts.texts[1:], strict=True)
    more = (
        msgspec.structs.replace(first, request_id=request_id, prompt=TextPrompt(text)) for request_id, text in others
    )
    ignored = _ineffective(parsed, first.sampling, answer, options, is_one_answer=is_one_answer)
    return (first, *more), answer, ignored


def _with_grammar_as_sent(request: GenerationRequest, parsed: Parsed) -> GenerationRequest:
    """The grammar gets the name that the client knows: errors tell it, and what is passed over."""
    grammar = request.sampling.grammar
    if grammar is None or not grammar.param.startswith("response_format"):
        return request
    name = parsed.name_of("response_format")
    passed_over = {place.replace("response_format", name, 1): why for place, why in grammar.passed_over.items()}
    grammar = replace(grammar, param=grammar.param.replace("response_format", name, 1), passed_over=passed_over)
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, grammar=grammar))


def _decided(parsed: Parsed, options: LmiOptions, *, is_one_answer: bool) -> LmiBody:
    """The parameters in the words of all APIs: greedy (temperature 0), beams or sampling, and the number of sequences.

    Raises: InvalidParameter for contradictions.
    """
    values, body = parsed.values, copy(parsed.values)
    num_beams = values.num_beams or 1
    if values.use_beam_search and num_beams == 1:
        num_beams = values.best_of or 1
    drawn = values.best_of or num_beams
    n = values.n or (drawn if drawn > 1 else num_beams)
    is_beams = num_beams > 1
    if is_beams and values.do_sample and parsed.has("do_sample"):  # a model that wants sampling refuses no beams
        raise _contradiction(parsed, "num_beams", num_beams, "be 1 when do_sample is true")
    if is_beams and drawn > num_beams:
        raise _contradiction(parsed, "best_of", drawn, f"be at most num_beams ({num_beams})")
    if is_beams and n > num_beams:
        raise _contradiction(parsed, "n", n, f"be at most num_beams ({num_beams})")
    if not is_beams and values.best_of is not None and n > values.best_of:
        raise _contradiction(parsed, "n", n, f"be at most best_of ({values.best_of})")
    is_sampled = not is_beams and _is_sampled(parsed, options)
    if not is_sampled:
        for name in _OF_DRAWING.intersection(parsed.fields):
            setattr(body, name, None)
    if not (is_beams or is_sampled):
        body.temperature = 0.0
    body.top_p = body.top_p or None  # 0 alone is off, as in TensorRT-LLM
    body.use_beam_search = is_beams
    body.n, width = 1 if is_one_answer else n, num_beams if is_beams else drawn
    body.best_of = width if width > 1 else None
    body.stream = None  # a stream sends the best sequence when it is known
    body.include_stop_str_in_output = body.include_stop_str_in_output or options.is_tgi_route
    if body.decoder_input_details and body.prompt_logprobs is None:
        body.prompt_logprobs = 0
    return body


def _contradiction(parsed: Parsed, target: str, value: int, rule: str) -> InvalidParameter:
    name = parsed.name_of(target)
    return InvalidParameter(f"{name} must {rule}, got {value}", param=name)


def _wants_sampling(parsed: Parsed, options: LmiOptions) -> bool:
    """LMI samples if do_sample says so, LMI 0.32 also if any parameter of sampling is given, TGI if one is not neutral."""
    values = parsed.values
    if options.is_tgi_route:
        pairs = ((target, value) for target in SAMPLING_TARGETS if (value := getattr(values, target)) is not None)
        return values.do_sample is True or any(asks_for_something(target, value) for target, value in pairs)
    if options.lmi_version == "0.32" and values.do_sample is None:
        return any(parsed.has(target) for target in SAMPLING_TARGETS)
    return values.do_sample is True


def _is_sampled(parsed: Parsed, options: LmiOptions) -> bool:
    """Temperature 0 is greedy, and so are top_k 0 and top_p 0 together (TensorRT-LLM)."""
    values = parsed.values
    is_greedy_by_value = values.temperature == 0 or _is_greedy_by_filters(values)
    return _wants_sampling(parsed, options) and not is_greedy_by_value


def _ineffective(
    parsed: Parsed, sampling: SamplingParams, answer: AnswerPlan, options: LmiOptions, *, is_one_answer: bool
) -> dict[str, str]:
    """The names of parameters that changed nothing, and why: unknown ones, and those whose `needs` do not hold."""
    unused = dict.fromkeys(parsed.unused, "another field says the same, or there is no such parameter")
    if parsed.values.top_n_tokens and parsed.values.logprobs not in (None, 0, parsed.values.top_n_tokens):
        unused[parsed.name_of("logprobs")] = "top_n_tokens says the same, and wins"
    if all(row.needs is Need.NOTHING for row in parsed.sent.values()):
        return unused
    lacking = lacking_needs(sampling, thinks=options.model.thinks)
    more = {
        Need.DETAILS: not (answer.has_details or answer.is_several),
        Need.ONE_ANSWER: is_one_answer,
        Need.ROLLING: options.is_dynamic,
        Need.ADAPTERS: not options.model.takes_adapters,
    }
    lacking |= {need for need, is_lacking in more.items() if is_lacking}
    values = parsed.values
    skipped: tuple[str, ...] = ()
    if _is_greedy_by_filters(values) and _wants_sampling(parsed, options):
        skipped = ("top_k", "top_p")  # they are the reason why nothing is drawn
    rows = (
        (name, row.field, row.needs, getattr(values, row.field))
        for name, row in parsed.sent.items()
        if row.field not in skipped
    )
    return unused | idle_parameters(rows, lacking)


def _is_greedy_by_filters(values: LmiBody) -> bool:
    return values.top_p == 0 and (values.top_k or 0) <= 0

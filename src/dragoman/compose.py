"""Builds one served model from a configuration: the only place where tokenizer, engine, service and dialects meet.

Called by the host and by `LLM`; the heavy parts run on worker threads, the rest on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import msgspec

from dragoman.config.engine_options import OPTIONS
from dragoman.config.generation import default_sampling, generation_defaults
from dragoman.config.request_options import operator_sampling, option_of
from dragoman.config.resolve import Config, ConfigError, adapters_folder
from dragoman.config.trust import links_out
from dragoman.engine.base import Capabilities, Engine, EngineTools, MemoryNeeds, PictureRules
from dragoman.engine.factory import BuiltEngine, Progress
from dragoman.engine.renewable import RenewableEngine
from dragoman.errors import InvalidParameter, InvalidRequest
from dragoman.grammar.compiler import compiler_for, lark_of
from dragoman.host.cards import model_card
from dragoman.host.loading import ModelLoad, has_model, memory_needs, missing_tokenizer, what_lacks
from dragoman.host.recovery import EngineMaking
from dragoman.host.templates import find_chat_template
from dragoman.models import ModelError
from dragoman.models.fingerprint import model_fingerprint
from dragoman.models.pooling.facts import LateRule, Recipe
from dragoman.models.pooling.recipe import chosen_of, read_recipe
from dragoman.pictures import PictureLoader
from dragoman.pictures.limits import MEBIBYTE, PictureLimits
from dragoman.pictures.memory import process_memory
from dragoman.server.admission import Admission, QueueBounds
from dragoman.server.api import Ability, ModelProfile, ProposerKind
from dragoman.server.apis import set_up_all
from dragoman.server.apis.lmi.dialects import OperatorCode
from dragoman.server.apis.lmi.hooks.loader import Hooks
from dragoman.server.apis.lmi.operator.handlers import NoEngine, NoGeneration
from dragoman.server.apis.lmi.operator.loading import hook_context, load_operator_file, start_handler
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.output_parsers import OutputFormat, choose_output_format
from dragoman.server.generation.output_parsers.harmony import HarmonyOutput
from dragoman.server.generation.pictures import PicturePrompts
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.server.generation.thinking import UNBOUNDED, ThinkingBounds, told_budget
from dragoman.server.generation.tokenizing_service import NoTexts
from dragoman.server.hosting import ModelMemory
from dragoman.server.pooling.base import PoolingFacts, PoolingKind
from dragoman.server.pooling.service import TextsService
from dragoman.server.pooling.texts import LateWriting, PairQuestion, TextPreparer
from dragoman.server.registry import GenerationService, ServedAdapters, ServedModel
from dragoman.tokenizer.answer_watch import watch_answer
from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.tokenizer.plain_content import PlainContent
from dragoman.tokenizer.stop_strings import StopOnTokens
from dragoman.tokenizer.turn_ends import turn_end_ids
from dragoman.types import Limits, RepetitionDetection

logger = logging.getLogger("dragoman")


@dataclass(frozen=True, slots=True)
class Renewal:
    engine: RenewableEngine
    making: EngineMaking


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """A model that answers. `can_generate` False = only the operator's handler does. `renewal` None = there is no
    engine.

    `loader`: loads its pictures, `pictures`: writes them into prompts.
    """

    served: ServedModel
    facts: tuple[str, ...]
    has_chat_template: bool
    can_generate: bool = True
    memory: ModelMemory | None = None
    hooks: Hooks | None = None
    loader: PictureLoader | None = None
    pictures: PictureRules | None = None
    renewal: Renewal | None = None

    async def renew(self, progress: Progress) -> None:
        if self.renewal is not None:
            await self.renewal.engine.renew(partial(self.renewal.making.again, progress))

    def give_up(self, reason: str) -> None:
        if self.renewal is not None:
            self.renewal.engine.give_up(reason)

    def close(self) -> None:
        """End the preparing threads, and release the operator's code. Called after the engine's shutdown."""
        if isinstance(self.served.service, Service):
            self.served.service.close()
        if self.loader is not None:
            self.loader.close()
        if self.hooks is not None:
            self.hooks.close()


class Composer:
    """Builds models for the host. `begun`: the load of the only model, if it has begun already."""

    def __init__(self, begun: ModelLoad | None = None) -> None:
        self._begun = begun

    def needs(self, config: Config) -> MemoryNeeds:
        """Raises: ModelError or ConfigError if the model's files do not fit; OSError."""
        return memory_needs(config)

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> ComposedModel:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.watch(progress)
        return await build_served_model(config, progress, memory_bytes, begun)


@dataclass(frozen=True, slots=True)
class _Text:
    tokenizer: HfTokenizer
    chat_template: ChatTemplate | None
    output: OutputFormat | HarmonyOutput
    turn_end_ids: frozenset[int]


async def build_served_model(
    config: Config, progress: Progress, memory_bytes: int | None = None, loading: ModelLoad | None = None
) -> ComposedModel:
    """The loaded model of `config` with a started engine. `memory_bytes`: its memory besides the weights.

    None = what is free after the load, for the only model of a process; else see `memory.split_memory`, and its kernels
    share the cores. `loading`: the load if it has begun already; it has ended when this returns or raises. Raises:
    ModelError or ConfigError if the directory or an option does not fit, EngineDead if the engine does not start.
    """
    hooks = None
    try:
        hooks = await asyncio.to_thread(load_operator_file, config)
        runtime = await start_handler(config, hooks)
        code = None if hooks is None else OperatorCode(hooks, config.clients.hook_timeout_s, runtime)
        if runtime is None or has_model(config):
            is_hosted = memory_bytes is not None
            if loading is None and not missing_tokenizer(config.model_dir):  # checked before anything is built
                loading = ModelLoad(config, progress, has_neighbours=is_hosted, has_room=is_hosted)
        return await _build(config, loading, memory_bytes, code)
    except BaseException:
        if hooks is not None:
            hooks.close()
        raise
    finally:
        if loading is not None:
            loading.abandon()  # without effect unless something else failed first
            await asyncio.to_thread(loading.wait)


async def _build(
    config: Config, loading: ModelLoad | None, memory_bytes: int | None, code: OperatorCode | None
) -> ComposedModel:
    """The model, or only its handler. Raises: as `build_served_model`."""
    try:
        if loading is None:
            lacks = missing_tokenizer(config.model_dir) or what_lacks(config.model_dir)
            raise ModelError(lacks)
        return await _build_generating(config, loading, memory_bytes, code)
    except ModelError as error:
        if code is None or code.runtime is None:
            raise
        if loading is not None:  # a handler may serve a model that the engine cannot
            logger.warning("model %s is served by its handler only: %s", config.name, error)
        return _build_handler_only(config, code, str(error))


async def _build_generating(
    config: Config, loading: ModelLoad, memory_bytes: int | None, code: OperatorCode | None
) -> ComposedModel:
    text = await asyncio.to_thread(_load_text, config)
    tools = engine_tools(text.tokenizer, text.turn_end_ids, config.clients.max_grammar_s)
    making = EngineMaking(config, tools, memory_bytes)
    built = await asyncio.to_thread(making.build, loading)
    engine = RenewableEngine(built)
    built = replace(built, engine=engine, adapters=None if built.adapters is None else engine)
    try:
        limits = _service_limits(config, engine)
    except ConfigError:
        await engine.shutdown(0.0)
        raise
    await engine.start()
    if built.pooling is not None:
        made = _pooling(config, built, engine, text.tokenizer, code)
    else:
        made = _generating(config, built, text, tools, limits, code)
    needs = memory_needs(config)
    return ComposedModel(
        _served(config, made, engine, built.dtype, text.tokenizer.max_token_chars),
        built.facts,
        made.has_chat_template,
        memory=ModelMemory(needs.weights, built.cache_bytes, needs.drafts),
        hooks=None if code is None else code.hooks,
        loader=made.loader,
        pictures=built.pictures,
        renewal=Renewal(engine, making),
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A model's service, its facts for client APIs, and the parts that only some models have."""

    service: GenerationService
    profile: ModelProfile
    adapters: ServedAdapters | None = None
    loader: PictureLoader | None = None
    has_chat_template: bool = False


def _generating(
    config: Config,
    built: BuiltEngine,
    text: _Text,
    tools: EngineTools,
    limits: ServiceLimits,
    code: OperatorCode | None,
) -> _Made:
    engine, tokenizer, able = built.engine, text.tokenizer, built.engine.capabilities
    if built.reads_tokenizer:
        is_control = tokenizer.is_control_to_llguidance
        text = replace(text, output=_output_format(config, text.chat_template, tokenizer, is_control))
    loader, prompts = _pictures(config, built.pictures)
    service = Service(
        name=config.name,
        engine=engine,
        tokenizer=tokenizer,
        chat_template=text.chat_template,
        limits=limits,
        extensions=replace(
            _extensions(text, tools),
            pictures=prompts,
            plain=PlainContent(tokenizer) if config.model.tokenize_content == "plain" else None,
        ),
    )
    if code is not None:
        code = replace(code, context=hook_context(config, tokenizer, text.chat_template), service=service)
    adapters = _served_adapters(config, built)
    profile = model_profile(config, code, adapters)
    profile = replace(
        profile,
        vocab_size=able.vocab_size,
        end_token_ids=tokenizer.eos_token_ids,
        lacks=able.unsupported,
        max_model_len=service.max_model_len,
        dtype=built.dtype,
        abilities=_abilities(text, sees=built.pictures is not None),
        proposer=profile.proposer if able.speculative else None,
        keeps_prompts=able.cache_keep,
        has_cache_keys=able.cache_key,
        tells_progress=able.progress,
        shifts_context=limits.shifts_context,
    )
    return _Made(service, profile, adapters, loader, text.chat_template is not None)


def _pooling(
    config: Config, built: BuiltEngine, engine: RenewableEngine, tokenizer: HfTokenizer, code: OperatorCode | None
) -> _Made:
    options = {
        option.name: config.value(option) for option in OPTIONS if option.name in ("task", "pooling", "normalize")
    }
    recipe = read_recipe(config.model_dir, *chosen_of(options))
    facts = _pooling_facts(recipe, built, engine.capabilities)
    template = recipe.template
    question = None
    if template is not None:
        question = PairQuestion(template.before, template.body, template.after, template.instruction)
    late = None if recipe.late is None else late_writing(recipe.late, tokenizer)
    preparer = TextPreparer(tokenizer, facts, question, recipe.lowers_case, late)
    service = TextsService(engine, preparer, config.server.predict_timeout)
    profile = replace(model_profile(config, code), pooling=service)
    return _Made(NoTexts(config.name, service), profile)


def late_writing(rule: LateRule, tokenizer: HfTokenizer) -> LateWriting:
    """The tokens around texts in late interaction. Raises: ModelError if there is no mask token."""

    def prefix(text: str) -> tuple[int, ...]:
        found = next(
            (token_id for token_id in map(tokenizer.token_to_id, (text, text.strip())) if token_id is not None), None
        )
        return tuple(tokenizer.encode_all([text])[0]) if found is None else (found,)

    mask_id = tokenizer.token_to_id(rule.mask_token)
    if rule.expands and mask_id is None:
        raise ModelError(f"tokenizer.json has no token {rule.mask_token!r}, which pads queries")
    skipped = (tokenizer.token_to_id(word) for word in rule.skipped)
    return LateWriting(
        prefix(rule.query_prefix),
        prefix(rule.document_prefix),
        rule.document_length,
        rule.query_length if rule.expands else 0,
        mask_id or 0,
        rule.sees_expansion,
        frozenset(token_id for token_id in skipped if token_id is not None),
    )


def _pooling_facts(recipe: Recipe, built: BuiltEngine, capabilities: Capabilities) -> PoolingFacts:
    late, is_embedding = recipe.late, recipe.kind in ("embed", "tokens")
    prompts = recipe.prompts if late is None else {"query": late.query_prefix, "document": late.document_prefix}
    return PoolingFacts(
        kind=PoolingKind(recipe.kind),
        max_tokens=capabilities.max_model_len,
        vocab_size=capabilities.vocab_size,
        dimensions=built.row_size if is_embedding else 0,
        pooling="splade" if recipe.sparse else " and ".join(recipe.pooling),
        is_normalized=recipe.is_normalized,
        similarity=recipe.similarity,
        prompts=prompts,
        default_prompt_name=recipe.default_prompt_name if late is None else "document",
        tasks=recipe.tasks,
        activation=recipe.activation,
        labels=recipe.labels,
    )


def _build_handler_only(config: Config, code: OperatorCode, reason: str) -> ComposedModel:
    """A model with only the operator's handler on LMI's routes."""
    served = _served(config, _Made(NoGeneration(config.name, reason), model_profile(config, code)), NoEngine())
    facts = ("its own handler only, on the LMI routes",)
    return ComposedModel(served, facts, has_chat_template=False, can_generate=False, hooks=code.hooks)


def _service_limits(config: Config, engine: Engine) -> ServiceLimits:
    """Raises: ConfigError for a bound that the engine does not support."""
    if config.server.queue_timeout is not None and not engine.capabilities.queue_timeout:
        problem = f"engine {config.engine.engine} does not tell when a request begins; leave it out"
        raise ConfigError([f"{config.cite('queue_timeout')}: {problem}"])
    return ServiceLimits(
        request_timeout_s=config.server.predict_timeout,
        queue_timeout_s=config.server.queue_timeout,
        max_prompt_tokens=config.server.max_prompt_tokens,
        max_completion_tokens=config.server.max_completion_tokens,
        prefix_cache_per_key=bool(config.engine.prefix_cache_per_key),
        thinking=_thinking_bounds(config, engine),
        shifts_context=config.model.context_shift and engine.capabilities.context_shift,
    )


def _thinking_bounds(config: Config, engine: Engine) -> ThinkingBounds:
    """Raises: ConfigError for an unsupported or malformed bound on reasoning."""
    reasoning = config.reasoning
    budget = None if reasoning.reasoning_budget == UNBOUNDED else reasoning.reasoning_budget
    if budget is not None and not engine.capabilities.has_budgets:
        problem = f"engine {config.engine.engine} does not end reasoning here; leave it out"
        raise ConfigError([f"{config.cite('reasoning_budget')}: {problem}"])
    try:
        told_budget(msgspec.json.decode(config.model.default_chat_template_kwargs or "{}"))
    except InvalidParameter as error:
        raise ConfigError([f"{config.cite('default_chat_template_kwargs')}: {error.message}"]) from error
    rule = reasoning.reasoning_repetition_detection
    repetition = None if rule == "off" else msgspec.json.decode(rule, type=RepetitionDetection)
    return ThinkingBounds(budget, repetition, reasoning.reasoning_budget_message)


def _served(config: Config, made: _Made, engine: Engine, dtype: str = "", max_token_chars: int = 1) -> ServedModel:
    server = config.server
    return ServedModel(
        name=config.name,
        aliases=(*config.model.name[1:], *_merged_name(config)),
        service=made.service,
        engine=engine,
        dialects=set_up_all(made.profile),
        admission=Admission(
            config.name,
            max_running=config.engine.max_num_seqs,
            max_queued=server.job_queue_size,
            bounds=QueueBounds(server.max_queued_tokens, server.max_requests_per_key, max_token_chars),
        ),
        url=str(config.model_dir),
        dtype=dtype,
        limits=_limits(config),
        version=config.version,
        adapters=made.adapters,
        profile=made.profile,
        pooling=made.profile.pooling,
    )


def engine_tools(
    tokenizer: HfTokenizer, turn_end_ids: frozenset[int] = frozenset(), max_grammar_s: float = float("inf")
) -> EngineTools:
    """The functions on text that an engine calls, for this tokenizer and the tokens that end a turn."""
    pieces = TokenPieces(tokenizer)

    compiler = compiler_for(tokenizer, turn_end_ids, max_grammar_s)
    return EngineTools(compiler, partial(StopOnTokens, pieces), lark_of, partial(watch_answer, pieces))


def _extensions(text: _Text, tools: EngineTools) -> Extensions:
    output = text.output
    return Extensions(
        tools.compile_grammar,
        output.parser,
        output.marker_ids,
        output.constraint,
        text.turn_end_ids,
        unsearched=output.unsearched,
        find_thought=None if output.names[1] is None else output.thought_marks,
    )


def model_profile(
    config: Config, operator_code: OperatorCode | None = None, adapters: ServedAdapters | None = None
) -> ModelProfile:
    """The facts of a model that client APIs read. Raises: ConfigError if its generation_config.json is unusable."""
    operator, of_model = operator_sampling(config.sampling), generation_defaults(config.model_dir)
    scope = config.clients.generation_config
    defaults = {**(of_model if scope != "none" else {}), **operator}
    return ModelProfile(
        name=config.name,
        aliases=_aliases(config),
        limits=_limits(config),
        settings={
            **{
                field.name: getattr(group, field.name)
                for group in (config.clients, config.llamacpp)
                for field in fields(group)
            },
            "has_lmi_signs": config.has_lmi_signs,
        },
        default_sampling=default_sampling(config.model_dir, operator),
        generation_defaults=defaults,
        overriding_defaults=defaults if scope == "all" else {},
        default_options={name: option_of(name) for name in operator},
        proposer=_proposer_kind(config),
        system_fingerprint=model_fingerprint(
            config.model_dir, config.model.dtype, config.model.kv_dtype, config.model.kernels
        ),
        operator_code=operator_code,
        takes_adapters=_takes_adapters(config),
        adapter_names=tuple if adapters is None else lambda: adapters.names,
        card=model_card(config.model_dir),
    )


def _abilities(text: _Text, *, sees: bool) -> frozenset[Ability]:
    template = text.chat_template
    has_tools = template is not None and any("tools" in source for source in template.sources.values())
    able: dict[Ability, bool] = {
        "chat": template is not None,
        "tools": has_tools,
        "thinking": template is not None and text.output.names[1] is not None,
        "vision": sees and template is not None,
        "insert": text.tokenizer.fim_tokens is not None,
    }
    return frozenset(name for name, is_able in able.items() if is_able)


def _takes_adapters(config: Config) -> bool:
    """Upstream servers may have some; a merged adapter is part of the model."""
    return (
        config.engine.engine == "remote"
        or config.adapters.enable_lora
        or (bool(config.adapters.lora) and not config.adapters.merge_lora)
    )


def _served_adapters(config: Config, built: BuiltEngine) -> ServedAdapters | None:
    if not _takes_adapters(config):
        return None
    pairs = (text.partition("=") for text in config.adapters.lora)
    roots = [adapters_folder(config.model_dir)] if config.adapters.lora_store is None else [config.adapters.lora_store]
    first = {name: path for name, _, path in pairs}
    taken = (config.name, *_aliases(config))
    return ServedAdapters(built.engine, built.adapters, first, roots, taken=taken, links_out=links_out)


def _proposer_kind(config: Config) -> ProposerKind | None:
    kinds: dict[str, ProposerKind | None] = {"off": None, "draft": "draft"}
    return kinds.get(config.speculation.speculation, "lookup")


def _merged_name(config: Config) -> tuple[str, ...]:
    return (config.adapters.lora[0].partition("=")[0],) if config.adapters.merge_lora else ()


def _aliases(config: Config) -> tuple[str, ...]:
    """Further names of the model; a version follows the name after a slash, as in LMI's paths."""
    versioned = (f"{config.name}/{config.version}",) if config.version else ()
    return (*config.model.name[1:], *_merged_name(config), *versioned)


def _pictures(config: Config, rules: PictureRules | None) -> tuple[PictureLoader | None, PicturePrompts | None]:
    if rules is None:
        return None, None
    loader = PictureLoader(picture_limits(config), memory=process_memory(config.server.max_image_memory))
    return loader, PicturePrompts(rules, loader, config.pictures.limit_mm_per_prompt)


def picture_limits(config: Config) -> PictureLimits:
    settings = config.pictures
    return PictureLimits(
        max_bytes=settings.max_image_mb * MEBIBYTE,
        max_pixels=settings.max_image_pixels,
        timeout_s=settings.image_fetch_timeout_s,
        allowed_hosts=settings.allow_image_hosts,
    )


def _limits(config: Config) -> Limits:
    settings = config.clients
    names = {field.name for field in fields(settings)}
    limits = Limits(**{field.name: getattr(settings, field.name) for field in fields(Limits) if field.name in names})
    return replace(limits, max_prompt_tokens=config.server.max_prompt_tokens)


# --- text -------------------------------------------------------------------------------------------------------------


def _load_text(config: Config) -> _Text:
    try:
        tokenizer = load_tokenizer(config.model_dir)
        template = find_chat_template(config, tokenizer)
        output = _output_format(config, template, tokenizer)
        _ = tokenizer.max_token_chars  # done during the load, as it visits every token
        return _Text(tokenizer, template, output, _turn_end_ids(template, tokenizer, output))
    except ValueError as error:
        if not has_model(config):
            raise ModelError(what_lacks(config.model_dir)) from error
        raise ModelError(str(error)) from error
    except InvalidRequest as error:  # of the texts that try template and tokenizer
        raise ModelError(f"{config.model_dir} cannot be used: {error}") from error


def _output_format(
    config: Config,
    template: ChatTemplate | None,
    tokenizer: HfTokenizer,
    is_control: Callable[[int], bool] | None = None,
) -> OutputFormat | HarmonyOutput:
    model = config.model
    return choose_output_format(template, tokenizer, model.tool_call_parser, model.reasoning_parser, is_control)


def _turn_end_ids(
    template: ChatTemplate | None, tokenizer: HfTokenizer, output: OutputFormat | HarmonyOutput
) -> frozenset[int]:
    """Tokens that end an answer in a chat, besides those that the model's files name."""
    if template is None:
        return frozenset()
    if isinstance(output, HarmonyOutput):
        return output.end_ids  # messages end with their own token, and others follow
    return turn_end_ids(template, tokenizer, output.marker_ids)

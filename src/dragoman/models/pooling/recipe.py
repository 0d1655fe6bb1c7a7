"""Reads a model directory's recipe: whether its network generates, embeds or scores, and how.

With modules.json, as sentence-transformers writes it, its modules decide. Without, an encoder with a head for sequences
scores (of several labels: classifies), and any other embeds. A decoder with such a head, or with a reranker's name,
scores, and any other generates. Vectors are then the first token's if the name says so (`_FIRST_TOKEN`). Else a
decoder's are the last token's, and others the mean. Called when a model is loaded or its memory estimated, on any
thread.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from dragoman.files.model_texts import is_gguf, model_name, model_text
from dragoman.models.config import Config, ModelError, read_config, shown
from dragoman.models.pooling.facts import (
    POOLING_MODES,
    DenseModule,
    LateRule,
    PairTemplate,
    PoolingMode,
    Recipe,
    SparseRule,
)
from dragoman.models.pooling.families import (
    COLBERT,
    GENERATOR,
    MASKED,
    SCORER,
    TASKS,
    architecture_of,
    is_encoder,
    parts_of,
)

Task = Literal["auto", "generate", "embed", "rerank", "classify"]
Purpose = Literal["generate", "embed", "score"]

ACTIVATIONS = ("identity", "sigmoid", "tanh", "gelu", "relu", "silu")
_LENGTH_FILES = tuple(
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "xlm-roberta", "mpnet", "transformer")
)
_ANSWERS = ("yes", "no")
SPLADE = "splade"
_MOST_LABELS = 100_000
_FUNCTIONS = {"softmax": "softmax", "sigmoid": "sigmoid", "none": "identity"}
_PROBLEMS = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
_FIRST_TOKEN = ("bge", "gte", "arctic", "mxbai")  # of models published without modules.json

_MODES: Mapping[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_LEGACY_MODES = {  # in the order of several vectors side by side
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

QWEN3_TEMPLATE = PairTemplate(
    before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    body="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
"""The question for which Qwen3-Reranker was trained. Source: its model card."""


def purpose_of(model_dir: Path, task: Task = "auto") -> Purpose:
    if task == "generate" or is_gguf(model_dir):
        return "generate"
    raw_config = read_config(model_dir)
    architecture = architecture_of(raw_config)
    if task != "auto":
        return "embed" if task == "embed" else "score"
    parts = parts_of(architecture)
    if parts is None:
        return "generate"  # or unknown: the generating engine says so
    kinds = _module_kinds(model_dir)
    if kinds:
        is_scorer = "LogitScore" in kinds or (parts[1] == SCORER and "Pooling" not in kinds)
        return "score" if is_scorer else "embed"
    if parts[1] == SCORER:
        return "score"
    if is_encoder(architecture):
        return "embed"
    if parts[1] != GENERATOR:
        return "embed"  # a decoder's body alone
    return "score" if _is_reranker(model_dir) else "generate"


def read_recipe(
    model_dir: Path, task: Task = "auto", pooling: str | None = None, normalize: bool | None = None
) -> Recipe:
    """The recipe of the model. `pooling`, `normalize`: the operator's choices. Raises: ModelError naming file and key."""
    purpose = purpose_of(model_dir, task)
    raw_config = read_config(model_dir)
    if purpose == "score":
        return _scoring(model_dir, raw_config, task)
    kinds = _module_kinds(model_dir)
    if pooling == SPLADE or (pooling is None and "SpladePooling" in kinds):
        return _weighing(model_dir, raw_config)
    late = _late(model_dir, raw_config) if pooling is None and "Pooling" not in kinds else None
    if late is not None:
        return _by_tokens(model_dir, raw_config, late)
    return _embedding(model_dir, raw_config, pooling, normalize)


def chosen_of(options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    pooling = options.get("pooling")
    normalize = {"true": True, "false": False}.get(options.get("normalize", "auto"))
    return options.get("task") or "auto", None if pooling == "auto" else pooling, normalize


# --- embedding --------------------------------------------------------------------------------------------------------


def _embedding(model_dir: Path, raw_config: Mapping[str, Any], chosen: str | None, normalize: bool | None) -> Recipe:
    prompts, default_name, similarity = _prompts(model_dir)
    tasks = _tasks(raw_config)
    prompts = {**{name: text for name, text in tasks.items() if name not in prompts}, **prompts}
    max_tokens, lowers_case = _lengths(model_dir)
    modules = _only(model_dir, ("Transformer", "Pooling", "Dense", "Dropout", "Normalize"))
    modes: tuple[PoolingMode, ...] = ()
    includes_prompt, is_normalized, denses, departures = True, False, [], []
    for kind, path in modules:
        match kind:
            case "Pooling":
                modes, includes_prompt = _pooling(model_dir / path)
            case "Dense":
                denses.append(_dense(model_dir / path, path))
            case "Normalize":
                is_normalized = True
    if not modes:
        modes = (_usual_pooling(model_dir, raw_config),)
        is_normalized = is_normalized or not modules
        if chosen is None:
            departures.append(f"no file says how tokens become one vector: {modes[0]} is taken (option pooling)")
    if chosen is not None:
        modes = (cast(PoolingMode, chosen),)
    return Recipe(
        kind="embed",
        pooling=modes,
        includes_prompt=includes_prompt,
        denses=tuple(denses),
        is_normalized=is_normalized if normalize is None else normalize,
        max_tokens=max_tokens,
        prompts=prompts,
        default_prompt_name=default_name,
        similarity=similarity,
        tasks=tuple(tasks),
        lowers_case=lowers_case,
        departures=tuple(departures),
    )


def _weighing(model_dir: Path, raw_config: Mapping[str, Any]) -> Recipe:
    """Weights of words: `SpladePooling` of sentence-transformers, or by SPLADE for a head without modules."""
    rule = SparseRule()
    for kind, path in _only(model_dir, ("Transformer", "MLMTransformer", "SpladePooling"), " beside SpladePooling"):
        if kind == "SpladePooling":
            config = _config(model_dir / path)
            activation = config.choice("activation_function", ("relu", "log1p_relu"), "relu")
            sums = config.choice("pooling_strategy", ("max", "sum"), "max") == "sum"
            rule = SparseRule(sums, 2 if activation == "log1p_relu" else 1)
    architecture = architecture_of(raw_config)
    parts = parts_of(architecture)
    if parts is None or parts[1] != MASKED:
        raise ModelError(f"architecture {architecture} has no language-model head, which pooling splade needs")
    prompts, default_name, _ = _prompts(model_dir)
    max_tokens, lowers_case = _lengths(model_dir)
    return Recipe(
        kind="sparse",
        max_tokens=max_tokens,
        prompts=prompts,
        default_prompt_name=default_name,
        similarity="dot",
        sparse=rule,
        lowers_case=lowers_case,
    )


_COLBERT_FILE = "artifact.metadata"
_PYLATE_KEYS = ("query_prefix", "document_prefix", "attend_to_expansion_tokens", "do_query_expansion", "skiplist_words")


def _late(model_dir: Path, raw_config: Mapping[str, Any]) -> LateRule | None:
    """The rule of a model of late interaction. Sources: PyLate's and ColBERT's files."""
    if architecture_of(raw_config) == COLBERT:
        config = _config(model_dir, _COLBERT_FILE)
        return LateRule(
            query_prefix=str(config.value("query_token_id", "[unused0]")),
            document_prefix=str(config.value("doc_token_id", "[unused1]")),
            query_length=config.count("query_maxlen", 32),
            document_length=config.count("doc_maxlen", 180),
            sees_expansion=config.flag("attend_to_mask_tokens"),
            skipped=tuple(string.punctuation) if config.flag("mask_punctuation", True) else (),
            mask_token=_mask_token(model_dir),
        )
    name = "config_sentence_transformers.json"
    found = _object(model_dir, name) or {}
    if not any(key in found for key in _PYLATE_KEYS) and found.get("model_type") != "ColBERT":
        return None
    config = Config(found, str(model_dir / name))
    skipped = config.value("skiplist_words", list(string.punctuation))
    if not isinstance(skipped, list) or not all(isinstance(word, str) for word in skipped):
        raise config.error("skiplist_words", "a list of words")
    prefixes = [config.value(key, usual) for key, usual in (("query_prefix", "[Q] "), ("document_prefix", "[D] "))]
    if not all(isinstance(prefix, str) for prefix in prefixes):
        raise config.error("query_prefix", "a text, as document_prefix")
    return LateRule(
        query_prefix=prefixes[0],
        document_prefix=prefixes[1],
        query_length=config.count("query_length", 32),
        document_length=config.count("document_length", 180),
        expands=config.flag("do_query_expansion", True),
        sees_expansion=config.flag("attend_to_expansion_tokens"),
        skipped=tuple(skipped),
        mask_token=_mask_token(model_dir),
    )


def _mask_token(model_dir: Path) -> str:
    found = (_object(model_dir, "tokenizer_config.json") or {}).get("mask_token")
    return str(found.get("content") if isinstance(found, dict) else found or "[MASK]")


def _by_tokens(model_dir: Path, raw_config: Mapping[str, Any], late: LateRule) -> Recipe:
    modules = _only(model_dir, ("Transformer", "Dense", "Normalize"), " without Pooling")
    denses = [_dense(model_dir / path, path, of_tokens=True) for kind, path in modules if kind == "Dense"]
    if architecture_of(raw_config) == COLBERT and not denses:
        dim = _config(model_dir, _COLBERT_FILE).count("dim", 128)
        denses.append(DenseModule("", Config(raw_config).count("hidden_size"), dim, False, "identity"))
    max_tokens, lowers_case = _lengths(model_dir)
    return Recipe(
        kind="tokens",
        denses=tuple(denses),
        is_normalized=True,
        max_tokens=max_tokens,
        late=late,
        lowers_case=lowers_case,
    )


def _usual_pooling(model_dir: Path, raw_config: Mapping[str, Any]) -> PoolingMode:
    if not is_encoder(architecture_of(raw_config)):
        return "last"
    name = f"{model_name(model_dir)} {raw_config.get('_name_or_path', '')}".lower()
    return "cls" if any(part in name for part in _FIRST_TOKEN) else "mean"


def _pooling(directory: Path) -> tuple[tuple[PoolingMode, ...], bool]:
    path = directory / "config.json"
    config = _object(directory, "config.json") or {}
    written = config.get("pooling_mode")
    if written is None:
        written = [mode for key, mode in _LEGACY_MODES.items() if config.get(key)] or ["mean"]
    modes = [written] if isinstance(written, str) else written
    if not isinstance(modes, list) or not modes or any(mode not in _MODES for mode in modes):
        raise ModelError(f"{path} pooling_mode is {shown(written)}, allowed: {', '.join(_MODES)}")
    return tuple(_MODES[mode] for mode in modes), config.get("include_prompt") is not False


def _dense(directory: Path, path: str, *, of_tokens: bool = False) -> DenseModule:
    config = _config(directory)
    activation = _activation(config.value("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation is None:
        raise config.error("activation_function", f"one of torch's: {', '.join(ACTIVATIONS)}")
    if of_tokens:
        config.skip("module_input_name", "module_output_name")
        config.expect(use_residual=False)
    else:
        config.expect(module_input_name="sentence_embedding", module_output_name="sentence_embedding")
    sizes = config.count("in_features"), config.count("out_features")
    return DenseModule(path, *sizes, config.flag("bias", True), activation)


def _prompts(model_dir: Path) -> tuple[dict[str, str], str | None, str]:
    name = "config_sentence_transformers.json"
    config = _object(model_dir, name) or {}
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{model_dir / name} prompts is {shown(prompts)}, allowed: texts by their names")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(f"{model_dir / name} default_prompt_name is {shown(default)}, allowed: {', '.join(prompts)}")
    similarity = config.get("similarity_fn_name") or "cosine"
    return dict(prompts), default, str(similarity)


def _tasks(raw_config: Mapping[str, Any]) -> dict[str, str]:
    names, instructions = raw_config.get(TASKS), raw_config.get("task_instructions") or {}
    if names is None:
        return {}
    if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
        raise ModelError(f"config.json {TASKS} is {shown(names)}, allowed: a list of different names")
    are_texts = isinstance(instructions, dict) and all(isinstance(text, str) for text in instructions.values())
    if not are_texts or any(name not in instructions for name in names):
        raise ModelError(f"config.json task_instructions is {shown(instructions)}, allowed: a text for each of {TASKS}")
    return {name: instructions[name] for name in names}


def _lengths(model_dir: Path) -> tuple[int | None, bool]:
    """(most tokens, whether texts are lower-cased), as the first module's file says."""
    for name in _LENGTH_FILES:
        config = _object(model_dir, name)
        if config is not None:
            longest = config.get("max_seq_length")
            return _count(longest) or _tokenizer_length(model_dir), config.get("do_lower_case") is True
    return _tokenizer_length(model_dir), False


def _tokenizer_length(model_dir: Path) -> int | None:
    """None also for the huge number that files may have instead."""
    return _count((_object(model_dir, "tokenizer_config.json") or {}).get("model_max_length"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < 1 << 30 else None


# --- scoring ----------------------------------------------------------------------------------------------------------


def _scoring(model_dir: Path, raw_config: Mapping[str, Any], task: Task) -> Recipe:
    architecture = architecture_of(raw_config)
    parts = parts_of(architecture)
    max_tokens, _ = _lengths(model_dir)
    asks = parts is not None and parts[1] == GENERATOR
    is_decoder = not is_encoder(architecture)
    template = QWEN3_TEMPLATE if is_decoder and (asks or _is_reranker(model_dir) or _was_asked(raw_config)) else None
    labels = () if asks else _labels(raw_config)
    if len(labels) > 1:
        if task == "rerank":
            raise ModelError(f"config.json num_labels is {len(labels)}, allowed: 1, the relevance of a pair")
        return Recipe(kind="classify", max_tokens=max_tokens, activation=_class_activation(raw_config), labels=labels)
    activation = _score_activation(model_dir, raw_config, asks=asks)
    answers = _answers(model_dir) if asks else ()
    return Recipe(
        kind="score", max_tokens=max_tokens, activation=activation, labels=labels, answer_ids=answers, template=template
    )


def _labels(raw_config: Mapping[str, Any]) -> tuple[str, ...]:
    labels, count = raw_config.get("id2label"), raw_config.get("num_labels")
    if labels is None:
        count = 2 if count is None else count
        if not isinstance(count, int) or not 1 <= count <= _MOST_LABELS:
            raise ModelError(f"config.json num_labels is {shown(count)}, allowed: 1 to {_MOST_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    places = [str(index) for index in range(len(labels))] if isinstance(labels, dict) else []
    if not places or sorted(places) != sorted(map(str, labels)):
        raise ModelError(
            f"config.json id2label is {shown(labels)}, allowed: a name of each label by its number from 0 on"
        )
    if count is not None and count != len(places):
        raise ModelError(f"config.json num_labels is {shown(count)}, allowed: {len(places)}, as id2label has")
    return tuple(str(labels[place]) for place in places)


def _class_activation(raw_config: Mapping[str, Any]) -> str:
    """A softmax by default, as in transformers' pipeline."""
    function = raw_config.get("function_to_apply")
    if function is not None:
        if function not in _FUNCTIONS:
            raise ModelError(f"config.json function_to_apply is {shown(function)}, allowed: {', '.join(_FUNCTIONS)}")
        return _FUNCTIONS[function]
    problem = raw_config.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise ModelError(f"config.json problem_type is {shown(problem)}, allowed: {', '.join(_PROBLEMS)}")
    return "softmax" if problem is None else _PROBLEMS[problem]


def _score_activation(model_dir: Path, raw_config: Mapping[str, Any], *, asks: bool) -> str:
    """A sigmoid by default, by sentence-transformers' rule."""
    extension = raw_config.get("sentence_transformers")
    name = extension.get("activation_fn") if isinstance(extension, dict) else None
    name = name or raw_config.get("sbert_ce_default_activation_function")
    name = (_object(model_dir, "config_sentence_transformers.json") or {}).get("activation_fn") or name
    activation = "sigmoid" if name is None or asks else _activation(name)
    if activation not in ("sigmoid", "identity"):
        raise ModelError(f"config.json activation_fn is {shown(name)}, allowed: torch's Sigmoid or Identity")
    return activation


def _answers(model_dir: Path) -> tuple[int, ...]:
    """The tokens whose logits are compared: a module's, else "yes" and "no"."""
    for kind, path in _modules(model_dir):
        if kind == "LogitScore":
            config = _object(model_dir / path, "config.json") or {}
            ids = [config.get(key) for key in ("true_token_id", "false_token_id")]
            return tuple(token_id for token_id in ids if isinstance(token_id, int))
    vocabulary = ((_object(model_dir, "tokenizer.json") or {}).get("model") or {}).get("vocab")
    if not isinstance(vocabulary, dict):
        vocabulary = _object(model_dir, "vocab.json") or {}
    found = tuple(vocabulary.get(word) for word in _ANSWERS)
    if not all(isinstance(token_id, int) for token_id in found):
        raise ModelError(f"{model_dir} has no tokens {' and '.join(_ANSWERS)}, which a reranker answers with")
    return cast(tuple[int, ...], found)


def _is_reranker(model_dir: Path) -> bool:
    return "rerank" in model_name(model_dir).lower()


def _was_asked(raw_config: Mapping[str, Any]) -> bool:
    """True if a head was made of a causal model's answers to the same question."""
    name = str(raw_config.get("_name_or_path", "")).lower()
    return bool(
        raw_config.get("is_original_qwen3_reranker") or raw_config.get("classifier_from_token") or "rerank" in name
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _activation(name: object) -> str | None:
    last = str(name).rpartition(".")[2].lower()
    return last if last in ACTIVATIONS else None


def _modules(model_dir: Path) -> list[tuple[str, str]]:
    path = model_dir / "modules.json"
    text = model_text(model_dir, path.name)
    if text is None:
        return []
    try:
        modules = json.loads(text)
        found = [(str(module["type"]).rpartition(".")[2], str(module.get("path", ""))) for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: expected a list of modules with type and path") from error
    for _, where in found:
        if where and (Path(where).is_absolute() or ".." in Path(where).parts):
            raise ModelError(f"{path} path is {shown(where)}, allowed: a directory beside it")
    return found


def _only(model_dir: Path, allowed: tuple[str, ...], where: str = "") -> list[tuple[str, str]]:
    """The modules. Raises: ModelError naming one of another kind."""
    modules = _modules(model_dir)
    for kind, _ in modules:
        if kind not in allowed:
            raise ModelError(
                f"{model_dir / 'modules.json'} has a module {kind!r}{where}, allowed: {', '.join(allowed)}"
            )
    return modules


def _config(directory: Path, name: str = "config.json") -> Config:
    return Config(_object(directory, name) or {}, str(directory / name))


def _module_kinds(model_dir: Path) -> list[str]:
    return [kind for kind, _ in _modules(model_dir)]


def _object(directory: Path, name: str) -> dict[str, Any] | None:
    text = model_text(directory, name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{directory / name} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{directory / name} holds {shown(value)}, allowed: an object")
    return value


assert set(_MODES.values()) == set(POOLING_MODES)

"""Turns all given values into one frozen configuration, or a list of all problems. Opens no model.

Precedence, highest first: 1. command line (or the arguments of `LLM`); 2. the call that has a model loaded at run time,
which must not contradict 1; 3. serving.properties, then OVMS's graph.pbtxt; 4. the environment, where OPTION_ and
SERVING_ names go before the names other servers use; 5. config.properties; 6. the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from dragoman.config.archives import is_archive
from dragoman.config.bundled import BUNDLED, DEMO_NAME, bundled_or
from dragoman.config.combinations import (
    Chosen,
    Origin,
    Origins,
    cite,
    contradictions,
    imply,
    imply_engine,
    without_effect,
)
from dragoman.config.engine_options import (
    GROUPS,
    OPTIONS,
    TASKS,
    ClientSettings,
    EngineSettings,
    ModelSettings,
    SpeculationSettings,
    UpstreamSettings,
)
from dragoman.config.entries import ModelEntry, counted_from
from dragoman.config.foreign import (
    ENGINE_OF_DJL,
    ENGINES_OF_DJL,
    FOREIGN_PREFIXES,
    MANAGEMENT_ADDRESS,
    OF_ENGINES,
    OPTIONS_OF_LMI,
    OTHER_TASK,
    REASONS,
    REFUSED_OPTIONS,
    ForeignOption,
)
from dragoman.config.hub_models import FindModel, left_alone, only_cached
from dragoman.config.kinds import ModelPath, Value
from dragoman.config.model_names import hub_names, renamed, usual_names
from dragoman.config.names import Match, find_options, misplaced_secret, nearest_name
from dragoman.config.option import Option
from dragoman.config.ovms import GRAPH_NAME, read_graph, version_folder
from dragoman.config.request_options import (
    AdapterSettings,
    LlamaCppSettings,
    PictureSettings,
    ReasoningSettings,
    SamplingSettings,
)
from dragoman.config.server_options import ServerSettings, split_address
from dragoman.config.sources import (
    HOME_VARIABLE,
    PROPERTIES_NAME,
    Given,
    ServerFile,
    ServerFileError,
    cache_home,
    read_environment,
    read_properties_file,
    read_server_file,
)
from dragoman.config.trust import keep_code_out, links_out, trusted
from dragoman.engine.vllm.accelerators import vllm_uses_gpu
from dragoman.files.model_texts import holds_model, is_gguf, see_with
from dragoman.hub.names import HubError, hub_model

COMMAND_LINE, CALL, FILE, ENVIRONMENT, SERVER_FILE = range(5)  # the layers, highest first

OPERATOR_FILE = "model.py"  # LMI's default of option.entryPoint
BUILT_IN = "djl_python"  # the package of LMI's handlers, which mean the server itself
WEIGHTS_CONFIG = "config.json"  # a file of every directory with weights
ADAPTERS = "adapters"  # LMI's folder of adapters next to the weights

_NAMED = {option.name: option for option in OPTIONS}


class ConfigError(Exception):
    """The configuration cannot be used; `problems`: one line per reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


@dataclass(frozen=True, slots=True)
class Config:
    """A complete, legal configuration. `origins` has an entry for every option.

    `directory` holds serving.properties, `model_dir` the weights. `notices`: one line for each given value without
    effect. `own_options`: of the operator's model.py, without the prefix. `has_lmi_signs`: there is a file or variable
    of LMI's.
    """

    model: ModelSettings
    engine: EngineSettings
    speculation: SpeculationSettings
    adapters: AdapterSettings
    pictures: PictureSettings
    reasoning: ReasoningSettings
    sampling: SamplingSettings
    upstream: UpstreamSettings
    server: ServerSettings
    clients: ClientSettings
    llamacpp: LlamaCppSettings
    directory: Path
    model_dir: Path
    origins: Origins
    notices: tuple[str, ...] = ()
    version: str = ""
    own_options: Mapping[str, str] = field(default_factory=dict)
    engine_options: Mapping[str, str] = field(default_factory=dict)
    has_lmi_signs: bool = False

    @property
    def name(self) -> str:
        return self.model.name[0]

    def value(self, option: Option) -> Value:
        found: Value = getattr(getattr(self, _ATTRIBUTES[option.group]), option.name)
        return found

    def cite(self, name: str) -> str:
        value = self.value(_NAMED[name]) if name in _NAMED else self.engine_options[name]
        return cite(name, value, self.origins[name])


_ATTRIBUTES: Mapping[type, str] = {group: name for name, group in get_type_hints(Config).items() if group in GROUPS}


def demo_model_dir() -> Path:
    return BUNDLED[DEMO_NAME]


def resolve(
    command_line: Sequence[Given],
    environ: Mapping[str, str],
    demo_dir: Path,
    entry: ModelEntry | None = None,
    call: Sequence[Given] = (),
    find: FindModel | None = None,
) -> Config:
    """The configuration of these sources; `demo_dir`: the default model. `entry`: one model among several, with its
    directory.

    `call`: options from a call at run time. `find`: finds a model of the hub, None = in its cache. Raises: ConfigError.
    """
    findings = _Findings(entry.notices if entry else (), find or only_cached(environ))
    findings.read_shared(command_line, environ)
    named = entry.directory if entry else findings.directory() or demo_dir
    directory = version_folder(named)
    findings.read_graph(directory)
    findings.read_file(directory)
    findings.read(CALL, call)
    chosen = findings.choose()
    findings.check_call(chosen)
    imply_engine(chosen)
    engine_options = findings.pass_to_engine(chosen)
    findings.note_foreign(chosen)
    findings.notices += imply(chosen)
    findings.problems += contradictions(chosen)
    model_dir = _model_dir(chosen, directory, entry)
    values, origins = chosen.values, chosen.origins
    values["lora"] = _adapters(chosen, directory, model_dir)
    has_code = _has_operator_file(chosen, (directory, model_dir), findings.notices)
    findings.notices += without_effect(chosen, has_operator_file=has_code)
    own_options = findings.pass_on() if has_code else {}
    if chosen["revision"] and not hub_names(model_dir):
        findings.notices.append(f"{chosen.cite('revision')}: no effect; {model_dir} is no model of the hub")
    origin = Origin(entry.source, "directory") if entry else origins["model_id"]
    findings.check_places(directory, model_dir, origin, chosen)
    see_with(model_dir, chosen.path("mmproj"))
    values["cache_dir"] = cache_dir = chosen.path("cache_dir") or cache_home(environ) / "dragoman"
    values["prefix_store_dir"] = values["prefix_store_dir"] or cache_dir / "prefixes"
    if entry and entry.name:
        values["name"] = renamed(entry.name, chosen.words("name"))
        origins["name"] = Origin(entry.source)
    elif not values["name"]:
        values["name"] = usual_names(named, directory, model_dir, demo_dir)
    return Config(
        **{name: _build(group, values) for group, name in _ATTRIBUTES.items()},
        directory=directory,
        model_dir=model_dir,
        origins=MappingProxyType(origins),
        notices=tuple(findings.notices),
        version=entry.version if entry else "",
        own_options=own_options,
        engine_options=engine_options,
        has_lmi_signs=(directory / PROPERTIES_NAME).is_file() or findings.has_lmi_variables(),
    )


def given_options(command_line: Sequence[Given], environ: Mapping[str, str]) -> Chosen:
    """The options that all models share. Wrong values count as not given: `resolve` reports them. Raises: ConfigError."""
    findings = _Findings(find=left_alone)
    findings.read_shared(command_line, environ)
    return findings.choose()


def is_from_file(origin: Origin, directory: Path) -> bool:
    """True if the value stands in the serving.properties, or OVMS's graph.pbtxt, of `directory`."""
    return origin.source.startswith(tuple(f"{directory / name} line " for name in (PROPERTIES_NAME, GRAPH_NAME)))


def _build(group: type, values: Mapping[str, Value]) -> Any:
    return group(**{option.name: values[option.name] for option in OPTIONS if option.group is group})


def _model_dir(chosen: Chosen, directory: Path, entry: ModelEntry | None) -> Path:
    """The weights' directory. For a model among several without weights in its directory, the environment may name them."""
    named = chosen.path("model_id")
    if named is None:
        return directory
    if is_from_file(chosen.origins["model_id"], directory):
        return directory / named
    return named if entry and not holds_model(directory) else directory


def _adapters(chosen: Chosen, directory: Path, model_dir: Path) -> tuple[str, ...]:
    """The adapters of option.lora, relative to its file, and those in the model's folder `adapters`."""
    pairs = [(name, Path(path)) for name, _, path in (pair.partition("=") for pair in chosen.words("lora"))]
    if is_from_file(chosen.origins["lora"], directory):
        pairs = [(name, directory / path) for name, path in pairs]
    named = {name for name, _ in pairs}
    if chosen["enable_lora"] and not chosen["merge_lora"] and adapters_folder(model_dir).is_dir():
        for path in sorted(adapters_folder(model_dir).iterdir()):
            is_file = path.is_file() and path.suffix.lower() == ".gguf"
            name = path.stem if is_file else path.name
            if (is_file or path.is_dir()) and name not in named:
                pairs.append((name, path))
                named.add(name)
    return tuple(f"{name}={path}" for name, path in pairs)


def adapters_folder(model_dir: Path) -> Path:
    """The path of a model's folder of adapters, existing or not: in its directory, or next to its GGUF file."""
    return (model_dir.parent if model_dir.is_file() else model_dir) / ADAPTERS


def _places_beside(chosen: Chosen, model_dir: Path) -> list[Path]:
    adapters = [Path(path) for _, _, path in (pair.partition("=") for pair in chosen.words("lora"))]
    places = [*adapters, chosen.path("draft_model")]
    return [place for place in places if place is not None and not place.is_relative_to(model_dir)]


def _has_operator_file(chosen: Chosen, directories: Sequence[Path], notices: list[str]) -> bool:
    notices += keep_code_out(chosen, directories, OPERATOR_FILE)
    named = chosen["entry_point"]
    if not chosen["hooks"]:
        return False
    if isinstance(named, str) and named.partition(".")[0] != BUILT_IN:
        return True
    return any((directory / OPERATOR_FILE).is_file() for directory in directories)


def _missing(model_dir: Path, origin: Origin) -> list[str]:
    if model_dir.is_dir() or is_gguf(model_dir):
        return []
    where = f"{origin.name}={model_dir} ({origin.source})" if origin.name else f"{model_dir}"
    return [f"{where}: must be a directory on this machine that holds a model, or a GGUF file; {_why_not(model_dir)}"]


def _why_not(model_dir: Path) -> str:
    if is_archive(model_dir):
        return "an archive is served with --load-models"
    if model_dir.is_file():
        return "this is a file of another kind"
    helps = "" if len(model_dir.parts) > 1 else "; a model of the hub is named ORG/NAME, as in Qwen/Qwen3-0.6B"
    return f"there is none of that name{helps}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One given value of an option; the lowest (layer, rank) wins."""

    given: Given
    match: Match
    text: str
    layer: int

    @property
    def order(self) -> tuple[int, int]:
        return self.layer, self.match.rank


class _Findings:
    def __init__(self, notices: Sequence[str] = (), find: FindModel = left_alone) -> None:
        self.problems: list[str] = []
        self._find = find
        self._home = Path()  # the base of relative paths in serving.properties
        self.notices: list[str] = list(notices)
        self._candidates: dict[str, list[_Candidate]] = {option.name: [] for option in OPTIONS}
        self._foreign: list[tuple[int, ForeignOption, Given]] = []  # the number is the layer
        self._unknown_options: list[tuple[int, Given, str]] = []  # with their messages
        self._unknown_flags: list[tuple[int, Given, str]] = []  # likewise; not passed to an operator's code
        self._server_file = ServerFile(None, Path())

    def read_shared(self, command_line: Sequence[Given], environ: Mapping[str, str]) -> None:
        """Read the sources common to all models. Raises: ConfigError if config.properties cannot be read."""
        self.read(COMMAND_LINE, command_line)
        self.read(ENVIRONMENT, read_environment(environ))
        named, origin = self._choose_one(_NAMED["config_file"])
        assert named is None or isinstance(named, Path)
        try:
            self._server_file = read_server_file(named, f"{origin.name}={named} ({origin.source})", environ)
        except ServerFileError as error:
            raise ConfigError([str(error)]) from error
        self.read(SERVER_FILE, self._server_file.givens)

    def read(self, layer: int, givens: Sequence[Given]) -> None:
        for given in givens:
            matches = find_options(given)
            if not matches:
                self._unknown(layer, given)
            for match in matches:
                if isinstance(match.target, ForeignOption):
                    self._foreign.append((layer, match.target, given))
                    continue
                if layer == SERVER_FILE and match.target is _NAMED["config_file"]:
                    self.notices.append(f"{_quote(given)}: no effect in the file itself")
                    continue
                try:
                    text = match.text(given)
                except ValueError:
                    self._bad(match, given)
                    continue
                if (namesake := _namesake(match.target, text)) is not None:
                    self._foreign.append((layer, namesake, given))
                    continue
                self._candidates[match.target.name].append(_Candidate(given, match, text, layer))

    def read_graph(self, directory: Path) -> None:
        """Read OVMS's graph.pbtxt, if any; serving.properties is read after it, and precedes it."""
        graph = read_graph(directory)
        self.notices += graph.notices
        self.problems += graph.problems
        self._read_files(directory, graph.givens)

    def check_places(self, directory: Path, model_dir: Path, origin: Origin, chosen: Chosen) -> None:
        """Raises: ConfigError with all problems, also for a missing model, or links out of it."""
        self.problems += _missing(model_dir, origin)
        places = dict.fromkeys((directory, model_dir, *_places_beside(chosen, model_dir)))
        self.problems += dict.fromkeys(line for place in places for line in links_out(place))
        if self.problems:
            raise ConfigError(self.problems)

    def read_file(self, directory: Path) -> None:
        self._home, path = directory, directory / PROPERTIES_NAME
        try:
            givens = read_properties_file(path) if path.is_file() else []
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"{path}: cannot be read as UTF-8 text: {error}"]) from error
        self._read_files(directory, givens)

    def _read_files(self, directory: Path, givens: Sequence[Given]) -> None:
        counted, notices = trusted(directory, givens)
        self.notices += notices
        self.read(FILE, counted)

    def has_lmi_variables(self) -> bool:
        """True if the environment holds an OPTION_ or SERVING_ variable of an option that LMI has, too."""
        ours = [
            candidate.given
            for name in OPTIONS_OF_LMI
            for candidate in self._candidates[name]
            if candidate.layer == ENVIRONMENT
        ]
        foreign = [given for layer, _, given in self._foreign if layer == ENVIRONMENT]
        return any(given.name.startswith(("OPTION_", "SERVING_")) for given in (*ours, *foreign))

    def directory(self) -> Path | None:
        candidates = sorted(self._candidates["model_id"], key=lambda candidate: candidate.order)
        try:
            value = self._parse(_NAMED["model_id"], candidates[0]) if candidates else None
        except ValueError:  # `choose` reports it
            return None
        return value if isinstance(value, Path) else None

    def choose(self) -> Chosen:
        values: dict[str, Value] = {}
        origins: dict[str, Origin] = {}
        for option in OPTIONS:
            values[option.name], origins[option.name] = self._choose_one(option)
        if self._server_file.path and values["config_file"] is None:
            values["config_file"] = self._server_file.path
            origins["config_file"] = Origin("environment", HOME_VARIABLE)
        return Chosen(values, origins)

    def check_call(self, chosen: Chosen) -> None:
        for name, candidates in self._candidates.items():
            if any(candidate.layer == COMMAND_LINE for candidate in candidates):
                origin = chosen.origins[name]
                decided = f"{origin.name} ({origin.source})"
                texts = [_quote(candidate.given) for candidate in candidates if candidate.layer == CALL]
                self.problems += [f"{text}: cannot be changed; it is decided by {decided}" for text in texts]

    def _choose_one(self, option: Option) -> tuple[Value, Origin]:
        candidates = self._candidates[option.name]
        if option.name == "model_id":  # the file lies in the directory that the command line names, so it goes first
            candidates = [
                replace(candidate, layer=-1) if candidate.layer == FILE else candidate for candidate in candidates
            ]
        if not candidates:
            return option.default, Origin("default")
        best = min(candidate.order for candidate in candidates)
        same = [candidate for candidate in candidates if candidate.order == best]
        chosen = same[-1]  # the last one wins, as in properties files and on command lines
        self._check_agreement(same)
        try:
            value = self._parse(option, chosen)
        except ValueError:
            self._bad(chosen.match, chosen.given)
            return option.default, Origin("default")
        return value, Origin(chosen.given.source, chosen.given.name)

    def _parse(self, option: Option, chosen: _Candidate) -> Value:
        """Raises: ValueError for a wrong value; ConfigError if a model is not found."""
        value = option.row.kind.parse(chosen.text)
        if isinstance(option.row.kind, ModelPath) and (found := self._on_hub(chosen)) is not None:
            return found
        if chosen.layer == SERVER_FILE and isinstance(value, Path):
            return self._server_file.home / value
        if chosen.layer in (COMMAND_LINE, ENVIRONMENT) and option.name == "model_id" and isinstance(value, Path):
            return bundled_or(value)
        if chosen.layer == SERVER_FILE and isinstance(value, tuple) and option.name == "load_models":
            return counted_from(self._server_file.home, value)
        return value

    def _on_hub(self, chosen: _Candidate) -> Path | None:
        """The directory of the named hub model; None for a path. An existing path precedes the hub."""
        homes = {FILE: self._home, -1: self._home, SERVER_FILE: self._server_file.home}  # -1: see `_choose_one`
        if (homes.get(chosen.layer, Path()) / chosen.text.strip()).exists():
            return None
        revision, _ = self._choose_one(_NAMED["revision"])
        model = hub_model(chosen.text, str(revision or "") if chosen.match.target is _NAMED["model_id"] else "")
        if model is None:
            return None
        try:
            return self._find(model)
        except HubError as error:
            raise ConfigError([f"{_quote(chosen.given)}: {error}"]) from error

    def _check_agreement(self, same: Sequence[_Candidate]) -> None:
        chosen = same[-1]
        for other in same[:-1]:
            if other.given.key != chosen.given.key and other.text != chosen.text:
                self.problems.append(f"{_quote(other.given)}: contradicts {_quote(chosen.given)}; give one of them")

    def _unknown(self, layer: int, given: Given) -> None:
        if given.source == "environment" and not given.name.startswith("OPTION_"):
            reason = next((why for prefix, why in FOREIGN_PREFIXES.items() if given.name.startswith(prefix)), None)
            if reason:  # not an error: containers and clusters set such names themselves
                self.notices.append(f"{_quote(given)}: {reason}")
            return
        if secret := misplaced_secret(given):
            self.problems.append(f"{given.name} ({given.source}): secrets are not taken from here, {secret}")
            return
        nearest = nearest_name(given)
        hint = f"the nearest known one is {nearest}" if nearest else "`dragoman serve --help-all` lists the known ones"
        hint = REFUSED_OPTIONS.get(given.key, hint)
        self.problems.append(f"{_quote(given)}: unknown option; {hint}")
        if given.key.startswith("option."):
            self._unknown_options.append((layer, given, hint))
        elif layer == COMMAND_LINE:
            self._unknown_flags.append((layer, given, hint))

    def pass_on(self) -> dict[str, str]:
        for layer, given, hint in self._unknown_options:
            if layer == CALL:  # the operator's code trusts it as the operator's
                continue
            self.problems.remove(f"{_quote(given)}: unknown option; {hint}")
            self.notices.append(f"{_quote(given)}: not an option of this server, passed on to model.py; {hint}")
        passed = [(layer, given.key, given.text) for layer, given, _ in self._unknown_options]
        passed += [(layer, target.key, given.text) for layer, target, given in self._foreign if not target.is_secret]
        passed = [entry for entry in passed if entry[0] != CALL]
        ordered = sorted(passed, key=lambda entry: entry[0], reverse=True)  # the highest layer last, so that it wins
        return {key.removeprefix("option."): text for _, key, text in ordered if key.startswith("option.")}

    def pass_to_engine(self, chosen: Chosen) -> dict[str, str]:
        """The options that the engine checks: its own, and unknown names. A call may not set them; they may name code."""
        engine = str(chosen["engine"])
        if engine not in OF_ENGINES:
            return {}
        taken = [
            (layer, target.key, given) for layer, target, given in self._foreign if target.key in OF_ENGINES[engine]
        ]
        self._foreign = [entry for entry in self._foreign if entry[1].key not in OF_ENGINES[engine]]
        for layer, given, hint in self._unknown_options + self._unknown_flags:
            self.problems.remove(f"{_quote(given)}: unknown option; {hint}")
            taken.append((layer, given.key, given))
        self._unknown_options = []
        found: dict[str, str] = {}
        for layer, key, given in sorted(taken, key=lambda entry: entry[0], reverse=True):
            if layer == CALL:
                self.problems.append(f"{_quote(given)}: only the operator can set it")
            name = key.removeprefix("option.")
            found[name], chosen.origins[name] = given.text, Origin(given.source, given.name)
        return found

    def note_foreign(self, chosen: Chosen) -> None:
        """Note options of other servers, unless they only repeat the chosen values."""
        for _, target, given in self._foreign:
            if target.is_harmless(given.text) or _is_own_address(target, given, chosen):
                continue
            quoted = _quote(given, "(hidden)" if target.is_secret else None)
            reason = (
                REASONS["no_choice"] if target.reason == REASONS["no_gpu"] and not _is_on_cpu(chosen) else target.reason
            )
            self.notices.append(f"{quoted}: no effect here; {reason}")

    def _bad(self, match: Match, given: Given) -> None:
        is_secret = isinstance(match.target, Option) and match.target.row.is_secret
        problem = f"{_quote(given, '(hidden)' if is_secret else None)}: must be {match.allowed}"
        if problem not in self.problems:  # inference_address is one name of two options
            self.problems.append(problem)


def _is_on_cpu(chosen: Chosen) -> bool:
    return chosen["engine"] == "rolling" or (chosen["engine"] == "vllm" and not vllm_uses_gpu())


def _is_own_address(target: ForeignOption, given: Given, chosen: Chosen) -> bool:
    if target.key != MANAGEMENT_ADDRESS:
        return False
    try:
        host, port = split_address(given.text)
    except ValueError:
        return False
    return (host, port) == (chosen["host"], str(chosen["port"]))


def _namesake(target: Option, text: str) -> ForeignOption | None:
    """LMI's option of the same name, if the word is one for that."""
    if target is _NAMED["task"] and not TASKS.has(text):
        return OTHER_TASK
    if target is _NAMED["engine"] and text.lower() in ENGINES_OF_DJL:
        return ENGINE_OF_DJL
    return None


def _quote(given: Given, text: str | None = None) -> str:
    value = given.text if text is None else text
    return f"{given.name}={value} ({given.source})" if value else f"{given.name} ({given.source})"

"""Dependencies point one way; this walks every import of the package and fails on a wrong arrow, or on a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = sorted((SOURCE / "dragoman").rglob("*.py"))

# A module may import its own package and what its longest matching entry lists; a name covers everything below it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "dragoman": (),
    "dragoman.types": (),
    "dragoman.parameters": ("dragoman.types",),
    "dragoman.errors": (),
    "dragoman.__main__": ("dragoman.cli",),
    "dragoman.engine.vllm.accelerators": (),
    "dragoman.grammar.bitmask": (),
    "dragoman.cores": (),
    "dragoman.histogram": (),
    "dragoman.kernels": (),
    "dragoman.logs": (),
    "dragoman.gguf": ("dragoman.errors",),
    "dragoman.files": ("dragoman.errors", "dragoman.gguf"),
    "dragoman.prefix_store": (),
    "dragoman.hub": ("dragoman.files",),
    "dragoman.schemas": (),
    "dragoman.coroutines": (),
    "dragoman.config": (
        "dragoman.types",
        "dragoman.parameters",
        "dragoman.engine.vllm.accelerators",
        "dragoman.cores",
        "dragoman.hub",
        "dragoman.files",
    ),
    "dragoman.tokenizer": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.gguf.pre_tokenizers",
        "dragoman.files",
    ),
    "dragoman.models": (
        "dragoman",
        "dragoman.kernels",
        "dragoman.types",
        "dragoman.errors",
        "dragoman.gguf",
        "dragoman.files",
    ),
    "dragoman.hooks": ("dragoman.server.apis.lmi.hooks",),
    "dragoman.server.apis.lmi.hooks": ("dragoman.errors", "dragoman.server.json_body"),
    "dragoman.engine": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.grammar.bitmask",
        "dragoman.cores",
        "dragoman.histogram",
        "dragoman.models",
        "dragoman.files",
        "dragoman.prefix_store",
    ),
    "dragoman.pictures": ("dragoman.types", "dragoman.errors"),
    "dragoman.grammar": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.grammar.bitmask",
        "dragoman.schemas",
        "dragoman.tokenizer",
    ),
    "dragoman.engine.remote": (
        "dragoman.errors",
        "dragoman.types",
        "dragoman.models.config",
        "dragoman.tokenizer",
        "dragoman.engine.affinity",
        "dragoman.engine.base",
        "dragoman.engine.beams",
        "dragoman.engine.factory",
        "dragoman.engine.life",
        "dragoman.engine.ranking",
        "dragoman.coroutines",
    ),
    "dragoman.engine.vllm": (
        "dragoman.errors",
        "dragoman.types",
        "dragoman.models",
        "dragoman.files",
        "dragoman.engine.vllm.accelerators",
        "dragoman.cores",
        "dragoman.coroutines",
        "dragoman.engine.base",
        "dragoman.engine.beams",
        "dragoman.engine.factory",
        "dragoman.engine.life",
        "dragoman.engine.ranking",
    ),
    "dragoman.engine.base": ("dragoman.types", "dragoman.errors", "dragoman.histogram"),
    "dragoman.engine.beams": ("dragoman.types", "dragoman.errors", "dragoman.coroutines"),
    "dragoman.engine.factory": ("dragoman.engine.base",),
    "dragoman.engine.life": ("dragoman.types", "dragoman.errors", "dragoman.cores", "dragoman.engine.base"),
    "dragoman.engine.ranking": ("dragoman.types",),
    "dragoman.engine.spread": ("dragoman.types", "dragoman.errors", "dragoman.engine.base", "dragoman.engine.life"),
    "dragoman.engine.renewable": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.engine.base",
        "dragoman.engine.factory",
        "dragoman.engine.life",
    ),
    "dragoman.server": (
        "dragoman.errors",
        "dragoman",
        "dragoman.types",
        "dragoman.parameters",
        "dragoman.batch",
        "dragoman.logs",
        "dragoman.histogram",
        "dragoman.coroutines",
        "dragoman.engine.base",
        "dragoman.tokenizer",
        "dragoman.pictures",
        "dragoman.schemas",
    ),
    "dragoman.server.api": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.server.json_body",
        "dragoman.server.timings",
    ),
    "dragoman.host": (
        "dragoman.errors",
        "dragoman.hub",
        "dragoman.files",
        "dragoman.config",
        "dragoman.models",
        "dragoman.engine.base",
        "dragoman.engine.factory",
        "dragoman.cores",
        "dragoman.nodes",
        "dragoman.tokenizer.other_files",
        "dragoman.server",
    ),
    "dragoman.host.templates": ("dragoman.config", "dragoman.models", "dragoman.tokenizer"),
    "dragoman.nodes": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.config",
        "dragoman.cores",
        "dragoman.models.config",
        "dragoman.engine.affinity",
        "dragoman.engine.base",
        "dragoman.engine.factory",
        "dragoman.engine.spread",
    ),
    "dragoman.cli.node_process": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.logs",
        "dragoman.config",
        "dragoman.cores",
        "dragoman.models",
        "dragoman.nodes",
        "dragoman.engine.base",
        "dragoman.engine.spread",
        "dragoman.host",
        "dragoman.compose",
    ),
    "dragoman.compose": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.host",
        "dragoman.config",
        "dragoman.tokenizer",
        "dragoman.grammar",
        "dragoman.pictures",
        "dragoman.models",
        "dragoman.engine.base",
        "dragoman.engine.factory",
        "dragoman.engine.renewable",
        "dragoman.server.apis.lmi.operator.loading",
        "dragoman.server",
    ),
    "dragoman.server.apis.lmi.operator.loading": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.config",
        "dragoman.models.config",
        "dragoman.server",
        "dragoman.tokenizer",
    ),
    "dragoman.tools.evaluate": (
        "dragoman.engine.factory",
        "dragoman.engine.rolling.forward",
        "dragoman.engine.rolling.options",
        "dragoman.models",
        "dragoman.tokenizer",
    ),
    "dragoman.tools.selftest": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.engine",
        "dragoman.models",
        "dragoman.tools.evaluate",
        "dragoman.tools.memory_speed",
        "dragoman.tools.text_table",
    ),
    "dragoman.tools.bench": ("dragoman.errors", "dragoman.tools.percentiles", "dragoman.tools.text_table"),
    "dragoman.tools.percentiles": (),
    "dragoman.tools.memory_speed": (),
    "dragoman.tools.text_table": (),
    "dragoman.tools.doctor": (
        "dragoman.errors",
        "dragoman.kernels.presence",
        "dragoman",
        "dragoman.engine.vllm.accelerators",
        "dragoman.cores",
        "dragoman.host.machine",
        "dragoman.tools.memory_speed",
        "dragoman.engine",
        "dragoman.models",
    ),
    "dragoman.batch": ("dragoman", "dragoman.coroutines"),
    "dragoman.tools.compress": ("dragoman.tools.evaluate", "dragoman.models"),
    "dragoman.tools.plan": ("dragoman.types", "dragoman.errors", "dragoman.engine", "dragoman.tools.percentiles"),
    "dragoman.llm": (
        "dragoman.types",
        "dragoman.errors",
        "dragoman.coroutines",
        "dragoman.config",
        "dragoman.engine.factory",
        "dragoman.host",
        "dragoman.compose",
        "dragoman.server",
    ),
    "dragoman.ray": (
        "dragoman.errors",
        "dragoman.types",
        "dragoman.logs",
        "dragoman.config",
        "dragoman.cli.arguments",
        "dragoman.engine.affinity",
        "dragoman.engine.base",
        "dragoman.engine.factory",
        "dragoman.engine.spread",
        "dragoman.host",
        "dragoman.compose",
        "dragoman.server",
    ),
    "dragoman.cli": (
        "dragoman.coroutines",
        "dragoman.errors",
        "dragoman.parameters",
        "dragoman.engine.base",
        "dragoman.logs",
        "dragoman",
        "dragoman.nodes",
        "dragoman.cores",
        "dragoman.config",
        "dragoman.hub",
        "dragoman.engine.factory",
        "dragoman.host",
        "dragoman.compose",
        "dragoman.files",
        "dragoman.models",
        "dragoman.tools.plan",
        "dragoman.tools.evaluate",
        "dragoman.tools.compress",
        "dragoman.tools.selftest",
        "dragoman.batch",
        "dragoman.tools.doctor",
        "dragoman.tools.bench",
        "dragoman.tools.text_table",
        "dragoman.tokenizer",
        "dragoman.server",
        "dragoman.prefix_store",
    ),
}

# Only these may read the sources of configuration.
READS_SOURCES = ("dragoman.cli", "dragoman.llm", "dragoman.ray", "dragoman.config")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module; parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def exact_or_below(name: str, package: str) -> bool:
    """`dragoman` alone stands for the package's own module (its version), not for everything below it."""
    return name == package if package == "dragoman" else is_below(name, package)


def rule_for(name: str) -> str:
    return max((rule for rule in ALLOWED if is_below(name, rule)), key=len)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported module of dragoman with its line; relative imports are not used in this project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if is_below(alias.name, "dragoman"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            if node.module and is_below(node.module, "dragoman"):
                yield from ((node.lineno, target) for target in dict.fromkeys(resolved(node)))


def resolved(node: ast.ImportFrom) -> Iterator[str]:
    """The modules that a `from` imports or imports from: `from package import module` imports the module."""
    for alias in node.names:
        name = f"{node.module}.{alias.name}"
        path = SOURCE / name.replace(".", "/")
        yield name if path.is_dir() or path.with_suffix(".py").exists() else str(node.module)


def wrong_arrows(name: str, tree: ast.AST) -> list[str]:
    rule = rule_for(name)
    own_package = rule if rule != "dragoman" else name
    return [
        f"{name}:{line} imports {target}, which {rule} must not"
        for line, target in imports(tree)
        if not is_below(target, own_package) and not any(exact_or_below(target, one) for one in ALLOWED[rule])
    ]


# A package's parts depend on each other in one direction only, at every level.
PACKAGES = sorted({path.parent for path in MODULES})


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a module imports anywhere, in functions and for type checking too."""
    return frozenset(target for _, target in imports(tree_of(path)))


def circle_of(package: str, importers: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """A circle among the direct parts of the package, each standing for all that lies below it; [] if there is none."""
    graph: dict[str, set[str]] = {}
    for importer, targets in importers:
        part = part_of(package, importer)
        others = {part_of(package, target) for target in targets} - {part, None}
        if part is not None:
            graph.setdefault(part, set()).update(one for one in others if one)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def part_of(package: str, module: str) -> str | None:
    """The part of the package that a module belongs to; None if it lies elsewhere, or is the package itself."""
    if not module.startswith(package + "."):
        return None
    return f"{package}.{module.removeprefix(package + '.').partition('.')[0]}"


def test_the_parts_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    circles = {}
    for package in PACKAGES:
        name = ".".join(package.relative_to(SOURCE).parts)
        importers = [(module_name(path), imported(path)) for path in MODULES if path.is_relative_to(package)]
        circles[name] = circle_of(name, importers)
    assert {name: circle for name, circle in circles.items() if circle} == {}


def test_a_circle_is_noticed_between_modules_and_between_packages() -> None:
    modules = [("p.a", {"p.b"}), ("p.b", {"p.c", "q"}), ("p.c", {"p.a"})]
    assert set(circle_of("p", modules)) == {"p.a", "p.b", "p.c"}
    packages = [("p.x.one", {"p.y.two"}), ("p.y.three", {"p.x.four"}), ("p.y", {"p"})]
    assert set(circle_of("p", packages)) == {"p.x", "p.y"}
    assert circle_of("p", [("p.x.one", {"p.x.two"}), ("p.x.two", {"p.y"})]) == []


def test_a_module_imports_only_what_lies_below_it() -> None:
    assert [arrow for path in MODULES for arrow in wrong_arrows(module_name(path), tree_of(path))] == []


# Modules that may know that there is LMI, OpenAI or any other API: the app, which serves them all, and what builds a server.
KNOWS_APIS = (
    "dragoman.server.app",
    "dragoman.server.apis",
    "dragoman.compose",
    "dragoman.server.apis.lmi.operator.loading",
    "dragoman.cli",
    "dragoman.ray",
    "dragoman.hooks",
)


def outside(*packages: str) -> Iterator[tuple[str, Path]]:
    """Name and path of each module that lies in none of the packages."""
    for path in MODULES:
        name = module_name(path)
        if not any(is_below(name, package) for package in packages):
            yield name, path


def test_the_core_knows_no_client_api() -> None:
    known = {
        name: [one for one in imported(path) if is_below(one, "dragoman.server.apis")]
        for name, path in outside(*KNOWS_APIS)
    }
    assert {name: targets for name, targets in known.items() if targets} == {}


APIS = "dragoman.server.apis"

# An importing API and the imported one: an envelope around the other's answers.
ENVELOPES = {("sagemaker", "lmi")}


def api_of(module: str) -> str | None:
    """The folder of an API that a module lies in; None if it lies elsewhere."""
    part = part_of(APIS, module)
    return part.rpartition(".")[2] if part else None


def test_no_api_imports_another_one() -> None:
    """APIs share wire formats, which are folders of their own; who puts the server together joins APIs."""
    pairs = {(api_of(module_name(path)), api_of(target)) for path in MODULES for target in imported(path)}
    between = {(api, other) for api, other in pairs if api and other and api != other}
    assert {(api, other) for api, other in between if not other.endswith("_wire")} == ENVELOPES


def test_only_the_front_doors_read_the_sources_of_configuration() -> None:
    assert [name for name, path in outside(*READS_SOURCES) if "dragoman.config.sources" in imported(path)] == []


READS_THE_ENVIRONMENT = (
    "dragoman.config.sources",
    "dragoman.engine.vllm.surface",  # sets what vLLM reads
    "dragoman.kernels.presence",  # DRAGOMAN_KERNELS_ISA, which the library of kernels reads
    "dragoman.models.profile",  # OV_CPU_MAX_ISA, which OpenVINO reads, decides about kernels and so about weights
    "dragoman.models.memory",  # leaves alone what the operator has told the C library
    "dragoman.tokenizer.template_process",  # hands on where Python's own library is, and nothing else
)


def test_only_one_module_reads_the_environment() -> None:
    reads = [
        f"{name}:{node.lineno}"
        for name, path in outside(*READS_THE_ENVIRONMENT)
        if name != "dragoman"  # it tells dependencies to report nothing
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
    ]
    assert reads == []


# What tells of the processor. The kernels' workers and the checks of files know how many cores there are, and no more.
ASKS_FOR_THE_PROCESSOR = re.compile(
    r"\b(this_processor|lacks_vnni|cpuinfo|FULL_DEVICE_NAME|OPTIMIZATION_CAPABILITIES|getauxval|platform\.machine|"
    r"platform\.processor)\b"
)


def test_only_the_profile_asks_what_the_processor_can_do() -> None:
    asking = {module_name(path) for path in MODULES if ASKS_FOR_THE_PROCESSOR.search(path.read_text(encoding="utf-8"))}
    assert asking == {"dragoman.models.profile", "dragoman.tools.doctor.machine"}  # the doctor decides nothing


WRONG = (
    ("dragoman.engine.rolling.core", "from dragoman.server.generation.service import Service"),
    ("dragoman.engine.rolling.core", "import dragoman.server"),
    ("dragoman.server.generation.service", "from dragoman.engine.rolling import engine"),
    ("dragoman.server.apis.lmi.dialect", "from dragoman.engine.rolling.engine import RollingEngine"),
    ("dragoman.server.api", "from dragoman.server.generation.service import Service"),
    ("dragoman.server.app", "from dragoman.config.engine_options import OPTIONS"),
    ("dragoman.types", "import dragoman.errors"),
    ("dragoman.host.loading", "from dragoman.compose import build_served_model"),
    ("dragoman.models.loader", "from dragoman.engine.base import Engine"),
    ("dragoman.cli.serve", "from dragoman.engine.rolling.engine import RollingEngine"),
)


def test_each_wrong_arrow_is_noticed() -> None:
    assert [row for row in WRONG if len(wrong_arrows(row[0], ast.parse(row[1]))) != 1] == []

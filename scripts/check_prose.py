"""Checks the English of docs, docstrings and comments against the rules in docs/contributing.md, and fails on a breach.

python scripts/check_prose.py [PATH...]

Does: count words of sentences, look for phrases that we do not use, for docstrings that begin with a dangling question word,
and for backticked names that do not exist. Does not: judge more; a reader does. Run by `make check`; with paths it checks
only what lies below them.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MOST_WORDS = 25

# Generated from elsewhere, or a page of measurements.
NOT_PROSE = ("docs/options.md", "docs/performance-log.md")

PHRASES = {
    r"whoever\b": "name who it is",
    r"(?:it|they) (?:is|are) looked\b": "say who looks",
    r"so many\b": "say how many, or `count`",
    r"that many\b": "say how many, or `count`",
    r"(?:to|for|of|from|by) whom\b": "requests are things: which, whose",
    r"somebody\b": "name who it is",
    r"(?<!there )(?<!there, )(?:is|are|was|were) no (?!more\b|such\b|\w+er\b)[a-z]+": "is not a ...",
    r"(?:is|are|was|were) told of\b": "is told about",
    r"seldom\b": "rarely",
    r"anew\b": "again",
    r"be had\b": "be obtained, exists",
    r"of (?:theirs|ours)\b": "their ..., our ...",
    r"lies? beside\b": "is next to",
}
_PHRASE = re.compile(r"\b(?:" + "|".join(f"(?P<p{i}>{text})" for i, text in enumerate(PHRASES)) + ")", re.IGNORECASE)
_DANGLING = re.compile(
    r"(What|Who|Whoever|Whose|Whether|How|Where|Which|So|It is|From which|In which|To whom|At which)\b"
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Text(NamedTuple):
    """A passage of prose: the file, the line where it begins, and whether it is a docstring."""

    path: Path
    line: int
    text: str
    is_docstring: bool = False


class Breach(NamedTuple):
    """A place that breaks a rule, and what to do."""

    path: Path
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def tracked() -> list[Path]:
    """All files that git knows and that are there."""
    names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    return [path for path in map(Path, names) if path.is_file()]


def docstrings(path: Path, tree: ast.AST) -> Iterator[Text]:
    """The docstrings of a module, its classes and functions, without the code in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=True)
            if text:
                text = re.sub(r"(?<=\n\n)(?: {4}.*(?:\n|$))+", lambda code: "\n" * code[0].count("\n"), text)
                yield Text(path, node.body[0].lineno, text, is_docstring=True)


def comments(path: Path, source: str) -> Iterator[Text]:
    """The comments of a module: each behind code, and those on lines of their own as far as they follow each other."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        is_behind_code = bool(token.line[: token.start[1]].strip())
        if lines and (is_behind_code or token.start[0] != last + 1):
            yield Text(path, last - len(lines) + 1, "\n".join(lines))
            lines = []
        if is_behind_code:
            yield Text(path, token.start[0], token.string.lstrip("# "))
        else:
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    if lines:
        yield Text(path, last - len(lines) + 1, "\n".join(lines))


def page(path: Path) -> Iterator[Text]:
    """The passages of a Markdown page: paragraphs, items of lists, cells of tables; blocks of code are left out."""
    source = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
    line = 1
    for block in re.split(r"(\n(?=\s*(?:\n|[-*|#>]|\d+\.\s)))", source):
        for cell in block.split("|") if block.lstrip().startswith("|") else (block,):
            if cell.strip():
                yield Text(path, line + len(block) - len(block.lstrip("\n")), cell)
        line += block.count("\n")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the number of lines before it. A colon or semicolon ends one; a list of code is one word."""
    plain = re.sub(r"`[^`]*`(?:,\s+`[^`]*`)*", "X", text)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    start = 0
    for end in [found.end() for found in re.finditer(r"[.!?:;](?=\s)|\n(?=\s*(?:\n|[│├└]))", plain)] + [len(plain)]:
        yield plain.count("\n", 0, start), plain[start:end].strip()
        start = end


def breaches(text: Text, names: frozenset[str], paths: frozenset[str]) -> Iterator[Breach]:
    """The places of a passage that break a rule."""
    for line, sentence in sentences(text.text):
        count = sum(1 for word in sentence.split() if re.search(r"\w", word))
        if count > MOST_WORDS:
            yield Breach(
                text.path, text.line + line, f"a sentence of {count} words, at most {MOST_WORDS}: {sentence[:60]}..."
            )
    for found in _PHRASE.finditer(re.sub(r"`[^`]*`", lambda code: "X" * len(code[0]), text.text)):
        advice = list(PHRASES.values())[int((found.lastgroup or "p0")[1:])]
        yield Breach(text.path, text.line + text.text.count("\n", 0, found.start()), f'"{found[0]}": {advice}')
    if text.is_docstring and _DANGLING.match(text.text):
        yield Breach(
            text.path, text.line, f'begins with "{text.text.split()[0]}": begin with what it returns or a verb'
        )
    for found in re.finditer(r"`([^`\n]+)`", text.text):
        if not exists(found[1], names, paths, text.is_docstring):
            line = text.line + text.text.count("\n", 0, found.start())
            yield Breach(text.path, line, f"`{found[1]}` does not exist")


def exists(name: str, names: frozenset[str], paths: frozenset[str], is_docstring: bool) -> bool:
    """True if the name is one of our modules or files, or in a docstring any name in our code; or is not of that form."""
    if re.fullmatch(r"[\w/-]+/[\w.-]+\.(py|cpp|hpp)", name):
        return any(path == name or path.endswith("/" + name) for path in paths)
    if re.fullmatch(r"dragoman(\.\w+)+", name) or (is_docstring and re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", name)):
        return all(part in names for part in name.removesuffix("()").split("."))
    return True


def known_names(paths: Iterable[Path]) -> frozenset[str]:
    """Every word in the code of the repository, docstrings and comments left out, and in the names of its files."""
    names: set[str] = set()
    for path in paths:
        names.update(_WORD.findall(str(path)))
        if path.suffix == ".py":
            source = path.read_text()
            held = {text.line for text in docstrings(path, ast.parse(source))}
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type != tokenize.COMMENT and not (token.type == tokenize.STRING and token.start[0] in held):
                    names.update(_WORD.findall(token.string))
        elif path.suffix in (".cpp", ".hpp", ".js", ".json", ".toml", ".html", ".jinja"):
            names.update(_WORD.findall(path.read_text()))
    return frozenset(names)


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file: a page, or the docstrings and comments of a module of the package."""
    if path.suffix == ".md" and str(path) not in NOT_PROSE:
        yield from page(path)
    elif path.parts[:2] == ("src", "dragoman") and path.suffix == ".py":
        source = path.read_text()
        yield from docstrings(path, ast.parse(source))
        yield from comments(path, source)


def main(words: list[str]) -> int:
    """Print every breach; the exit code is 1 if there is one."""
    files = tracked()
    names, paths = known_names(files), frozenset(map(str, files))
    wanted = [path for path in files if not words or any(path.is_relative_to(word) for word in words)]
    found = [breach for path in wanted for text in texts(path) for breach in breaches(text, names, paths)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} breaches of the rules of prose" if found else "prose: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

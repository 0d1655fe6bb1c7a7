"""Models whose files are nearly right: GGUF, headers of safetensors, tokenizer.json, config.json and its like.

Does: write them, have each read as a start reads it, in a process that is limited, and judge what came of it. Does not:
compile. `read` is what the process runs (`python -m tests.fuzz.files`).

Each has to be taken, or refused in one line, within seconds; nothing may end the process, or come as another exception.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.errors import ModelError, ServerError
from dragoman.models.stored.opening import stored_weights
from dragoman.tokenizer.chat_template import load_chat_template
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tokenizer.turn_ends import turn_end_ids
from tests.fuzz.bodies import TEXTS, mutated, text_of
from tests.support.family_checkpoint import read_case, write_case
from tests.support.gguf_parts import ARRAY, SIZES, TEXT, Parts, array, split, text, texts
from tests.support.gguf_tokenizer import tokenizer_metadata
from tests.support.gguf_writer import write_gguf
from tests.tokenizer.vocabularies import byte_level

FAMILIES = ("llama_default", "qwen3_moe", "gemma3_text", "deepseek_v2", "bloom")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
TEMPLATES = (
    "{% if %}", "{{ 7 ** 9999999 // 3 }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ messages.x.y }}", "{{ 'x' * 10 ** 10 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ''.__class__ }}",
    "{{" * 500,
)  # fmt: skip
JSONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
STEPS = (
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
    {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": ""},
    {"type": "Prepend", "prepend": "\u2581" * 9},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYWE="},
    {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}},
    {"type": "Digits", "individual_digits": True},
)  # fmt: skip
PATIENCE_S = 40.0  # for one model
MOST_BYTES = 3 << 30  # of addresses, beyond what the process has at its start
PROMPTS = ("a b 1\n", "x" * 50, "a" * 3000)


class FileMaker:
    """Writes spoiled models, by dice."""

    def __init__(self, dice: random.Random, directory: Path) -> None:
        self._dice = dice
        self._whole = directory / "whole"
        tokenizer = byte_level()
        for family in FAMILIES:
            write_case(family, read_case(family), self._whole / family)
            (self._whole / family / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
            config = {"chat_template": TEMPLATE, "eos_token": "</s>", "added_tokens_decoder": {}}
            (self._whole / family / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            (self._whole / family / "generation_config.json").write_text('{"eos_token_id": [2], "top_k": 5}')
        keys = tokenizer_metadata(tokenizer, "gpt2", "gpt-2", eos=2) | {"chat_template": TEMPLATE}
        paths = [write_gguf(family, read_case(family), directory / family, tokenizer=keys) for family in FAMILIES]
        self._ggufs = [split(path.read_bytes()) for path in paths]

    def write(self, directory: Path) -> tuple[Path, str]:
        """A model below the directory, and what was spoiled of it."""
        kind = self._dice.choice(("gguf", "gguf", "safetensors", "template", *JSONS))
        if kind == "gguf":
            path = directory / "model.gguf"
            path.write_bytes(self._gguf())
            return path, kind
        path = directory / "model"
        shutil.copytree(self._whole / self._dice.choice(FAMILIES), path)
        if kind == "safetensors":
            file = path / "model.safetensors"
            file.write_bytes(self._safetensors(file.read_bytes()))
        elif kind == "template":
            (path / "chat_template.jinja").write_text(self._dice.choice(TEMPLATES), encoding="utf-8")
        else:
            self._json(path / kind)
        return path, kind

    def _json(self, file: Path) -> None:
        dice, content = self._dice, json.loads(file.read_text(encoding="utf-8"))
        if file.name == "tokenizer.json" and dice.random() < 0.6:
            name = dice.choice(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
            steps = [dice.choice(STEPS) for _ in range(dice.choice((1, 2, 5, 30)))]
            lists = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
            content[name] = {"type": "Sequence", lists.get(name, "decoders"): steps}
            model = content.pop("model")  # of whose thousands of values one would be changed
            spoiled = mutated(dice, content, {}) if dice.random() < 0.5 else content
            content = {**spoiled, "model": model} if isinstance(spoiled, dict) else spoiled
        elif file.name == "tokenizer.json" and dice.random() < 0.5:
            content["model"] = mutated(dice, {**content["model"], "vocab": {"a": 0, "</s>": 1}, "merges": []}, {})
        else:
            content = mutated(dice, content, {})
        file.write_bytes(text_of(dice, content))

    def _safetensors(self, data: bytes) -> bytes:
        dice = self._dice
        (size,) = struct.unpack_from("<Q", data)
        header = text_of(dice, mutated(dice, json.loads(data[8 : 8 + size]), {}))
        length = (
            len(header)
            if dice.random() < 0.8
            else dice.choice((0, 1, len(header) + 8, len(data), 2**32, 2**63, 2**64 - 1))
        )
        whole = struct.pack("<Q", length) + header + data[8 + size :]
        return whole if dice.random() < 0.8 else whole[: dice.randrange(len(whole))]

    def _gguf(self) -> bytes:
        dice, parts = self._dice, self._dice.choice(self._ggufs)
        for _ in range(dice.choice((0, 1, 1, 2))):
            parts = self._with_other_key(parts)
        for _ in range(dice.choice((0, 0, 1, 2))):
            parts = self._with_other_tensor(parts)
        data = bytearray(parts.written())
        for _ in range(dice.choice((0, 0, 1, 3))):
            data[dice.randrange(min(len(data), 6000))] = dice.randrange(256)
        return bytes(data if dice.random() < 0.9 else data[: dice.randrange(len(data))])

    def _with_other_key(self, parts: Parts) -> Parts:
        dice = self._dice
        name = dice.choice(parts.keys).name.decode()
        match dice.randrange(4):
            case 0:
                return parts.without_key(name)
            case 1:
                return parts.with_key(name, TEXT, text(dice.choice(TEXTS)))
            case 2:
                kind = dice.choice(list(SIZES))
                return parts.with_key(name, kind, self._bytes(SIZES[kind]))
            case _:
                kind, count = dice.choice([*SIZES, TEXT]), dice.choice((0, 1, 2, 300))
                items = [dice.choice(TEXTS) for _ in range(count)]
                value = texts(items) if kind == TEXT else array(kind, count, self._bytes(SIZES[kind] * count))
                return parts.with_key(name, ARRAY, value)

    def _with_other_tensor(self, parts: Parts) -> Parts:
        dice, index = self._dice, self._dice.randrange(len(parts.tensors))
        one, other = parts.tensors[index], dice.choice(parts.tensors)
        number = dice.choice((0, 1, 31, 32, 2**31, 2**62, 2**63, 2**64 - 1))
        changed = dice.choice((
            replace(one, name=other.name),
            replace(one, offset=other.offset),
            replace(one, offset=number),
            replace(one, sizes=other.sizes),
            replace(one, sizes=(*one.sizes[:-1], number)),
            replace(one, sizes=(1,) * dice.randrange(7)),
            replace(one, kind=dice.choice((0, 1, 2, 8, 12, 30, 39, 99))),
        ))  # fmt: skip
        return replace(parts, tensors=(*parts.tensors[:index], changed, *parts.tensors[index + 1 :]))

    def _bytes(self, count: int) -> bytes:
        return self._dice.choice(
            (bytes(count), b"\xff" * count, self._dice.randbytes(count), b"\1" + bytes(max(count - 1, 0)))
        )


@dataclass
class FileReport:
    """What was found. `problems`: as lines."""

    num_taken: int = 0
    num_refused: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Reader:
    """The process that reads; another one after each end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, model: Path) -> dict[str, Any] | None:
        """What came of it, None if the process ended or hangs."""
        if self._process is None:
            pipe = subprocess.PIPE
            words = [sys.executable, "-m", "tests.fuzz.files"]
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        guard = threading.Timer(PATIENCE_S, process.kill)
        guard.start()
        try:
            process.stdin.write(f"{model}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            guard.cancel()
        if not answer:
            self.end()
            return None
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run(dice: random.Random, num_cases: int, kept: Path | None = None) -> FileReport:
    """Read so many spoiled models. `kept`: where those are left that show a problem."""
    report, reader = FileReport(), Reader()
    with tempfile.TemporaryDirectory() as name:
        maker = FileMaker(dice, Path(name))
        try:
            for index in range(num_cases):
                directory = Path(name) / f"case-{index}"
                directory.mkdir()
                model, kind = maker.write(directory)
                found = reader.read(model)
                report.kinds[kind] += 1
                problem = "it ended the process, or hangs" if found is None else found["problem"]
                if problem:
                    report.problems.append(f"file {index}, {kind}: {problem}")
                    if kept is not None:
                        shutil.copytree(directory, kept / directory.name, dirs_exist_ok=True)
                elif found is not None:
                    report.num_taken += not found["refusals"]
                    report.num_refused += bool(found["refusals"])
                shutil.rmtree(directory)
        finally:
            reader.end()
    return report


def read(model: Path) -> dict[str, Any]:
    """How a start would read it: the refusals, and what is wrong with how they are told."""
    refusals: list[str] = []
    for use in (_weigh, _open, _speak):
        try:
            use(model)
        except ModelError as error:
            refusals.append(str(error))
        except ValueError as error:
            is_named = str(model) in str(error) or str(error).startswith(("chat template", "the chat templates"))
            refusals.append(str(error) if is_named else f"\n{error}: of which file?")
        except BaseException as error:
            told = traceback.format_exception(error)[-3:]
            return {"refusals": refusals, "problem": f"{type(error).__name__}: {error} {' '.join(told)}"}
    wrong = [one for one in refusals if "\n" in one or not 10 < len(one) < 5000 or "Traceback" in one]
    return {"refusals": refusals, "problem": f"told as {wrong[0]!r:.500}" if wrong else ""}


def _weigh(model: Path) -> None:
    memory_needs(model, RollingOptions())


def _open(model: Path) -> None:
    described = stored_weights(model)
    described.shapes()
    with described.open() as source:
        list(source)


def _speak(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    for prompt in PROMPTS:
        with suppress(ServerError):  # which fails a request
            tokenizer.decode(tokenizer.encode(prompt))
    template = load_chat_template(tokenizer)
    if template is not None:
        with suppress(ServerError):
            turn_end_ids(template, tokenizer)


def main() -> None:
    """Read the models whose paths come on the standard input, within limits."""
    with open("/proc/self/statm", "rb") as statm:
        now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MOST_BYTES, resource.RLIM_INFINITY))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(read(Path(line.strip()))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

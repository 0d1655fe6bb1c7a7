"""Chooses the files of a model on the hub that a server reads. Never pickles: reading one can run code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.files.model_texts import conversion, is_pickle
from dragoman.hub.names import HubError, HubModel

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.tiktoken",
    "tiktoken.model",
    "qwen.tiktoken",
    "tekken.json",
    "vocab.txt",
)

_SMALL = frozenset({
    CONFIG, INDEX, *TOKENIZER_FILES, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json", "chat_template.jinja",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "openvino_config.json",
    "quantize_config.json", "quantization_config.json", "adapter_config.json", "serving.properties", "graph.pbtxt",
    "modules.json", "config_sentence_transformers.json", "artifact.metadata",
})  # fmt: skip
_GGUF_TYPE = re.compile(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|F16|F32|BF16|MXFP4\w*|TQ\d_\d))(?=[-.]|$)", re.IGNORECASE)
_MODULE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")  # of sentence-transformers: pooling, dense
_LENGTHS = re.compile(r"sentence_[\w-]+_config\.json")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `etag`: what the cache calls its contents; "" = not known. `size` in bytes."""

    name: str
    size: int = 0
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to download: descriptions of the model, then its weights. `size` in bytes."""

    small: Sequence[HubFile]
    weights: Sequence[HubFile]

    @property
    def all(self) -> tuple[HubFile, ...]:
        return (*self.small, *self.weights)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.all)


def choose_files(model: HubModel, files: Iterable[HubFile]) -> Choice:
    """The files of a repository to download. Raises: HubError if no weights can be served."""
    known = sorted(files, key=lambda file: file.name)
    small = [file for file in known if _is_small(file.name)]
    if model.gguf:
        return Choice(small, _gguf_files(model, known))
    weights = _weights(known)
    if weights:
        return Choice(small, weights)
    raise HubError(f"{model}: {_without_weights(model, [file.name for file in known])}")


def gguf_type(name: str) -> str:
    """The quantisation at the end of a GGUF file's name, in capitals; "" without one."""
    found = _GGUF_TYPE.findall(_SPLIT.sub("", name.rpartition("/")[2].removesuffix(".gguf")))
    return found[-1].upper() if found else ""


def _is_small(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    if folder == "additional_chat_templates":
        return file.endswith(".jinja")
    if _MODULE.fullmatch(name) or _LENGTHS.fullmatch(name):
        return True
    # Some tokenizers have a file of ranks with any name.
    return not folder and (file in _SMALL or file.endswith(".tiktoken"))


def _weights(files: Sequence[HubFile]) -> list[HubFile]:
    """The checkpoint, or without one the model in OpenVINO's form."""
    flat = [file for file in files if "/" not in file.name]
    names = {file.name for file in flat}
    tensors = [file for file in flat if file.name.endswith(".safetensors")]
    if "model.safetensors" in names:  # other files are the same weights again, or adapters
        return [file for file in tensors if file.name == "model.safetensors"]
    if INDEX in names and (
        shards := [file for file in tensors if _SPLIT.search(file.name.removesuffix(".safetensors"))]
    ):
        return shards
    if tensors:
        return tensors
    return [
        file
        for file in flat
        if file.name.endswith(".xml") or (file.name.endswith(".bin") and f"{file.name[:-4]}.xml" in names)
    ]


def _gguf_files(model: HubModel, files: Sequence[HubFile]) -> list[HubFile]:
    ggufs = [file for file in files if file.name.endswith(".gguf") and "mmproj" not in file.name.lower()]
    chosen = [file for file in ggufs if gguf_type(file.name) == model.gguf.upper()]
    if not chosen:
        types = sorted({gguf_type(file.name) for file in ggufs} - {""})
        there = f"there are {', '.join(types)}" if types else "it holds no GGUF file that names its quantisation"
        raise HubError(f"{model.repo}: no GGUF file of type {model.gguf.upper()}; {there}")
    if len({_SPLIT.sub("", file.name.removesuffix(".gguf")) for file in chosen}) > 1:
        names = ", ".join(file.name for file in chosen)
        raise HubError(f"{model.repo}: several GGUF files of type {model.gguf.upper()}: {names}; download one by hand")
    return chosen


def _without_weights(model: HubModel, names: Sequence[str]) -> str:
    types = sorted({gguf_type(name) for name in names if name.endswith(".gguf")} - {""})
    if types:
        return (
            f"holds GGUF files only; choose one with `dragoman pull {model.repo} --gguf {types[0]}` "
            f"(there are {', '.join(types)})"
        )
    if any(is_pickle(name) for name in names):
        return (
            "holds its weights as pickles only, which can run code when they are read; bring and convert it yourself: "
            f"{conversion(model.repo, model.repo.rpartition('/')[2])}"
        )
    return "holds no weights that can be served: neither *.safetensors nor OpenVINO's *.xml and *.bin nor *.gguf"

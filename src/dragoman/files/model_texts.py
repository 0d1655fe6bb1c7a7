"""Reads the small files of a model, also from a GGUF file's metadata, and recognises pickles. At load time, on any
thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import ModelError

_MAX_BYTES = {"tokenizer.json": 256 << 20}  # of a vocabulary of a million tokens
_MAX_OTHER_BYTES = 16 << 20  # the largest real ones, indexes of shards, have some 10 MB


def model_text(model: Path, name: str) -> str | None:
    """The text of the file `name` of a model, a directory or a GGUF file; None if it has no such file.

    Raises: ModelError if it is too large or not UTF-8, or a GGUF cannot be read; OSError.
    """
    if is_gguf(model):
        from dragoman.gguf.texts import gguf_text

        return gguf_text(model, name)
    path = model / name
    most = _MAX_BYTES.get(name, _MAX_OTHER_BYTES)
    try:
        with path.open("rb") as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)  # read() allocates this much
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    if len(data) > most:
        raise ModelError(f"{path} has more than {most >> 20} MiB, too much for a {name}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8: {error}") from error


def is_gguf(model: Path) -> bool:
    """True for a GGUF file, and for a directory whose weights are GGUF files."""
    if model.suffix.lower() == ".gguf" and model.is_file():
        return True
    return next(model.glob("*.gguf"), None) is not None and next(model.glob("*.safetensors"), None) is None


def gguf_models(directory: Path) -> dict[str, Path]:
    """The GGUF models in a directory by name; for a split model, its first file."""
    if next(directory.glob("*.gguf"), None) is None:
        return {}
    from dragoman.gguf.files import gguf_models as models_of_files

    return models_of_files(directory)


def see_with(model: Path, file: Path | None) -> None:
    """Set the mmproj file of a GGUF model in this process; None = the file next to the model."""
    if file is not None or "dragoman.gguf.files" in sys.modules:  # else none was named
        from dragoman.gguf.files import see_with as name_file

        name_file(model, file)


@contextmanager
def naming_gguf(model: Path) -> Iterator[None]:
    """Make errors about a directory's files name the GGUF file in their place."""
    try:
        yield
    except ModelError as error:
        if is_gguf(model) and str(model) not in str(error):
            raise ModelError(f"{model}, as its metadata says it: {error}") from error
        raise


def model_name(model: Path) -> str:
    """The directory's name, or the file's without suffix and part number."""
    if model.suffix.lower() != ".gguf" or not model.is_file():
        return model.resolve().name
    from dragoman.gguf.files import gguf_stem

    return gguf_stem(model)


def holds_model(model: Path) -> bool:
    """True if there is a model, not only an operator's handler."""
    return (model / "config.json").is_file() or is_gguf(model)


# --- pickles, which can run any code when read and are therefore never read ------------------------------------------

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_pickle(name: str) -> bool:
    """OpenVINO's weights have such names too, next to an .xml."""
    return name.endswith(_SUFFIXES)


def conversion(source: str, target: str) -> str:
    """The command that converts a pickled checkpoint to safetensors; it needs torch and transformers."""
    return (
        f'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, t = {source!r}, {target!r}; '
        "M.from_pretrained(s, torch_dtype='auto').save_pretrained(t); T.from_pretrained(s).save_pretrained(t)\""
    )

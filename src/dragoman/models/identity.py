"""Names all that the numbers in a model's cache depend on, so that blocks on disk never meet another model or program.

The processor and the number of threads count: others may round otherwise. Called by the factory, once per start.
"""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256

import msgspec
import openvino as ov

from dragoman import __version__
from dragoman.kernels.native import library
from dragoman.models.kept_files import own_code
from dragoman.models.loader import LoadedModel
from dragoman.models.profile import most_instructions, uses_library


def model_identity(model: LoadedModel, contents: str, *others: str | None) -> str:
    """The digest. `contents`: of the model's files. `others`: further facts that count for the runner."""
    profile, options = model.profile, model.options
    facts = [
        __version__,
        ov.__version__,
        own_code(),
        library().digest if uses_library(model.facts, profile) else None,
        most_instructions(),
        contents,
        asdict(profile),
        [asdict(kind) for kind in model.facts.cache_kinds],
        int(model.compiled.get_property("INFERENCE_NUM_THREADS")),
        options.weight_type,
        options.asks_for_type,
        options.takes_back,
        options.sees,
        options.picture_changes,
        model.adapters_key,
        *others,
    ]
    return sha256(msgspec.json.encode(facts)).hexdigest()

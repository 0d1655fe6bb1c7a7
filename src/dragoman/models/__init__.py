"""Model definitions: from a Hugging Face checkpoint to a compiled OpenVINO graph with paged attention."""

from dragoman.models.config import ModelError
from dragoman.models.loader import LoadedModel, load_model
from dragoman.models.profile import BLOCK_SIZE, ModelOptions

__all__ = ["BLOCK_SIZE", "LoadedModel", "ModelError", "ModelOptions", "load_model"]

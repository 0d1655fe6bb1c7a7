"""`dragoman compress`: writes a checkpoint with weights of few bits. `tools.compress` compresses."""

from __future__ import annotations

from dragoman.cli.command_options import cite
from dragoman.cli.compress.arguments import CompressArguments
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.run_command import Console
from dragoman.config.resolve import ConfigError
from dragoman.files.model_texts import is_gguf
from dragoman.models import ModelError
from dragoman.models.config import read_config
from dragoman.models.families import read_model
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.compress.compression import Compressed, compress
from dragoman.tools.compress.scaling import Packing
from dragoman.tools.evaluate.text import EvaluationError, Window, cut_text, read_text, tokens_of

FAILURES = (ConfigError, ModelError, ValueError, OSError)
_MOST_WINDOW = 2048
_MIB = 1 << 20


def run(_: object, asked: CompressArguments, console: Console) -> int:
    """Write the checkpoint and print a summary. A failure leaves no files."""
    done = _compressed(asked, console.display)
    console.display.finish()
    scaled = f", {done.num_scaled} of them scaled by what they read" if asked.text is not None else ""
    console.stdout.write(
        f"{asked.out}: {done.num_matrices} matrices in {asked.bits} bits{scaled}; {done.num_bytes / _MIB:.1f} MiB\n"
    )
    return 0


def _compressed(asked: CompressArguments, display: ProgressDisplay) -> Compressed:
    if asked.out.exists() or asked.out.is_symlink():
        raise ConfigError([f"{asked.out}: must be a directory that does not exist yet"])
    if not asked.out.absolute().parent.is_dir():
        raise ConfigError([f"{asked.out}: must be a new directory inside an existing one"])
    if is_gguf(asked.model):
        told = "is a GGUF, whose weights are compressed already; must be a model directory with *.safetensors files"
        raise ConfigError([f"{asked.model}: {told}, but `dragoman serve {asked.model}` serves it as it is"])
    packing = Packing(int(asked.bits), int(asked.group_size))
    return compress(asked.model, asked.out, packing, _windows(asked), asked.skip, display)


def _windows(asked: CompressArguments) -> list[Window]:
    """The windows of text for calibration, [] without a text. Raises: ConfigError, ModelError."""
    if asked.text is None:
        return []
    context = read_model(read_config(asked.model)).facts.max_position
    if asked.window is not None and asked.window > context:
        raise ConfigError([f"{cite('window', asked.window)}: must be at most the context length ({context})"])
    try:
        tokens = tokens_of(read_text(asked.text), load_tokenizer(asked.model))
        return cut_text(
            tokens.token_ids[: asked.tokens], asked.window or min(context, _MOST_WINDOW), None, tokens.start
        )
    except EvaluationError as error:
        raise ConfigError([f"{cite('text', asked.text)}: {error}"]) from error

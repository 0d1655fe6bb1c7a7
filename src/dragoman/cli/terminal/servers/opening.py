"""Opens the server of a terminal command: at a URL, or a model in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.terminal.servers.answers import AskFailed, ModelServer, Target
from dragoman.cli.terminal.servers.remote_server import RemoteServer
from dragoman.config.resolve import Config, ConfigError


def open_server(
    config: Config | None, target: Target, environ: Mapping[str, str], stderr: TextIO, *, needs_template: bool = False
) -> ModelServer:
    """The server; `close` it at the end. `config` None = the one at the URL.

    `needs_template`: refuse a model without a chat template. Raises: AskFailed.
    """
    if config is None:
        return RemoteServer(str(target.url), target.model, environ.get(target.key_variable, ""))
    return _load(config, stderr, needs_template=needs_template)


def _load(config: Config, stderr: TextIO, *, needs_template: bool) -> ModelServer:
    from dragoman.cli.terminal.servers.local_model import LocalModel  # takes a second to import
    from dragoman.errors import EngineDead, ModelError, ServerError

    _check_purpose(config, needs_template=needs_template)
    display = ProgressDisplay(stderr, name=config.name)
    try:
        return LocalModel(config, display)
    except (ConfigError, ModelError, ServerError, EngineDead, OSError) as error:
        display.finish()
        raise AskFailed(str(error)) from None
    finally:
        display.finish()


def _check_purpose(config: Config, *, needs_template: bool) -> None:
    """Raises: AskFailed for a model that generates nothing, or lacks a needed chat template; called before the load."""
    from dragoman.errors import ModelError
    from dragoman.host.loading import generates
    from dragoman.tokenizer.model_files import read_text_files

    directory = config.model_dir
    if not generates(config):
        raise AskFailed(
            f"{directory} embeds or scores texts and cannot generate; `dragoman serve {directory}` serves it, and "
            "POST /v1/embeddings or /v1/rerank asks it"
        )
    if not needs_template or config.model.chat_template is not None:
        return
    try:
        templates = read_text_files(directory).chat_templates
    except (ModelError, ValueError, OSError):
        return  # loading reports the problem
    if not templates:
        raise AskFailed(
            f"{directory} has no chat template, so it cannot chat; `dragoman complete {directory}` goes on with "
            "texts, and --chat-template FILE gives it a template"
        )

"""Finds the chat template of a configured model, and whether it is trusted. Called at load time."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from dragoman.config.bundled import BUNDLED
from dragoman.config.resolve import Config
from dragoman.models import ModelError
from dragoman.tokenizer.chat_template import ChatTemplate, load_chat_template
from dragoman.tokenizer.conversation import FORMS
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.model_files import read_text_files


def find_chat_template(config: Config, tokenizer: HfTokenizer) -> ChatTemplate | None:
    """The operator's template, which is trusted, else the model's own; None if there is none. Raises: ModelError."""
    template, kwargs = _found_template(config, tokenizer), config.model.default_chat_template_kwargs
    if template is not None and config.model.tool_call_parser not in FORMS:
        template = template.without_told_tools()  # calls would be written in another form than the chosen parser reads
    return template if template is None or kwargs is None else template.with_default_kwargs(json.loads(kwargs))


def _found_template(config: Config, tokenizer: HfTokenizer) -> ChatTemplate | None:
    template = config.model.chat_template
    if template is None:
        try:
            return load_chat_template(tokenizer, _bundled_templates())
        except ValueError as error:
            raise ModelError(f"{config.model_dir}: {error}") from error
    is_file = _is_file(template)
    # Otherwise a misspelt path would count as a template and replace each conversation.
    if not is_file and "{" not in template:
        raise ModelError(f"{config.cite('chat_template')}: must be a file or a Jinja template; there is no such file")
    try:
        source = Path(template).read_text(encoding="utf-8") if is_file else template
        return ChatTemplate(source, special_tokens=tokenizer.facts.special_tokens, is_vouched=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{config.cite('chat_template') if is_file else '--chat-template'}: {error}") from error


@cache
def _bundled_templates() -> frozenset[str]:
    texts = (read_text_files(directory).chat_templates for directory in BUNDLED.values())
    return frozenset(source for templates in texts for source in templates.values())


def _is_file(text: str) -> bool:
    """A template may be no valid path, which is not an error."""
    try:
        return Path(text).is_file()
    except OSError:
        return False

"""Finds the chat template of a configured model, and whether the operator vouches for it.

Does: take the operator's template, or the one that came with the model. Does not: render. Called by the composition root, at
load time.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from dragoman.config.bundled import BUNDLED
from dragoman.config.resolve import Config
from dragoman.models import ModelError
from dragoman.tokenizer.chat_template import ChatTemplate, load_chat_template
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.model_files import read_text_files
from dragoman.tokenizer.told_tools import FORMS


def find_chat_template(config: Config, tokenizer: HfTokenizer) -> ChatTemplate | None:
    """The operator's template, which the operator vouches for, else the model's own; None if there is none.

    It is told what the operator has every conversation tell it. Raises: ModelError if it cannot be used.
    """
    template, kwargs = _found_template(config, tokenizer), config.model.default_chat_template_kwargs
    if template is not None and config.model.tool_call_parser not in FORMS:
        template = template.without_told_tools()  # calls would be told in another form than the operator has them read
    return template if template is None or kwargs is None else template.with_default_kwargs(json.loads(kwargs))


def _found_template(config: Config, tokenizer: HfTokenizer) -> ChatTemplate | None:
    """The template alone. Raises: ModelError if it cannot be used."""
    own = config.model.chat_template
    if own is None:
        try:
            return load_chat_template(tokenizer, _bundled_templates())
        except ValueError as error:
            raise ModelError(f"{config.model_dir}: {error}") from error
    is_file = _is_file(own)
    if not is_file and "{" not in own:  # else a misspelt name would be sent to the model in place of each conversation
        raise ModelError(f"{config.cite('chat_template')}: must be a file or a Jinja template; there is no such file")
    try:
        source = Path(own).read_text(encoding="utf-8") if is_file else own
        return ChatTemplate(source, special_tokens=tokenizer.facts.special_tokens, is_vouched=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{config.cite('chat_template') if is_file else '--chat-template'}: {error}") from error


@cache
def _bundled_templates() -> frozenset[str]:
    """The chat templates of the models that come with the package."""
    texts = (read_text_files(directory).chat_templates for directory in BUNDLED.values())
    return frozenset(source for templates in texts for source in templates.values())


def _is_file(text: str) -> bool:
    """True if `text` is the path of a file. A template may be too long or too odd for a path, which is not an error."""
    try:
        return Path(text).is_file()
    except OSError:
        return False

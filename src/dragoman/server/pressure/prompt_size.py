"""How long prompts are before anybody tokenises them.

Does: count characters, say how few tokens they can be. Does not: tokenise, or render templates. Used by the door and by the
service, on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.types import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    MixedPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

_PICTURE_CHARS = (
    10_000  # that a picture counts for, roughly: its text has as many as its place in the prompt has tokens
)


def least_tokens(requests: Sequence[GenerationRequest], max_token_chars: int) -> int:
    """About the fewest tokens that the prompts can have together; a template's own text does not count."""
    return sum(_least(request, max_token_chars) for request in requests)


def _least(request: GenerationRequest, max_token_chars: int) -> int:
    if isinstance(request.prompt, InfillPrompt):
        return 1  # it loses what does not fit
    num_chars = num_characters(request.prompt)
    count = num_chars if isinstance(request.prompt, TokenPrompt) else num_chars // max_token_chars
    return max(min(count, request.truncate_prompt_tokens or count), 1)


def num_characters(prompt: Prompt) -> int:
    """How much text there is to tokenise, roughly; token ids count as characters, as they are decoded."""
    match prompt:
        case TextPrompt():
            return len(prompt.text) + len(prompt.suffix or "")
        case TokenPrompt():
            return len(prompt.token_ids)
        case MixedPrompt():
            return sum(len(part) if isinstance(part, str) else 1 for part in prompt.parts)
        case InfillPrompt():
            files = sum(len(name) + len(text) for name, text in prompt.files)
            return files + len(prompt.before) + len(prompt.behind) + len(prompt.begun)
        case ChatPrompt():
            # Tools weigh by their printed form; it need not be exact.
            tools = len(str(prompt.tools)) if prompt.tools else 0
            return tools + sum(_content_characters(message.get("content")) for message in prompt.messages)


def _content_characters(content: object) -> int:
    """The same for a message's content; an address may have megabytes, and is not tokenised."""
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, Sequence):
        return 0
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return sum(len(text) if isinstance(text, str) else _PICTURE_CHARS for text in texts)

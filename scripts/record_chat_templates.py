"""Records how transformers renders the chat templates in tests/tokenizer/chat_templates, for the test of the same.

Run: pip install transformers jinja2, then `python scripts/record_chat_templates.py` from the repository's root. Writes
tests/tokenizer/chat_templates/renderings.json: template -> conversation -> text, null where the template refuses.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from unittest import mock

from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.tokenizer.conversations import CONVERSATIONS, FOLDER, NOW, RENDERINGS, SPECIAL_TOKENS, Conversation  # noqa: E402


class _Clock:
    """In the place of `datetime`."""

    @staticmethod
    def now() -> datetime:
        """Always the same moment."""
        return NOW


def render(template: str, conversation: Conversation) -> str | None:
    """The prompt; with arguments as text if the template does not take objects. None if it takes neither."""
    for messages in (conversation.messages, conversation.as_sent()):
        kwargs = dict(conversation.kwargs)
        try:
            rendered, _ = chat_template_utils.render_jinja_template(
                [list(messages)],
                tools=list(conversation.tools) or None,
                documents=kwargs.pop("documents", None),
                chat_template=template,
                continue_final_message=conversation.continues,
                add_generation_prompt=conversation.prompts and not conversation.continues,
                **SPECIAL_TOKENS,
                **kwargs,
            )
        except Exception:  # a template raises whatever it likes
            continue
        return str(rendered[0])
    return None


def main() -> None:
    """Write all renderings."""
    with mock.patch.object(chat_template_utils, "datetime", _Clock):
        found = {
            path.stem: {name: render(path.read_text(encoding="utf-8"), one) for name, one in CONVERSATIONS.items()}
            for path in sorted(FOLDER.glob("*.jinja"))
        }
    RENDERINGS.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

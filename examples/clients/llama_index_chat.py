"""LlamaIndex: a conversation of two questions, the second of them streamed. It speaks Ollama's API.

Install: pip install llama-index-llms-ollama
Run:     dragoman serve                             (in another terminal)
         python examples/clients/llama_index_chat.py "What is a river?"
Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
"""

import os
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "demo")


def main(question: str) -> None:
    """Ask, and ask again with the first answer in the conversation."""
    # The context window must be told, or each call would first ask the server for it.
    options = {"num_predict": 60, "temperature": 0}
    model = Ollama(model=MODEL, base_url=URL, context_window=2048, request_timeout=120, additional_kwargs=options)
    messages = [ChatMessage(role="user", content=question)]
    answer = model.chat(messages)
    print("first:", answer.message.content)

    messages += [answer.message, ChatMessage(role="user", content="Tell me more.")]
    print("second:", end=" ")
    for piece in model.stream_chat(messages):
        print(piece.delta or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a river?")

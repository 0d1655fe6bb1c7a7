"""huggingface_hub's InferenceClient: a chat, and text that goes on token by token as Text Generation Inference sends it.

Install: pip install huggingface_hub
Run:     dragoman serve                             (in another terminal)
         python examples/clients/huggingface.py "What is a river?"
Elsewhere: DRAGOMAN_URL=http://host:port
"""

import os
import sys

from huggingface_hub import InferenceClient

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")


def main(question: str) -> None:
    """Ask by both ways, and print what comes."""
    client = InferenceClient(base_url=URL, api_key=os.environ.get("DRAGOMAN_API_KEY"))
    chat = client.chat_completion([{"role": "user", "content": question}], max_tokens=60)
    print("chat:", chat.choices[0].message.content)

    print("text:", end=" ")
    for token in client.text_generation(question, max_new_tokens=40, stream=True):
        print(token, end="", flush=True)
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a river?")

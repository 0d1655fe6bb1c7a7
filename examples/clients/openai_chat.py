"""OpenAI's own client: an answer whole, one that streams, and one that follows a JSON schema.

Install: pip install openai
Run:     dragoman serve                             (in another terminal)
         python examples/clients/openai_chat.py "What is a river?"
Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
"""

import os
import sys

from openai import OpenAI

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "demo")
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 40}, "is_about_nature": {"type": "boolean"}},
    "required": ["topic", "is_about_nature"],
    "additionalProperties": False,
}


def main(question: str) -> None:
    """Ask three times, and print what comes."""
    # The client wants a key; the server looks at it only if it was started with --api-key-file.
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("DRAGOMAN_API_KEY", "none"))
    messages = [{"role": "user", "content": question}]

    settings = {"model": MODEL, "messages": messages, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    print("whole:", whole.choices[0].message.content)

    print("streamed:", end=" ")
    for chunk in client.chat.completions.create(**settings, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    schema = {"type": "json_schema", "json_schema": {"name": "topic", "schema": SCHEMA, "strict": True}}
    typed = client.chat.completions.create(**settings, response_format=schema)
    print("as JSON:", typed.choices[0].message.content)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a river?")

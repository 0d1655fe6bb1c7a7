"""LiteLLM: one function, three APIs of the same server (OpenAI, Anthropic, Ollama), streamed.

Install: pip install litellm
Run:     dragoman serve                             (in another terminal)
         python examples/clients/litellm_chat.py "What is a river?"
Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
"""

import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches a list of prices, when it is imported

import litellm

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "demo")
PLACES = {"openai": f"{URL}/v1", "anthropic": URL, "ollama_chat": URL}


def main(question: str) -> None:
    """Ask by each API, and print what comes."""
    litellm.suppress_debug_info = True  # it writes of models that it has no prices of
    for provider, place in PLACES.items():
        print(f"{provider}:", end=" ")
        answer = litellm.completion(
            model=f"{provider}/{MODEL}",
            messages=[{"role": "user", "content": question}],
            api_base=place,
            api_key=os.environ.get("DRAGOMAN_API_KEY", "none"),
            max_tokens=40,
            temperature=0,
            stream=True,
        )
        for part in answer:
            print(part.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a river?")

"""LangChain: a chain of a prompt, the model and a parser, asked whole and streamed.

Install: pip install langchain-openai
Run:     dragoman serve                             (in another terminal)
         python examples/clients/langchain_chat.py rivers
Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
"""

import os
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "demo")


def main(topic: str) -> None:
    """Run the chain by both ways, and print what comes."""
    key = os.environ.get("DRAGOMAN_API_KEY", "none")
    model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=key, temperature=0, max_tokens=60)
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "Tell me about {topic}.")])
    chain = prompt | model | StrOutputParser()
    print("whole:", chain.invoke({"topic": topic}))

    print("streamed:", end=" ")
    for piece in chain.stream({"topic": topic}):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "rivers")

"""Embeddings with a small vector search: the texts of a file by how near they are to a question, in numpy.

The bundled model writes and does not embed, so serve one that does, and name it here:

Install: pip install httpx numpy
Run:     dragoman serve BAAI/bge-small-en-v1.5      (in another terminal; 130 MB from the hub at the first start)
         python examples/embeddings/search.py bge-small-en-v1.5 "Which river is the longest?"
Texts of your own, one on each line: the third argument. Elsewhere: DRAGOMAN_URL=http://host:port
"""

import os
import sys
from pathlib import Path

import httpx
import numpy as np

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("DRAGOMAN_MODEL", "")
TEXTS = Path(__file__).with_name("texts.txt")
AT_ONCE = 32  # texts in a call
BEST = 3


def embed(model: str, texts: list[str]) -> np.ndarray:
    """A vector of length 1 for each text, [texts, dimensions] f32."""
    vectors = []
    for start in range(0, len(texts), AT_ONCE):
        body = {"model": model, "input": texts[start : start + AT_ONCE], "normalize": True}
        answer = httpx.post(f"{URL}/v1/embeddings", json=body, timeout=120)
        if answer.is_error:
            sys.exit(f"{URL} answered {answer.status_code}: {answer.json()['error']['message']}")
        vectors += [item["embedding"] for item in answer.json()["data"]]
    return np.array(vectors, np.float32)


def main(model: str, question: str, path: Path) -> None:
    """Print the texts that are nearest to the question, with their cosine."""
    texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    index = embed(model, texts)  # with many texts, keep it: np.save("index.npy", index)
    cosines = index @ embed(model, [question])[0]  # of vectors of length 1, their product is the cosine
    for place in np.argsort(-cosines)[:BEST]:
        print(f"{cosines[place]:.3f}  {texts[place]}")


if __name__ == "__main__":
    arguments = sys.argv[1:] if not MODEL else [MODEL, *sys.argv[1:]]
    if len(arguments) not in (2, 3):
        sys.exit("usage: search.py MODEL QUESTION [FILE]   (or DRAGOMAN_MODEL=MODEL search.py QUESTION [FILE])")
    main(arguments[0], arguments[1], Path(arguments[2]) if len(arguments) == 3 else TEXTS)

"""Embeds with sentence-transformers when asked: the peer that is a library, not a server.

Does: answer JSON lines: `{"texts": [...], "batch_size": 32}` embeds them and tells the seconds that took. Does not: send
load. Started with the Python of the peer's environment by benchmarks.embeddings; imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter


def main() -> None:
    """Answer line by line until the input ends."""
    import torch
    from sentence_transformers import SentenceTransformer

    directory, dtype = sys.argv[1:3]
    model = SentenceTransformer(directory, device="cpu", model_kwargs={"torch_dtype": getattr(torch, dtype)})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begin_s = perf_counter()
        rows = model.encode(asked["texts"], batch_size=asked["batch_size"], convert_to_numpy=True)
        seconds = perf_counter() - begin_s
        print(json.dumps({"seconds": seconds, "first": [float(value) for value in rows[0][:8]]}), flush=True)


if __name__ == "__main__":
    main()

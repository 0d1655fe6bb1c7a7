"""OpenVINO GenAI's pipeline for pictures, in a process of its own, without HTTP in its way.

Does: load the model once, then answer each JSON line (kind, pictures as base64, texts, output_tokens) with times. Does not:
import anything of this project: it is run by the Python of the peer's own environment (see peers.py), from the repository's
root. MODEL_DIR holds what optimum-intel exports of the Hugging Face directory (`benchmarks.pictures` tells how):

    python -m benchmarks.serving.genai_pictures MODEL_DIR
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import time
from typing import Any


class Loop:
    """A loaded pipeline with the scheduler's defaults."""

    def __init__(self, model: str) -> None:
        import openvino_genai as genai  # type: ignore[import-not-found]  # only the peer has it

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 2
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._num_requests = 0

    def run(self, asked: dict[str, Any]) -> dict[str, float]:
        """Add every request (a text, and a picture or none), step until all are done; seconds to first and last token."""
        begin_s, first_s, handles = time.perf_counter(), 0.0, []
        config = self._genai.GenerationConfig(max_new_tokens=asked["output_tokens"], ignore_eos=True)
        for text, picture in asked["requests"]:
            handles.append(self._add(text, picture, config))
        num_tokens = 0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            if not first_s:
                first_s = time.perf_counter() - begin_s if any(handle.can_read() for handle in handles) else 0.0
        for handle in handles:
            num_tokens += sum(len(output.generated_ids) for output in handle.read_all())
        if num_tokens != len(handles) * asked["output_tokens"]:
            raise RuntimeError(f"{num_tokens} tokens came, {len(handles) * asked['output_tokens']} were asked for")
        return {"first_s": first_s, "all_s": time.perf_counter() - begin_s}

    def _add(self, text: str, picture: str, config: Any) -> Any:
        self._num_requests += 1
        images = [self._pixels(picture)] if picture else []
        return self._pipeline.add_request(self._num_requests, text, images, config)

    def _pixels(self, picture: str) -> Any:
        import numpy as np
        import openvino as ov
        from PIL import Image

        return ov.Tensor(np.array(Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB"))[None])


def main() -> None:
    """Say when the model is loaded, then answer line by line until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a directory with the exported model")
    loop = Loop(parser.parse_args().model)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

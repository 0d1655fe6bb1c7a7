"""A handler of your own: it answers the LMI routes in place of generation, with or without a model beside it.

Install: nothing
Run:     dragoman serve examples/handler            (without a model)
         curl -s http://127.0.0.1:8080/invocations -H 'Content-Type: application/json' -d '{"inputs": "one two three"}'

It counts the words of a text, or sends them one by one with {"inputs": "...", "stream": true}. Beside a model's weights,
or with `dragoman serve --entry-point examples/handler/model.py`, `inputs.model` is that model: with
{"inputs": "...", "complete": true} it goes on with the text. It imports what LMI's containers offer, so the same file runs
there, but for `inputs.model`. docs/hooks.md tells the rest.
"""

import logging
from collections.abc import Iterator

from djl_python import Input, Output

properties: dict[str, str] = {}


def handle(inputs: Input) -> Output | None:
    """Called once without content at the start, then for every request, on several threads at a time."""
    if inputs.is_empty():
        properties.update(inputs.get_properties())
        logging.info("the options are in %s", properties["model_dir"])
        return None
    body = inputs.get_as_json()
    text = body.get("inputs")
    if not isinstance(text, str):
        return Output().error("inputs must be a string", code=400)
    if body.get("stream"):
        return Output().add_property("Content-Type", "application/jsonlines").add_stream_content(words(text))
    if body.get("complete"):
        if inputs.model is None:
            return Output().error("there is no model beside this file", code=400)
        return Output().add(inputs.model.generate({"inputs": text, "parameters": {"max_new_tokens": 32}}))
    return Output().add({"words": len(text.split())}).add_property("X-Counted-By", properties["model_dir"])


def words(text: str) -> Iterator[str]:
    """The words, each of which is sent when it is made; the generator is closed when the client leaves."""
    yield from text.split()

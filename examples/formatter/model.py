r"""Formatters of your own: requests look like {"question": "...", "length": 64, "live": true, "tag": "..."}, answers alike.

Install: nothing
Run:     dragoman serve --entry-point examples/formatter/model.py
         curl -s http://127.0.0.1:8080/invocations -H 'Content-Type: application/json' \
              -d '{"question": "What is a river?", "length": 24, "live": true, "tag": "blue"}'

Adapt it, and put it beside your model's weights: there it is found by its name, model.py. It imports what LMI's containers
offer, so the same file runs there; `from dragoman.hooks import ...` works here as well. docs/hooks.md tells the rest.
"""

import json
from typing import Any

from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import TextGenerationOutput, output_formatter
from djl_python.request_io import TextInput


class Question(TextInput):
    """A request with a field of its own; formatters may add as many as they like."""

    tag: str | None = None


@input_formatter
def read_question(input_item: Input, **kwargs: Any) -> Question:
    """Turn the body into a prompt and generation parameters. An exception here answers the request with 424."""
    body = decode(input_item, input_item.get_property("Content-Type"))
    question = Question()
    question.input_text = f"Question: {body['question']}\nAnswer:"
    question.parameters = {"max_new_tokens": body.get("length", 64), "stream": body.get("live", False)}
    question.tag = body.get("tag")
    return question


@output_formatter
def write_answer(request_output: TextGenerationOutput) -> str:
    """Called for each token; what it returns is sent as it is. A stream gets a line per token, other clients one object."""
    request = request_output.input
    sequence = request_output.sequences[request_output.best_sequence_index]
    token, _, is_last = sequence.get_next_token()
    if request.parameters["stream"]:
        line = {"word": token.text, "tag": request.tag}
        if is_last:
            line["why"] = sequence.finish_reason
        return json.dumps(line, ensure_ascii=False) + "\n"
    if not request_output.finished:
        return ""
    text = "".join(one.text for one in sequence.tokens)
    return json.dumps({"answer": text, "tag": request.tag, "why": sequence.finish_reason}, ensure_ascii=False)

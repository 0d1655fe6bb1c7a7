"""Output formatters: how often they are called and with what, in all their forms, streaming and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from dragoman.server.api import Call
from dragoman.server.apis.lmi.hooks.request_io import TextGenerationOutput, TextInput, Token
from dragoman.types import FinishReason, GenerationEvent, GenerationResult, PromptInfo, SequenceResult, TokenOutput
from tests.hooks.hooked import ECHO, ask, call_of, hooked, prompt, text_of
from tests.support.tables import table

STREAM = {"stream": True}
LAGGING = """
calls = []

@output_formatter
def write(output: RequestOutput):
    calls.append(1)
    if len(calls) % 2:
        return ""
    return output.sequences[0].get_next_token()[0].text
"""
NEVER_ADVANCES = """
@output_formatter
def write(output: RequestOutput):
    return f"{len(output.sequences[0].tokens)}" + ("!" if output.finished else "")
"""


class TestCalls:
    def test_a_stream_is_what_the_formatter_returns_for_each_token(self, tmp_path: Path) -> None:
        reply = ask(hooked(tmp_path, ECHO), prompt() | STREAM)
        assert (reply.status, reply.media_type, reply.is_stream) == (200, "application/jsonlines", True)
        assert reply.body == b"[ Deep][ learning][ is]."

    def test_a_whole_answer_is_what_the_formatter_returned_in_all_steps(self, tmp_path: Path) -> None:
        reply = ask(hooked(tmp_path, ECHO), prompt())
        assert (reply.media_type, reply.is_stream) == ("application/json", False)
        assert reply.body == b"[ Deep][ learning][ is]."

    @table("body", [prompt(), prompt() | STREAM], ids=["whole", "stream"])
    def test_one_that_never_advances_is_called_once_per_token(self, tmp_path: Path, body: dict[str, Any]) -> None:
        assert text_of(hooked(tmp_path, NEVER_ADVANCES), body) == "123!"

    def test_one_that_skips_calls_catches_up(self, tmp_path: Path) -> None:
        assert text_of(hooked(tmp_path, LAGGING), prompt() | STREAM) == " Deep learning is"

    def test_one_that_stops_advancing_is_not_called_for_ever(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            if len(output.sequences[0].tokens) == 1:
                output.sequences[0].get_next_token()
            return "x"
        """
        assert text_of(hooked(tmp_path, source), prompt() | STREAM) == "x" + "xx" * 2  # two idle calls per token

    def test_the_last_call_sees_everything_finished(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            if not output.finished:
                return ""
            sequence = output.sequences[output.best_sequence_index]
            return json.dumps([len(sequence.tokens), sequence.finish_reason, sequence.get_last_token().text])
        """
        dialect = hooked(tmp_path, source)
        assert json.loads(text_of(dialect, prompt())) == [3, "length", " is"]
        assert json.loads(text_of(dialect, prompt(max_new_tokens=50) | STREAM)) == [7, "eos_token", ""]

    def test_a_stream_that_ends_without_a_token_ends_with_a_placeholder(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            token, first, last = output.sequences[0].get_next_token()
            return json.dumps([token.as_dict(), first, last]) + chr(10)
        """
        call = hooked(tmp_path, source).open(call_of(prompt() | STREAM)).parse()
        ending = GenerationEvent(0, "", (), FinishReason.STOP_STRING, prompt=PromptInfo("hi", (1,)))
        line = json.loads(call.encoder.event(0, ending))
        assert line == [{"id": -1, "text": "", "log_prob": None}, True, True]

    def test_text_that_is_no_valid_unicode_is_still_sent(self, tmp_path: Path) -> None:
        source = "@output_formatter\ndef write(output: RequestOutput):\n    return chr(0xD800)\n"
        assert text_of(hooked(tmp_path, source), prompt(max_new_tokens=1)) == "?"

    def test_bytes_are_sent_as_they_are(self, tmp_path: Path) -> None:
        source = "@output_formatter\ndef write(output: RequestOutput):\n    return b'\\xff'\n"
        assert ask(hooked(tmp_path, source), prompt(max_new_tokens=1)).body == b"\xff"


class TestForms:
    def test_0_32_gives_the_index_as_well(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            token, index, first, last = output.sequences[0].get_next_token()
            return f"{index}{first:d}{last:d} "
        """
        assert text_of(hooked(tmp_path, source, lmi_version="0.32"), prompt()) == "010 100 201 "

    def test_the_form_with_six_arguments(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(token, first_token, last_token, details, generated_text, request_id):
            line = [token.text, first_token, last_token, sorted(details), generated_text, request_id == token.request_id]
            return json.dumps(line) + chr(10)
        """
        dialect = hooked(tmp_path, source)
        lines = [json.loads(line) for line in text_of(dialect, prompt(details=True) | STREAM).splitlines()]
        assert lines[0] == [" Deep", True, False, [], " Deep", True]
        assert lines[2] == [
            " is", False, True, ["finish_reason", "generated_tokens", "inputs", "tokens"], " Deep learning is", True,
        ]  # fmt: skip
        assert json.loads(text_of(dialect, prompt() | STREAM).splitlines()[2])[3] == []

    def test_the_form_with_five_arguments_named_by_the_option(self, tmp_path: Path) -> None:
        source = """
        def mine(token, first_token, last_token, details, generated_text):
            return generated_text + "|" if last_token else ""
        """
        dialect = hooked(tmp_path, source, "mine")
        assert text_of(dialect, prompt(return_full_text=True)) == "hi Deep learning is|"
        assert text_of(dialect, prompt(return_full_text=True) | STREAM) == "hi Deep learning is|"

    def test_a_named_function_goes_before_a_decorated_one(self, tmp_path: Path) -> None:
        source = ECHO + "\ndef mine(output: RequestOutput):\n    return 'mine '\n"
        assert text_of(hooked(tmp_path, source, "mine"), prompt()) == "mine mine mine "

    def test_one_argument_without_annotation_is_the_new_form(self, tmp_path: Path) -> None:
        source = "@output_formatter\ndef write(output):\n    return output.sequences[0].get_next_token()[0].text\n"
        assert text_of(hooked(tmp_path, source), prompt()) == " Deep learning is"

    def test_old_prefill_details_are_there_when_asked_for(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(*arguments):
            return json.dumps(arguments[3]["prefill"]) if arguments[2] else ""
        """
        prefill = json.loads(text_of(hooked(tmp_path, source), prompt(details=True, decoder_input_details=True)))
        assert prefill == [{"id": 100, "text": "hi", "log_prob": None}]


class TestWhatTheySee:
    def test_the_request_as_the_client_sent_it(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            request = output.input
            return json.dumps([type(request).__name__, request.input_text, request.parameters, request.client_request_id])
        """
        dialect = hooked(tmp_path, source)
        body = {"inputs": "hi", "parameters": {"max_new_tokens": 1, "own": {"a": 1}}}
        parameters = {"stream": False, "max_new_tokens": 1, "own": {"a": 1}}
        assert json.loads(text_of(dialect, body)) == ["TextInput", "hi", parameters, "req-1"]
        assert ask(dialect, body).headers == {"x-dragoman-ignored": "own"}

    def test_requests_are_numbered(self, tmp_path: Path) -> None:
        source = "@output_formatter\ndef write(output: RequestOutput):\n    return str(output.request_id)\n"
        dialect = hooked(tmp_path, source)
        assert [text_of(dialect, prompt(max_new_tokens=1)) for _ in range(3)] == ["0", "1", "2"]

    def test_tokens_prompt_tokens_and_top_tokens_in_the_requests_shape(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            if not output.finished:
                return ""
            top = output.sequences[0].get_next_top_tokens()
            return json.dumps([
                output.get_tokens_as_dict(), output.get_prompt_tokens_as_dict(), output.get_top_tokens_as_dict(), top[1].text
            ])
        """
        body = prompt(max_new_tokens=1, top_n_tokens=2, decoder_input_details=True)
        token, other = {"id": 300, "text": " Deep", "log_prob": -0.25}, {"id": 900, "text": " alt0", "log_prob": -0.75}
        seen = json.loads(text_of(hooked(tmp_path, source), body))
        assert seen == [[token], [{"id": 100, "text": "hi", "log_prob": None}], [[token, other]], " alt0"]
        tokens = json.loads(text_of(hooked(tmp_path, source, tgi_compat=True), body))[0]
        assert tokens == [{"id": 300, "text": " Deep", "logprob": -0.25}]

    def test_the_end_of_sequence_token_is_marked(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            return json.dumps(output.get_tokens_as_dict()[-1]) if output.finished else ""
        """
        token = json.loads(text_of(hooked(tmp_path, source), prompt(max_new_tokens=9)))
        assert token == {"id": 2, "text": "", "log_prob": -1.75, "special_token": True}

    def test_several_sequences_are_walked_step_by_step_and_the_best_is_named(self, tmp_path: Path) -> None:
        source = """
        steps = []

        @output_formatter
        def write(output: RequestOutput):
            steps.append([len(sequence.tokens) for sequence in output.sequences.values()])
            if not output.finished:
                return ""
            best = output.sequences[output.best_sequence_index]
            return json.dumps([steps, best.tokens[0].text, best.cumulative_log_prob, best.stop_reason,
                               best.finish_reason, output.other_sequences_indices])
        """
        call = hooked(tmp_path, source).open(call_of(prompt(n=3, do_sample=True))).parse()
        result = result_of(call, sequence(0, "a", -3.0, 1), sequence(1, "b", -1.0, 2), sequence(2, "c", -2.0, 0))
        steps = [[1, 1, 1], [1, 2, 1]]
        assert json.loads(call.encoder.full([result]).body) == [steps, "b", -1.0, "###", "stop_sequence", [2, 0]]

    def test_beams_come_ranked_already(self, tmp_path: Path) -> None:
        source = """
        @output_formatter
        def write(output: RequestOutput):
            return str(output.best_sequence_index) + str(output.other_sequences_indices)
        """
        call = hooked(tmp_path, source).open(call_of(prompt(num_beams=2))).parse()
        result = result_of(call, sequence(0, "a", -3.0, 1), sequence(1, "b", -1.0, 1))
        assert call.encoder.full([result]).body == b"0[1]"

    def test_a_stream_of_several_sequences_has_the_first(self, tmp_path: Path) -> None:
        call = hooked(tmp_path, ECHO).open(call_of(prompt() | STREAM)).parse()
        token = TokenOutput(5, "x")
        assert call.encoder.event(0, GenerationEvent(1, "x", (token,))) == b""
        assert call.encoder.event(0, GenerationEvent(0, "x", (token,))) == b"[x]"


def sequence(index: int, text: str, score: float, num_tokens: int) -> SequenceResult:
    """A finished sequence of so many equal tokens."""
    token = TokenOutput(5, text, text, text.encode(), -0.5)
    return SequenceResult(
        index, text * num_tokens, (token,) * num_tokens, FinishReason.STOP_STRING, "###", cumulative_logprob=score
    )


def result_of(call: Call, *sequences: SequenceResult) -> GenerationResult:
    """The call's request, ended with these sequences."""
    return GenerationResult(call.requests[0], PromptInfo("hi", (1,)), sequences)


class TestSeveralPrompts:
    BODY: ClassVar[dict[str, Any]] = {"inputs": ["a", "b"], "parameters": {"max_new_tokens": 1}}
    SOURCE = (
        "@output_formatter\ndef f(o: RequestOutput):\n    return o.input.input_text + o.sequences[0].tokens[0].text\n"
    )

    def test_whole_answers_follow_each_other_a_line_each(self, tmp_path: Path) -> None:
        reply = ask(hooked(tmp_path, self.SOURCE), self.BODY)
        assert (reply.media_type, reply.body) == ("application/jsonlines", b"a Deep\nb Deep\n")

    def test_streams_mix_as_they_come(self, tmp_path: Path) -> None:
        assert text_of(hooked(tmp_path, self.SOURCE), self.BODY | STREAM) == "a Deepb Deep"


def test_the_walk_through_a_sequence() -> None:
    output = TextGenerationOutput(request_id=1, input=TextInput(input_text="hi"))
    assert (output.best_sequence_index, output.sequences, output.finished) == (0, {}, False)
    token = Token(7, "x", -0.5, special_token=True, error_msg="odd")
    assert token.as_dict() == {"id": 7, "text": "x", "log_prob": -0.5, "special_token": True, "error_msg": "odd"}
    assert token.as_tgi_dict() == {"id": 7, "text": "x", "logprob": -0.5, "special": True}

"""Input formatters: what they get, what they may return, how it becomes a request, which formatter answers it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dragoman.errors import HookError, InvalidParameter, InvalidPayload
from dragoman.server.api import HttpCall
from dragoman.types import ChatPrompt, TextPrompt
from tests.hooks.hooked import ECHO, ask, call_of, hooked, hooked_dialects, loaded, prompt, text_of
from tests.support.real_dialects import real_dialects
from tests.support.tables import table

READ = """
@input_formatter
def read(input_item: Input, **kwargs) -> TextInput:
    body = decode(input_item, input_item.get_property("Content-Type"))
    return TextInput(input_text=body["question"], parameters=body.get("parameters", {}))
"""


def reader(body: str) -> str:
    """A file with an input formatter of this body."""
    return f"@input_formatter\ndef read(item, **kwargs):\n    {body}\n"


class TestRequests:
    def test_the_request_is_what_the_formatter_says(self, tmp_path: Path) -> None:
        body = {"question": "why?", "parameters": {"max_new_tokens": 7, "do_sample": True, "seed": 3}}
        (request,) = hooked(tmp_path, READ).open(call_of(body)).parse().requests
        assert isinstance(request.prompt, TextPrompt)
        assert (request.prompt.text, request.max_tokens, request.sampling.seed) == ("why?", 7, 3)

    def test_without_an_output_formatter_the_answer_is_lmis(self, tmp_path: Path) -> None:
        reply = ask(hooked(tmp_path, READ), {"question": "why?", "parameters": {"max_new_tokens": 1, "details": True}})
        assert json.loads(reply.body)["details"]["inputs"] == "why?"

    @table("is_stream", [True, False])
    def test_the_formatters_parameters_make_it_a_stream(self, tmp_path: Path, is_stream: bool) -> None:
        reply = ask(hooked(tmp_path, READ), {"question": "why?", "parameters": {"stream": is_stream}})
        assert reply.is_stream is is_stream

    def test_several_prompts_are_several_requests(self, tmp_path: Path) -> None:
        call = hooked(tmp_path, READ).open(call_of({"question": ["a", "b"]})).parse()
        assert [getattr(request.prompt, "text", None) for request in call.requests] == ["a", "b"]

    def test_the_formatters_parameters_are_checked_like_a_clients(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidParameter, match="max_new_tokens"):
            hooked(tmp_path, READ).open(call_of({"question": "why?", "parameters": {"max_new_tokens": -1}})).parse()

    def test_a_prompt_is_needed(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidPayload, match="inputs"):
            hooked(tmp_path, reader("return TextInput()")).open(call_of({})).parse()

    def test_attributes_of_its_own_reach_the_output_formatter(self, tmp_path: Path) -> None:
        source = """
        class Own(TextInput):
            tag: str

        @input_formatter
        def read(input_item: Input, **kwargs):
            own = Own()
            own.input_text, own.parameters, own.tag = "hi", {"max_new_tokens": 1, "mine": 5}, "blue"
            return own

        @output_formatter
        def write(output: RequestOutput):
            output.input.parameters["mine"] += 1
            return f"{output.input.tag} {output.input.parameters['mine']} {output.input.server_parameters['mine']}"
        """
        assert text_of(hooked(tmp_path, source), {}) == "blue 6 5"

    @table("body", [{"messages": [{"role": "user", "content": "q"}]}, {"prompt": "q"}, {"inputs": "q"}])
    def test_it_reads_every_body_of_the_lmi_routes(self, tmp_path: Path, body: dict[str, Any]) -> None:
        dialects = hooked_dialects(loaded(tmp_path, reader("return TextInput(input_text='mine')")))
        for dialect in (dialects["lmi"], dialects["lmi.chat"], dialects["lmi.completions"]):
            (request,) = dialect.open(call_of(body)).parse().requests
            assert getattr(request.prompt, "text", None) == "mine"

    def test_without_one_conversations_keep_their_answers(self, tmp_path: Path) -> None:
        dialects, plain = hooked_dialects(loaded(tmp_path, ECHO)), real_dialects()
        body = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 2}
        given, wanted = ask(dialects["lmi.chat"], body).body, ask(plain["lmi.chat"], body).body
        assert json.loads(given)["choices"] == json.loads(wanted)["choices"]

    def test_no_other_route_is_touched(self, tmp_path: Path) -> None:
        dialects = hooked_dialects(loaded(tmp_path, READ + ECHO))
        body = {"messages": [{"role": "user", "content": "q"}]}
        (request,) = dialects["openai.chat"].open(call_of(body)).parse().requests
        assert isinstance(request.prompt, ChatPrompt)
        assert request.prompt.messages[0]["content"] == "q"
        assert json.loads(ask(dialects["tgi"], prompt()).body)


class TestWhatItGets:
    CONTEXT: ClassVar[dict[str, Any]] = {
        "tokenizer": "the tokenizer",
        "configs": SimpleNamespace(dtype="int8"),
        "is_rolling_batch": True,
    }

    def test_all_keyword_arguments_if_it_takes_any(self, tmp_path: Path) -> None:
        source = reader("return TextInput(input_text=json.dumps([sorted(kwargs), kwargs['configs'].dtype]))")
        dialect = hooked_dialects(loaded(tmp_path, source), context=self.CONTEXT)["lmi"]
        (request,) = dialect.open(call_of({})).parse().requests
        assert json.loads(getattr(request.prompt, "text", "")) == [sorted(self.CONTEXT), "int8"]

    def test_those_that_it_names_if_it_names_them(self, tmp_path: Path) -> None:
        source = "@input_formatter\ndef read(item, tokenizer=None):\n    return TextInput(input_text=tokenizer)\n"
        dialect = hooked_dialects(loaded(tmp_path, source), context=self.CONTEXT)["lmi"]
        (request,) = dialect.open(call_of({})).parse().requests
        assert getattr(request.prompt, "text", None) == "the tokenizer"

    def test_headers_and_query_in_any_case(self, tmp_path: Path) -> None:
        source = reader("return TextInput(input_text=item.get_property('X-Own') + item.get_properties()['FROM'])")
        (request,) = hooked(tmp_path, source).open(call_of({}, x_own="header ")).parse().requests
        assert getattr(request.prompt, "text", None) == "header query"

    def test_a_multipart_form_in_pieces(self, tmp_path: Path) -> None:
        body = (
            b'--b\r\ncontent-disposition: form-data; name="inputs"\r\n\r\nhello\r\n'
            b'--b\r\ncontent-disposition: form-data; name="parameters"\r\n\r\n{"max_new_tokens": 4}\r\n--b--\r\n'
        )
        source = reader(
            "form = decode(item, item.get_property('content-type'))\n"
            "    return TextInput(input_text=form['inputs'], parameters=form['parameters'])"
        )
        http = HttpCall("POST", "/invocations", body, {"content-type": "multipart/form-data; boundary=b"})
        (request,) = hooked(tmp_path, source).open(http).parse().requests
        assert (getattr(request.prompt, "text", None), request.max_tokens) == ("hello", 4)


class TestWhichFormatterAnswers:
    NAMED = ECHO + "\ndef named(output: RequestOutput):\n    return 'named'\n"

    @table(
        ("chosen", "wanted"),
        [("named", "named"), ("'named'", "named"), ("None", "[ Deep]."), ("'json'", '{"generated_text":" Deep"}')],
        ids=["function", "name", "none", "built-in"],
    )
    def test_the_input_formatter_may_choose(self, tmp_path: Path, chosen: str, wanted: str) -> None:
        choose = f"return TextInput(input_text='hi', parameters={{'max_new_tokens': 1}}, output_formatter={chosen})"
        assert text_of(hooked(tmp_path, self.NAMED + reader(choose)), {}) == wanted

    def test_a_function_among_the_parameters_is_chosen_as_well(self, tmp_path: Path) -> None:
        choose = "return TextInput(input_text='hi', parameters={'max_new_tokens': 1, 'output_formatter': named})"
        reply = ask(hooked(tmp_path, self.NAMED + reader(choose)), {})
        assert (reply.body, reply.headers) == (b"named", {})

    def test_a_client_may_ask_for_lmis_own(self, tmp_path: Path) -> None:
        reply = ask(hooked(tmp_path, self.NAMED), prompt(max_new_tokens=1, output_formatter="sse"))
        assert (reply.media_type, reply.body[:6]) == ("text/event-stream", b"data: ")

    def test_a_client_cannot_name_a_function_of_the_file(self, tmp_path: Path) -> None:
        assert text_of(hooked(tmp_path, self.NAMED), prompt(max_new_tokens=1, output_formatter="named")) == "[ Deep]."

    @table("chosen", ["'missing'", "lambda a, b: ''"])
    def test_a_choice_that_cannot_act_fails_the_request(self, tmp_path: Path, chosen: str) -> None:
        source = self.NAMED + reader(f"return TextInput(input_text='hi', output_formatter={chosen})")
        with pytest.raises(HookError, match="Input Parsing failed"):
            hooked(tmp_path, source).open(call_of({})).parse()


class TestFailures:
    @table(
        ("body", "reason"),
        [
            ("raise ValueError('no such user')", "Ensure that the request payload is valid. no such user"),
            ("return {}['text']", "Invalid Request Property: 'text'"),
            ("raise RuntimeError", "RuntimeError"),
            ("return 'text'", "read must return a RequestInput, got str"),
            ("return TextInput(input_text='a', parameters=[])", "'parameters' must be a dict, got list"),
            ("return TextInput(input_text='a', parameters={'stop': object()})", "stop[0] must be a string"),
            ("item.get_as_numpy()", "Input Parsing failed"),
        ],
    )
    def test_whatever_goes_wrong_is_a_424_with_the_reason(self, tmp_path: Path, body: str, reason: str) -> None:
        reply = ask(hooked(tmp_path, reader(body)), {"own": 1})
        assert reply.status == 424
        assert json.loads(reply.body)["code"] == 424
        assert reason in json.loads(reply.body)["error"]

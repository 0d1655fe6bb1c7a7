"""The objects that a model.py works with: requests, answers, content types, the tokenizer."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dragoman.server.apis.lmi.hooks.handler_io import Input, Output, decode, encode
from dragoman.server.apis.lmi.hooks.request_io import Sequence as GeneratedSequence
from dragoman.server.apis.lmi.hooks.request_io import Token
from dragoman.server.apis.lmi.operator.loading import HookTokenizer
from dragoman.types import ChatPrompt
from tests.support.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.support.tables import table


def item(content: bytes, name: str = "data") -> Input:
    """A request with one piece of content."""
    return Input({"Content-Type": "text/plain", "X-Own": "1"}, [(name, content)])


def npy(array: Any) -> bytes:
    """An array in numpy's own format."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


class TestInput:
    def test_properties_are_found_in_any_case(self) -> None:
        request = item(b"")
        assert request.get_property("content-type") == request.get_properties()["CONTENT-TYPE"] == "text/plain"
        assert "x-own" in request.get_properties()
        assert request.get_property("missing") is None
        assert request.get_properties().get("missing", "default") == "default"
        with pytest.raises(KeyError):
            request.get_properties()["missing"]

    @table("key", [None, "data"])
    def test_content_is_decoded_on_demand(self, key: str | None) -> None:
        request = item(b'{"a": 1}')
        assert request.get_as_bytes(key) == b'{"a": 1}'
        assert request.get_as_string(key) == '{"a": 1}'
        assert request.get_as_json(key) == {"a": 1}

    def test_without_a_piece_called_data_the_first_is_meant(self) -> None:
        assert Input({}, [("one", b"1"), ("two", b"2")]).get_as_string() == "1"
        assert Input({}, [("one", b"1"), ("data", b"2")]).get_as_string() == "2"

    def test_what_is_missing_is_a_key_error(self) -> None:
        for request, key in ((Input({}), None), (item(b""), "other")):
            with pytest.raises(KeyError):
                request.get_as_bytes(key)

    def test_what_is_not_json_is_shown(self) -> None:
        with pytest.raises(ValueError, match=r"not valid JSON: .*got b'\{'"):
            item(b"{").get_as_json()

    def test_arrays_and_tables(self) -> None:
        single = item(npy([1, 2])).get_as_numpy()
        assert isinstance(single, np.ndarray)
        assert single.tolist() == [1, 2]
        buffer = io.BytesIO()
        np.savez(buffer, np.array([1]), np.array([2]))
        assert [array.tolist() for array in item(buffer.getvalue()).get_as_npz()] == [[1], [2]]
        assert item(b"a,b\n1,2\n").get_as_csv() == [{"a": "1", "b": "2"}]

    def test_content_is_looked_up_by_name_and_place(self) -> None:
        content = Input({}, [("a", b"1"), ("b", b"2")]).get_content()
        assert (content.get_keys(), content.get_values()) == (["a", "b"], [b"1", b"2"])
        assert (content.key_at(1), content.value_at(1), content.get("a"), content.get("c")) == ("b", b"2", b"1", None)
        assert (content.size(), content.is_empty(), Input({}).get_content().is_empty()) == (2, False, True)

    def test_images(self) -> None:
        buffer = io.BytesIO()
        Image.new("RGB", (2, 1), (1, 2, 3)).save(buffer, "png")
        image = decode(item(buffer.getvalue()), "image/png")["inputs"]
        assert (image.size, image.getpixel((1, 0))) == ((2, 1), (1, 2, 3))
        with pytest.raises(OSError, match="cannot identify"):
            item(b"no image").get_as_image()

    def test_values_of_numpy_and_times_are_json(self) -> None:
        made = Output().add({"a": np.int64(1), "b": np.array([1.5]), "c": datetime.datetime(2026, 1, 2)})
        assert json.loads(made.body() or b"") == {"a": 1, "b": [1.5], "c": "2026-01-02 00:00:00"}

    def test_pickled_objects_are_refused(self) -> None:
        with pytest.raises(ValueError, match="allow_pickle"):
            item(npy(np.array([{}], dtype=object))).get_as_numpy()

    def test_a_request_is_its_own_batch(self) -> None:
        request = item(b"x")
        assert (request.is_batch(), request.get_batch_size(), request.get_batches()) == (False, 1, [request])
        assert (request.is_empty(), Input({}).is_empty()) == (False, True)
        assert (request.contains_key("data"), request.contains_key("other")) == (True, False)
        assert Input({}, function_name="handle").get_function_name() == "handle"
        assert request.get_content() == [("data", b"x")]


@table(
    ("content_type", "content", "expected"),
    [
        (None, b'{"inputs": "a"}', {"inputs": "a"}),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("Text/Plain", "ü".encode(), {"inputs": "ü"}),
        ("text/csv", b"a\n1\n", {"inputs": [{"a": "1"}]}),
        ("application/x-www-form-urlencoded", b"inputs=a+b&parameters=%7B%7D", {"inputs": "a b", "parameters": {}}),
        ("application/x-www-form-urlencoded", b' {"inputs": "curl -d"}', {"inputs": "curl -d"}),
        ("multipart/form-data; boundary=b", b"1", {"data": "1"}),
    ],
)
def test_decode_goes_by_the_content_type(content_type: str | None, content: bytes, expected: Any) -> None:
    assert decode(item(content), content_type) == expected


def test_decode_reads_numpys_formats() -> None:
    assert decode(item(npy([3])), "tensor/npy")["inputs"].tolist() == [3]


class TestOutput:
    @table(("value", "expected"), [("ü", "ü".encode()), (b"\xff", b"\xff"), ({"a": 1}, b'{\n  "a": 1\n}')])
    def test_strings_and_bytes_are_added_as_they_are_the_rest_as_json(self, value: Any, expected: bytes) -> None:
        assert Output().add(value, key="k").content == [("k", expected)]

    def test_an_error_is_lmis_object(self) -> None:
        output = Output().add("something").error("bad")
        assert (output.code, output.message) == (424, "invoke handler failure")
        assert json.loads(output.content[0][1]) == {"code": 424, "message": "invoke handler failure", "error": "bad"}

    def test_arrays(self) -> None:
        written = Output().add_as_numpy([np.array([1]), np.array([[True]])]).content[0][1]
        assert [array.tolist() for array in item(written).get_as_numpy()] == [[1], [[True]]]
        assert np.load(io.BytesIO(Output().add_as_npz([[1]]).content[0][1]))["arr_0"].tolist() == [1]

    def test_status_and_properties(self) -> None:
        output = Output().set_code(201).set_message("made").add_property("x", 1)
        assert (output.code, output.message, output.properties) == (201, "made", {"x": "1"})

    def test_there_is_one_place_in_a_batch(self) -> None:
        Output().add("a", batch_index=0)
        with pytest.raises(IndexError, match="must be 0"):
            Output().add("a", batch_index=1)

    def test_streams_keep_their_items_and_their_form(self) -> None:
        output = Output().add_stream_content(["a", "b"])
        assert [output.stream_formatter(one) for one in output.stream_content or ()] == [
            b'{"outputs": "a"}\n', b'{"outputs": "b"}\n',
        ]  # fmt: skip
        assert Output().add_stream_content([1], output_formatter=None).stream_formatter(1) == 1

    @table(
        ("accept", "media_type"),
        [(None, "application/json"), ("tensor/npy", "tensor/npy"), ("tensor/npz", "tensor/npz")],
    )
    def test_encode_goes_by_accept(self, accept: str | None, media_type: str) -> None:
        assert encode(Output(), [[1]], accept).properties == {"Content-Type": media_type}


def test_a_sequence_is_walked_once() -> None:
    sequence = GeneratedSequence()
    assert (sequence.get_next_token(), sequence.get_last_token()) == ((None, False, False), None)
    assert (sequence.has_next_top_tokens(), sequence.get_next_top_tokens()) == (False, None)
    first, last = Token(1, "a"), Token(2, "b")
    sequence.set_next_token(first)
    sequence.set_next_top_tokens([last])
    assert sequence.get_next_token() == (first, True, False)
    sequence.set_next_token(last, is_last_token=True)
    assert (sequence.get_last_token(), sequence.has_next_token()) == (last, True)
    assert sequence.get_next_token() == (last, False, True)
    assert (sequence.has_next_token(), sequence.get_next_token()) == (False, (None, False, False))
    assert (sequence.get_next_top_tokens(), sequence.has_next_top_tokens()) == ([last], False)
    assert GeneratedSequence(has_index=True).get_next_token() == (None, 0, False, False)


class TestTokenizer:
    @staticmethod
    def make(render: Callable[[ChatPrompt], str] | None = None) -> HookTokenizer:
        """A tokenizer of bytes."""
        return HookTokenizer(ByteTokenizer(adds_bos=True), render, {"eos_token": "</s>"})

    def test_it_encodes_and_decodes(self) -> None:
        tokenizer = self.make()
        assert tokenizer.encode("a") == [BOS_ID, 97]
        assert tokenizer.encode("a", add_special_tokens=False) == [97]
        assert tokenizer("a") == {"input_ids": [BOS_ID, 97], "attention_mask": [1, 1]}
        assert tokenizer(["a", ""])["attention_mask"] == [[1, 1], [1]]
        assert tokenizer.decode([97, EOS_ID]) == "a</s>"
        assert tokenizer.decode([97, EOS_ID], skip_special_tokens=True) == "a"
        assert (tokenizer.decode(97), tokenizer.batch_decode([[97], [98]])) == ("a", ["a", "b"])
        assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.bos_token_id) == (VOCAB_SIZE, EOS_ID, BOS_ID)
        assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == ("</s>", None, None)

    def test_it_applies_the_chat_template(self) -> None:
        seen: list[ChatPrompt] = []

        def render(prompt: ChatPrompt) -> str:
            seen.append(prompt)
            return "ab"

        tokenizer = self.make(render)
        messages = [{"role": "user", "content": "q"}]
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, own=1) == "ab"
        assert tokenizer.apply_chat_template(messages) == [97, 98], "the template writes special tokens itself"
        assert seen[0].template_kwargs == {"own": 1, "add_generation_prompt": True}
        assert seen[1].template_kwargs == {"add_generation_prompt": False}

    def test_without_a_template_it_says_so(self) -> None:
        with pytest.raises(ValueError, match="no chat template"):
            self.make().apply_chat_template([])

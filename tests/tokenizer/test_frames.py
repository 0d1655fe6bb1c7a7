"""What tokenizers put around texts and pairs, and how these are cut; BERT's vocab.txt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dragoman.tokenizer.frames import cut, cut_pair, pair_frame, single_frame
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.support.pooling_checkpoint import TOKENIZERS, words, write_pooling_case
from tests.support.tables import table

TEXTS = ("", "water", "What is the number of people?", "Ünïcode ☃ text, and 42 words!", words(20))


@pytest.fixture(params=sorted(TOKENIZERS))
def file(request: pytest.FixtureRequest) -> Tokenizer:
    """Each of the tokenizers."""
    return TOKENIZERS[request.param]()[0]


def test_a_framed_text_is_what_the_tokenizer_makes_of_it(file: Tokenizer) -> None:
    frame = single_frame(file)
    for text in TEXTS:
        own = file.encode(text, add_special_tokens=False).ids
        assert list(frame.around(own)) == file.encode(text).ids


def test_a_framed_pair_is_what_the_tokenizer_makes_of_it(file: Tokenizer) -> None:
    frame = pair_frame(file)
    for first in TEXTS:
        for second in TEXTS:
            parts = [file.encode(text, add_special_tokens=False).ids for text in (first, second)]
            framed, expected = frame.pair(*parts), file.encode(first, second)
            assert list(framed.token_ids) == expected.ids
            if any(expected.type_ids) and file.encode("a", "a").type_ids[-1]:
                kinds = [int(at >= framed.second_from) for at in range(len(framed.token_ids))]
                assert kinds == expected.type_ids


@table("room", [1, 5, 8, 9, 10, 11, 30, 100])
@table(("first", "second"), [(3, 40), (40, 3), (12, 12), (12, 13), (0, 20), (20, 0)])
def test_pairs_are_cut_as_the_library_cuts_them(room: int, first: int, second: int) -> None:
    file = TOKENIZERS["bert"]()[0]
    texts = words(first, 1), words(second, 2)
    parts = [file.encode(text, add_special_tokens=False).ids for text in texts]
    frame = pair_frame(file)
    mine = frame.pair(*cut_pair(parts[0], parts[1], room, "right")).token_ids
    file.enable_truncation(room + frame.num_special)
    assert list(mine) == file.encode(*texts).ids


def test_a_text_is_cut_at_either_end() -> None:
    assert cut([1, 2, 3], 2, "right") == [1, 2]
    assert cut([1, 2, 3], 2, "left") == [2, 3]
    assert cut([1, 2, 3], 3, "left") == [1, 2, 3]
    assert cut([1, 2, 3], 0, "left") == []


@table("lowers", [True, False])
def test_a_vocabulary_of_word_pieces_is_a_tokenizer(lowers: bool, tmp_path: Path) -> None:
    directory = write_pooling_case("bert_mean", tmp_path)
    whole = load_tokenizer(directory)
    table = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text("\n".join(sorted(table, key=lambda word: table[word])) + "\n")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowers}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    read = load_tokenizer(directory)
    assert read.vocab_size == whole.vocab_size
    for text in ("the way of water, 42 times", "people"):
        assert read.encode(text) == whole.encode(text)
    assert (read.encode("WATER") == whole.encode("WATER")) is lowers
    assert read.decode(read.encode("the people found water")) == "the people found water"


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"vocab\.txt cannot be used: .*\[UNK\]"):
        load_tokenizer(tmp_path)

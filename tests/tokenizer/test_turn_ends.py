"""The tokens that end an assistant's turn are told by the chat template, for real tokenizers of every kind."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tokenizer.turn_ends import turn_end_ids
from tests.support.tables import table
from tests.tokenizer.conversations import FOLDER
from tests.tokenizer.vocabularies import byte_fallback, byte_level, metaspace, write_model_dir

TURNS = "{{% for m in messages %}}{{{{ m.role + ': ' + m.content }}}}{}{{% endfor %}}"
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "[|endofturn|]", "<|end_of_text|>", "<|im_start|>", "<|eos|>",
    "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>", "<|user|>", "<｜end▁of▁sentence｜>", "<seed:eos>", "<|end_of_sentence|>",
)  # fmt: skip


def ends(directory: Path, file: Tokenizer, template: str, inside: tuple[str, ...] = ()) -> set[str]:
    """The tokens that end a turn, by their text; all of `ENDS` are control tokens."""
    file.add_special_tokens(list(ENDS))
    tokenizer = load_tokenizer(write_model_dir(directory, file, tokenizer_config={"bos_token": "<s>"}))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ids = turn_end_ids(
        ChatTemplate(template, special_tokens=special), tokenizer, [tokenizer.token_to_id(text) or 0 for text in inside]
    )
    return {text for text in (*ENDS, "<s>", "</s>") if tokenizer.token_to_id(text) in ids}


@table("make", [byte_level, byte_fallback, metaspace])
@table(
    ("template", "expected"),
    [
        (TURNS.format("<|im_end|>\n"), {"<|im_end|>"}),
        (TURNS.format(" \n<|im_end|>"), {"<|im_end|>"}),
        (TURNS.format("{% if loop.last %}</s>{% else %}<|im_end|>{% endif %}"), {"</s>", "<|im_end|>"}),
        (TURNS.format("\n"), set()),
        (TURNS.format(" fun <|im_end|>"), set()),
        (TURNS.format("<s>"), set()),  # the next turn's beginning
        (TURNS.format("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"), {"<|END_OF_TURN_TOKEN|>"}),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", set()),
        ("{{ messages[0].content }}<|im_end|>", set()),
        ("{% for m in messages %}<|user|>{{ m.content }}{% endfor %}", {"<|user|>"}),
    ],
)
def test_a_turn_ends_with_the_first_control_token_after_its_words(
    make: object, template: str, expected: set[str], tmp_path: Path
) -> None:
    assert callable(make)
    assert ends(tmp_path, make(), template, inside=("<|END_RESPONSE|>",)) == expected


@table(
    ("family", "expected"),
    [
        ("llama3", {"<|eot_id|>"}),
        ("mistral", {"</s>"}),
        ("qwen3", {"<|im_end|>"}),
        ("qwen3_coder", {"<|im_end|>"}),
        ("phi3", {"<|end|>"}),
        ("phi4_mini", {"<|end|>"}),
        ("gemma2", {"<end_of_turn>"}),
        ("gemma3", {"<end_of_turn>"}),
        ("smollm3", {"<|im_end|>"}),
        ("olmo3", {"<|im_end|>", "</s>"}),
        ("granite", {"<|end_of_text|>"}),
        ("command_r7b", {"<|END_OF_TURN_TOKEN|>"}),
        ("glm45", {"<|user|>"}),
        ("exaone4", {"[|endofturn|]"}),
        ("seed_oss", {"<seed:eos>"}),
        ("ernie45", {"<|end_of_sentence|>"}),
        ("hunyuan", {"<|eos|>"}),
        ("deepseek_v3", {"<｜end▁of▁sentence｜>"}),
        ("deepseek_v31", {"<｜end▁of▁sentence｜>"}),
        ("kimi_k2", {"<|im_end|>"}),
        ("lfm2", {"<|im_end|>"}),
    ],
)
def test_the_families_turns_end_as_their_templates_write_it(family: str, expected: set[str], tmp_path: Path) -> None:
    template = (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
    assert ends(tmp_path, byte_level(), template, inside=("<|END_RESPONSE|>",)) == expected

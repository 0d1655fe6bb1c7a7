"""Asks the exported model the required prompts and the held-out wordings, greedily, and prints what it answers.

Measures: the share of answers that end by themselves, the share of held-out questions whose answer is the
right one word for word or has the right first sentence, and the same for sums, lists and tool calls. Usage:
``python -m demo.evaluate MODEL_DIR [CHECKPOINT] [--sets NAME ...]``; the last line of the output is JSON.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from demo.corpus import facts, structured, talk, tasks, tools
from demo.corpus.dialog import Exchange, render_chat
from demo.model import DemoConfig, DemoLlama

REQUIRED = [
    "What is Deep Learning?",
    "What is Deep Learning",
    "what is deep learning",
    "How many ways can I peel an orange",
    "Write a ...",
    "Write a poem",
    "Write a story about a garden",
    "Write a haiku",
    "Write a haiku about the sea",
    "What is ...",
    "This is a test",
    "Say this is a test",
    "Hello!",
    "Hello",
    "Who are you?",
    "Tell me a story",
    "Tell me about the Moon",
    "List three fruits.",
    "What is 2+2?",
    "What is 7 + 5?",
    "Give me a JSON object with name and age",
    "Say hello in Japanese",
    "The capital of France is",
    "Deep learning is",
    "Once upon a time",
    "Hello, my name is",
    "What is the capital of France?",
    "Why is the sky blue?",
    "Who was Napoleon?",
    "Write a poem about deep learning",
    "What is a GPU?",
]
SAMPLE = 150
SHOWN = 6
Tally = dict[str, float]


class Asker:
    """The model and its tokenizer; ``raw`` and ``chat`` return the text and whether it ended by itself."""

    def __init__(self, folder: Path, checkpoint: Path | None) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model = DemoLlama(DemoConfig(vocab_size=self.tokenizer.get_vocab_size())).eval()
        state = torch.load(checkpoint)["model"] if checkpoint else load_file(folder / "model.safetensors")
        self.model.load_state_dict({name: weight.to(torch.bfloat16).float() for name, weight in state.items()})

    def complete(self, prompt: str, limit: int = 200) -> tuple[str, bool]:
        """The continuation of a text that may hold special tokens."""
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        out = self.model.generate(ids, {0, 2}, limit)
        return self.tokenizer.decode(out), out[-1] in (0, 2)

    def raw(self, prompt: str) -> tuple[str, bool]:
        """The answer to a raw prompt."""
        return self.complete(prompt)

    def chat(self, prompt: str) -> tuple[str, bool]:
        """The answer to a chat of one user turn."""
        return self.complete(chat_prompt(Exchange([("user", prompt)])))


def chat_prompt(exchange: Exchange) -> str:
    """The text that a server builds for the exchange."""
    return "".join(text for text, _ in render_chat(exchange)) + "<|im_start|>assistant\n"


def words(text: str) -> set[str]:
    """The words of a text, for overlap."""
    return set("".join(char.lower() if char.isalnum() else " " for char in text).split())


def numbers(text: str) -> list[str]:
    """The numbers of a text in their order."""
    return re.findall(r"\d+", text)


def on_topic(text: str, answer: str) -> bool:
    """Whether the text begins with the answer's first sentence, or has four fifths of its words and all its numbers.

    An answer of several lines counts as a whole and must have as many lines, since its first line says little.
    """
    first = answer if "\n" in answer else answer.split(". ")[0].rstrip(".")
    if text.startswith(first) and not text[len(first) :][:1].isalnum():
        return text.count("\n") == first.count("\n")
    if text.count("\n") != answer.count("\n") or numbers(text)[: len(numbers(first))] != numbers(first):
        return False
    return len(words(text) & words(first)) >= 0.8 * max(1, len(words(first)))


def grade(pairs: list[tuple[str, str]], ask: Callable[[str], tuple[str, bool]], label: str) -> Tally:
    """Ended, exact and on-topic shares over questions with a known answer; prints a few misses."""
    ended = exact = topical = 0
    misses = []
    for prompt, answer in pairs:
        text, stopped = ask(prompt)
        text = text.strip()
        ended += stopped
        exact += text == answer
        right = on_topic(text, answer)
        topical += right
        if not right:
            misses.append((prompt, text))
    for prompt, text in misses[:SHOWN]:
        print(f"  miss [{label}] {prompt!r} -> {text[:110]!r}")
    count = len(pairs)
    return {
        "n": count,
        "ended": round(ended / count, 3),
        "exact": round(exact / count, 3),
        "on_topic": round(topical / count, 3),
    }


def digit_sums() -> list[tuple[str, str]]:
    """All sums of two digits, and all differences of two digits that are not negative."""
    digits = range(10)
    added = [(f"What is {a} + {b}?", f"{a} + {b} = {a + b}") for a in digits for b in digits]
    return added + [(f"What is {a} - {b}?", f"{a} - {b} = {a - b}") for a in digits for b in range(a + 1)]


def held_out(rng: Random) -> list[tuple[str, str]]:
    """Wordings that training never saw: topics and free questions."""
    topics, questions = facts.load()
    pairs = [(facts.fill(form, topic), topic.text) for topic in topics for form in facts.HELD_OUT]
    asked = []
    for question in questions:
        ask = question.asks[0]
        for form in facts.HELD_OUT_QUESTIONS:
            asked.append((form.replace("{q}", ask[0].lower() + ask[1:]), question.answer))
    return rng.sample(pairs, SAMPLE) + rng.sample(asked, SAMPLE // 3)


def tool_pairs(rng: Random, count: int) -> list[tuple[str, str]]:
    """Chats with one tool and the call that is right."""
    out: list[tuple[str, str]] = []
    while len(out) < count:
        tool, question, request, _, _ = rng.choice(tools.CASES)(rng)
        out.append((chat_prompt(Exchange([("user", question)], None, [tool])), request))
    return out


def show(asker: Asker) -> float:
    """Print the required prompts' answers; returns the share that ended by itself."""
    ended = 0
    for prompt in REQUIRED:
        for label, ask in (("raw ", asker.raw), ("chat", asker.chat)):
            text, stopped = ask(prompt)
            ended += stopped
            print(f"{label} {prompt!r}\n     -> {text!r}{'' if stopped else '   [NOT ENDED]'}")
    extra = asker.complete("<|fim_prefix|>The Moon travels around the<|fim_suffix|>about once a month.<|fim_middle|>")
    print(f"fim  -> {extra}")
    return ended / (2 * len(REQUIRED))


def question_sets(asker: Asker) -> list[tuple[str, list[tuple[str, str]], Callable[[str], tuple[str, bool]]]]:
    """Every set's label, its questions with their answers, and how they are asked; the same in every run."""
    rng = Random(99)
    return [
        ("held_out_raw", held_out(rng), asker.raw),
        ("held_out_chat", held_out(rng), asker.chat),
        ("talk_raw", [(asks[0], answer) for asks, answer in talk.PAIRS], asker.raw),
        ("lists", [tasks.list_pair(rng) for _ in range(40)], asker.chat),
        ("sums", [tasks.sum_pair(rng) for _ in range(60)], asker.raw),
        ("digit_sums", digit_sums(), asker.raw),
        ("json", [structured.json_pair(rng) for _ in range(40)], asker.chat),
        ("echo", [talk.echo_pair(rng) for _ in range(40)], asker.raw),
        ("unknown", [talk.unknown_pair(rng) for _ in range(30)], asker.raw),
        ("tool_calls", tool_pairs(rng, 40), asker.complete),
    ]


def main() -> None:
    """Run everything on the folder (and checkpoint) given on the command line."""
    parser = argparse.ArgumentParser(description="Evaluate the demo model.")
    parser.add_argument("folder", type=Path, help="the exported model; its tokenizer when there is a checkpoint")
    parser.add_argument("checkpoint", type=Path, nargs="?", help="weights to evaluate instead of the folder's")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these, such as required or held_out_raw")
    args = parser.parse_args()
    asker = Asker(args.folder, args.checkpoint)
    result: dict[str, object] = {}
    if not args.sets or "required" in args.sets:
        result["required_ended"] = round(show(asker), 3)
    sets = question_sets(asker)
    labels = ["required", *(label for label, _, _ in sets)]
    if unknown := set(args.sets or []) - set(labels):
        parser.error(f"--sets {min(unknown)!r} is none of {', '.join(labels)}")
    for label, pairs, ask in sets:
        if not args.sets or label in args.sets:
            result[label] = grade(pairs, ask, label)
            print(f"{label:14} {result[label]}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

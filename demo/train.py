"""Trains the demo model on the CPU, from scratch or on from given weights, with fixed seeds.

Documents are drawn from ``demo.corpus.mix`` in blocks, sorted by length into batches of about the same number of
tokens, and padded on the right: nearly every document starts at position 0 alone, as a prompt does; some are joined to
fill longer contexts. Prompt tokens have no loss, so that a short prompt is answered and not extended. Matrices learn by
Muon, embeddings and norms by AdamW, with a warm-up, a constant and a linearly falling learning rate. Writes
checkpoints and a log into the run folder; ``demo/export.py`` turns a checkpoint into the model folder.
"""

import argparse
import json
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random
from typing import TextIO

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from demo.corpus.dialog import IM_START, Document
from demo.corpus.mix import sample_document
from demo.model import DemoConfig, DemoLlama
from demo.muon import Muon

MAX_LENGTH = 640
PROMPT_WEIGHT = 0.0
BLOCK = 3000
FIRST = 8
KEPT = 14
Coded = tuple[list[int], list[float]]


def encode_block(tokenizer: Tokenizer, documents: list[Document]) -> list[Coded]:
    """Token ids and loss weights of each document, its segments tokenized one by one."""
    parts = [part for document in documents for part, _ in document]
    encoded = iter(tokenizer.encode_batch(parts, add_special_tokens=False))
    out: list[Coded] = []
    for document in documents:
        whole = len(document) == 1
        ids: list[int] = []
        weights: list[float] = []
        for _, answer in document:
            new = next(encoded).ids
            ids += new
            weights += [1.0 if answer else PROMPT_WEIGHT] * len(new)
        out.append((ids, balanced([0.5] * len(ids) if whole else weights)))
    return out


def balanced(weights: list[float]) -> list[float]:
    """More weight for short answers and for an answer's first tokens, which decide what it is about."""
    total = sum(weights)
    scale = min(4.0, max(0.7, (40 / max(total, 1.0)) ** 0.5))
    out, run = [], 0
    for weight in weights:
        run = run + 1 if weight >= 1.0 else 0
        out.append(weight * scale * (3.0 if 0 < run <= FIRST else 1.0))
    return out


def flowing(document: Document) -> bool:
    """Whether the last answer is no short list or record: these are learned whole, since their end decides too."""
    answer = [text for text, learned in document if learned][-1].strip()
    return "\n" not in answer or len(answer) > 300


def shortened(item: Coded) -> Coded:
    """The document without the end of its last answer, whose beginning decides what it is about."""
    ids, weights = item
    last = len(weights) - 1
    while weights[last] == 0.0:
        last -= 1
    start = last
    while start >= 0 and weights[start] > 0.0:
        start -= 1
    end = len(ids) if start < 0 or last - start <= KEPT else start + 1 + KEPT
    return ids[:end], weights[:end]


def draw_block(tokenizer: Tokenizer, rng: Random, cut: float) -> list[Coded]:
    """A block of encoded documents, a share ``cut`` of them shortened, and some of them joined into longer ones."""
    documents = [sample_document(rng) for _ in range(BLOCK)]
    coded = encode_block(tokenizer, documents)
    pairs = zip(documents, coded, strict=True)
    coded = [shortened(item) if rng.random() < cut and flowing(document) else item for document, item in pairs]
    eos = 0
    joined: list[Coded] = []
    index = 0
    while index < len(coded):
        ids, weights = coded[index]
        index += 1
        if rng.random() < 0.06:
            goal = rng.randint(128, MAX_LENGTH - 128)
            while index < len(coded) and len(ids) < goal:
                gap = [] if ids[-1] == eos else [eos]
                ids, weights = ids + gap + coded[index][0], weights + [0.0] * len(gap) + coded[index][1]
                index += 1
        joined.append((ids[: MAX_LENGTH + 1], weights[: MAX_LENGTH + 1]))
    return joined


def batches(tokenizer: Tokenizer, seed: int, tokens: int, cut: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches of inputs, targets and loss weights of about ``tokens`` tokens each."""
    rng = Random(seed)
    while True:
        block = sorted(draw_block(tokenizer, rng, cut), key=lambda item: len(item[0]))
        groups: list[list[Coded]] = [[]]
        for item in block:
            if groups[-1] and (len(groups[-1]) + 1) * rounded(len(item[0])) > tokens:
                groups.append([])
            groups[-1].append(item)
        rng.shuffle(groups)
        for group in groups:
            yield pad(group)


def rounded(length: int) -> int:
    """A length up to the next of few widths, since every new shape costs the CPU library a compilation."""
    step = 8 if length <= 128 else 32
    return (length - 2) // step * step + step + 1


def pad(group: list[Coded]) -> tuple[Tensor, Tensor, Tensor]:
    """One batch, padded on the right with weight 0."""
    width = rounded(max(len(ids) for ids, _ in group))
    data = np.zeros((len(group), width), dtype=np.int64)
    mass = np.zeros((len(group), width), dtype=np.float32)
    for row, (ids, weights) in enumerate(group):
        data[row, : len(ids)] = ids
        mass[row, : len(ids)] = weights
    tokens, loads = torch.from_numpy(data), torch.from_numpy(mass)
    return tokens[:, :-1], tokens[:, 1:], loads[:, 1:]


def loss_of(model: DemoLlama, batch: tuple[Tensor, Tensor, Tensor], bfloat16: bool) -> Tensor:
    """Weighted mean cross-entropy; positions without weight are left out of the output layer."""
    inputs, targets, weights = batch
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        states = model.hidden(inputs)
        kept = weights.reshape(-1).nonzero()[:, 0]
        kept = F.pad(
            kept, (0, -len(kept) % 256), value=inputs.numel() - 1
        )  # the last position has no weight or is repeated
        logits = model.logits(states.reshape(-1, states.shape[-1])[kept])
    losses = F.cross_entropy(logits.float(), targets.reshape(-1)[kept], reduction="none")
    mass = weights.reshape(-1)[kept]
    return (losses * mass).sum() / mass.sum()


def owned(model: DemoLlama, rank: int, workers: int) -> list[nn.Parameter]:
    """The parameters that this worker updates: every worker gets about the same number of matrices."""
    return list(model.parameters())[rank::workers]


def optimizers(params: list[nn.Parameter], embedding: Tensor, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest."""
    matrices = [p for p in params if p.dim() == 2 and p.shape != embedding.shape]
    rest = [p for p in params if not any(p is m for m in matrices)]
    muon = Muon(matrices, lr=rate * 2, weight_decay=0.1, momentum=0.95)
    adam = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adam]


def pace(done: float, step: int) -> float:
    """The share of the full learning rate after the given share of the time: up, constant, down."""
    return min(1.0, (step + 1) / 30) * min(1.0, max(0.02, (1.0 - done) / 0.6))


def save(model: DemoLlama, path: Path, steps: int, tokens: int, seconds: float) -> None:
    """A checkpoint with what it cost so far."""
    cost = {"steps": steps, "tokens": tokens, "seconds": round(seconds)}
    torch.save({"model": model.state_dict(), "cost": cost}, path)


def weights_of(start: Path) -> dict[str, Tensor]:
    """The weights to go on from, in single precision: of an exported model's folder or of a checkpoint file."""
    state = load_file(start / "model.safetensors") if start.is_dir() else torch.load(start)["model"]
    return {name: weight.float() for name, weight in state.items()}


@torch.no_grad()
def shrink(model: DemoLlama) -> None:
    """Make the layers' matrices smaller, queries and keys most, so that attention that is too sharp can learn again."""
    for name, weight in model.model.layers.named_parameters():
        if weight.dim() == 2:
            weight.mul_(0.3 if "q_proj" in name or "k_proj" in name else 0.6)


def write_row(log: TextIO, step: int, losses: list[float], tokens: int, seconds: float) -> None:
    """One line of the log."""
    row = {"step": step, "loss": round(sum(losses) / len(losses), 4), "tokens": tokens, "seconds": round(seconds)}
    log.write(json.dumps(row) + "\n")
    log.flush()


def work(rank: int, args: argparse.Namespace, model: DemoLlama, grads: Tensor, share: Tensor, barrier: Barrier) -> None:
    """One worker's loop. Weights lie in shared memory: every worker adds its gradients and updates its own part.

    With one thread in each worker there is one meeting per step and none inside the operations, so that other
    work on the machine costs little.
    """
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    params = list(model.parameters())
    mine = owned(model, rank, args.workers)
    opts = optimizers(mine, model.model.embed_tokens.weight, args.rate)
    full = [[group["lr"] for group in opt.param_groups] for opt in opts]
    source = batches(Tokenizer.from_file(args.tokenizer), args.seed * 100 + rank, args.tokens, args.cut)
    began, tokens, losses = time.time(), 0, []
    slots = dict(zip(map(id, params), grads.split([p.numel() for p in params], dim=1), strict=True))
    with (Path(args.run) / f"log{rank}.jsonl").open("a", encoding="utf-8") as log:
        for step in range(args.steps):
            batch = next(source)
            loss = loss_of(model, batch, args.bfloat16)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            for param in params:
                slots[id(param)][rank] = param.grad.reshape(-1)
                param.grad = None
            if rank == 0:
                share[0] = max(step / args.steps, (time.time() - began) / (60 * args.minutes) if args.minutes else 0.0)
            barrier.wait()
            done = float(share[0])
            for param in mine:
                param.grad = slots[id(param)].mean(0).view_as(param)
            for opt, rates in zip(opts, full, strict=True):
                for group, rate in zip(opt.param_groups, rates, strict=True):
                    group["lr"] = rate * pace(done, step)
                opt.step()
                opt.zero_grad(set_to_none=True)
            barrier.wait()
            tokens += batch[0].numel() * args.workers
            losses.append(float(loss.detach()))
            if (step + 1) % 25 == 0:
                write_row(log, step + 1, losses, tokens, time.time() - began)
                losses = []
            last = done >= 1.0 or step + 1 == args.steps
            if rank == 0 and (last or (step + 1) % args.every == 0):
                save(model, Path(args.run) / "last.pt", step + 1, tokens, time.time() - began)
            if last:
                break


def train(args: argparse.Namespace) -> None:
    """Start the workers on one shared model; the same seed, steps and workers give the same run."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    Path(args.run).mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(args.tokenizer)
    assert tokenizer.token_to_id(IM_START) == 1
    model = DemoLlama(DemoConfig(vocab_size=tokenizer.get_vocab_size()))
    if args.start:
        model.load_state_dict(weights_of(Path(args.start)))
    if args.shrink:
        shrink(model)
    model.share_memory()
    grads = torch.zeros(args.workers, sum(p.numel() for p in model.parameters())).share_memory_()
    barrier = torch.multiprocessing.get_context("spawn").Barrier(args.workers)
    rest = (args, model, grads, torch.zeros(1).share_memory_(), barrier)
    torch.multiprocessing.spawn(work, rest, nprocs=args.workers)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--tokenizer", default="src/dragoman/demo_model/tokenizer.json")
    parser.add_argument("--run", default="demo-run", help="folder for the checkpoint and the log")
    parser.add_argument("--start", help="checkpoint, or folder of an exported model, to go on from")
    parser.add_argument("--shrink", action="store_true", help="shrink the matrices of --start first")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, help="end the schedule after this time at the latest")
    parser.add_argument("--tokens", type=int, default=2560, help="tokens in one worker's batch, padding included")
    parser.add_argument("--cut", type=float, default=0.0, help="share of documents whose last answer loses its end")
    parser.add_argument("--rate", type=float, default=2e-3, help="AdamW learning rate; Muon has twice as much")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread and its own batch")
    parser.add_argument("--bfloat16", action="store_true", help="for processors that multiply bfloat16 (AVX-512, AMX)")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    train(parser.parse_args())


if __name__ == "__main__":
    main()

"""Trains the demo vision model on the CPU, in two stages, with fixed seeds.

``tower``: tower and connector alone, from scratch. ``whole``: everything, from a checkpoint of the first stage and the
text model's weights. As in ``demo/train.py``, every worker has one thread and its own batches, adds its gradients in
shared memory and updates its part of the weights; a checkpoint and a log are written into the run folder all the time.
"""

import argparse
import json
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from demo.model import DemoConfig
from demo.muon import Muon
from demo.train import pace, weights_of
from demo.vision_model import OLD_VOCABULARY, VOCABULARY, DemoVision, TowerConfig
from demo.vision_stages import Pretrained, TowerStage, WholeStage, load_tokenizer, trained_parameters


def starting_model(args: argparse.Namespace) -> DemoVision:
    """The weights to begin with: the text model's, and those of a checkpoint if there is one."""
    model = DemoVision(TowerConfig(), DemoConfig(vocab_size=VOCABULARY))
    if args.start:
        model.load_state_dict(torch.load(args.start)["model"])
        return model
    state = weights_of(Path("src/dragoman/demo_model"))
    rows = state["model.embed_tokens.weight"]
    new = torch.randn(VOCABULARY - OLD_VOCABULARY, rows.shape[1]) * rows.std()
    state["model.embed_tokens.weight"] = torch.cat([rows, new])
    model.text.load_state_dict(state)
    return model


def optimizers(params: list[tuple[str, nn.Parameter]], rate: float, text_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest; the text model has a rate of its own, since it knows its text."""
    out: list[torch.optim.Optimizer] = []
    for of_text, full in ((False, rate), (True, text_rate)):
        chosen = [(name, p) for name, p in params if name.startswith("vision.text.") == of_text]
        matrices = [p for name, p in chosen if p.dim() == 2 and ("layers." in name or "projection" in name)]
        rest = [p for _, p in chosen if not any(p is matrix for matrix in matrices)]
        if chosen:
            out.append(Muon(matrices, lr=full * 2, weight_decay=0.05, momentum=0.95))
            out.append(torch.optim.AdamW(rest, lr=full, betas=(0.9, 0.97), weight_decay=0.0))
    return out


def stage_of(args: argparse.Namespace, rank: int) -> TowerStage | WholeStage:
    """This worker's source of losses."""
    if args.stage == "tower":
        return TowerStage(Path(args.cache), rank, args.workers, args.seed, args.batch)
    return WholeStage(Path(args.cache), rank, args.workers, args.seed, (args.tokens, args.text_tokens))


def set_rates(opts: list[torch.optim.Optimizer], full: list[list[float]], share: float) -> None:
    """Every optimizer's learning rate at a share of its full one."""
    for opt, rates in zip(opts, full, strict=True):
        for group, rate in zip(opt.param_groups, rates, strict=True):
            group["lr"] = rate * share


def save(module: Pretrained, path: Path, cost: dict[str, float]) -> None:
    """A checkpoint, whole at every moment."""
    data = {"model": module.vision.state_dict(), "heads": module.heads.state_dict(), "cost": cost}
    torch.save(data, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def work(
    rank: int, args: argparse.Namespace, module: Pretrained, grads: Tensor, share: Tensor, barrier: Barrier
) -> None:
    """One worker's loop; see ``demo.train.work``."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    params = trained_parameters(module, args.stage)
    names = {id(p): name for name, p in module.named_parameters()}
    mine = sorted(params, key=lambda p: p.dim() == 2)[rank :: args.workers]  # as many matrices for each
    opts = optimizers([(names[id(p)], p) for p in mine], args.rate, args.text_rate)
    full = [[group["lr"] for group in opt.param_groups] for opt in opts]
    stage: Any = stage_of(args, rank)
    slots = dict(zip(map(id, params), grads.split([p.numel() for p in params], dim=1), strict=True))
    path = Path(args.run) / f"{args.stage}.pt"
    sums: dict[str, float] = {}
    began, since = time.time(), 0
    step = 0
    while float(share[0]) < 1.0:
        loss = stage.loss(module, args.bfloat16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for param in params:
            slots[id(param)][rank] = 0.0 if param.grad is None else param.grad.reshape(-1)
            param.grad = None
        barrier.wait()
        if rank == 0:
            share[0] = (time.time() - began) / (60 * args.minutes)
        for param in mine:
            param.grad = slots[id(param)].mean(0).view_as(param)
        set_rates(opts, full, pace(float(share[1]), step))
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        barrier.wait()
        if rank == 0:
            share[1] = share[0]
        barrier.wait()
        step += 1
        since += 1
        for name, value in stage.notes.items():
            sums[name] = sums.get(name, 0.0) + value
        if rank == 0 and step % args.every == 0:
            means = {name: round(value / since, 4) for name, value in sums.items()}
            seconds = round(time.time() - began)
            with (Path(args.run) / f"{args.stage}.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, "seconds": seconds, **means}) + "\n")
            save(module, path, {"steps": step, "seconds": seconds})
            sums, since = {}, 0
    if rank == 0:
        save(module, path, {"steps": step, "seconds": round(time.time() - began)})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the demo vision model.")
    parser.add_argument("stage", choices=("tower", "whole"))
    parser.add_argument("--cache", required=True, help="folder of demo.pictures.cache")
    parser.add_argument("--run", required=True, help="folder for the checkpoint and the log")
    parser.add_argument("--start", help="checkpoint to go on from")
    parser.add_argument("--minutes", type=float, required=True, help="the learning rate falls to zero by then")
    parser.add_argument("--batch", type=int, default=64, help="pictures in one worker's batch of the first stage")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens about pictures in one worker's batch")
    parser.add_argument("--text-tokens", type=int, default=768, help="tokens of text in one worker's batch")
    parser.add_argument("--rate", type=float, default=2e-3, help="AdamW learning rate; Muon has twice as much")
    parser.add_argument("--text-rate", type=float, default=6e-4, help="the same for the text model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread and its own batch")
    parser.add_argument("--bfloat16", action="store_true", help="for processors that multiply bfloat16 (AVX-512, AMX)")
    parser.add_argument("--every", type=int, default=25, help="steps between checkpoints")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    Path(args.run).mkdir(parents=True, exist_ok=True)
    model = starting_model(args)
    module = Pretrained(model, load_tokenizer())
    if args.start:
        module.heads.load_state_dict(torch.load(args.start)["heads"])
    module.share_memory()
    grads = torch.zeros(args.workers, sum(p.numel() for p in trained_parameters(module, args.stage))).share_memory_()
    barrier = torch.multiprocessing.get_context("spawn").Barrier(args.workers)
    rest = (args, module, grads, torch.zeros(2).share_memory_(), barrier)
    torch.multiprocessing.spawn(work, rest, nprocs=args.workers)


if __name__ == "__main__":
    main()

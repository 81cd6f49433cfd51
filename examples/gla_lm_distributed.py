"""Training the model of gla_lm.py on several ranks: split by batch, by time, or both.

The ranks are a mesh [data, context]. Those of one context group hold parts of the same sequences, and
tandem.distributed passes states between them; DDP or FSDP2 averages gradients over all ranks, as each rank's loss is
its share of the mean over all tokens. Batches depend on the seed and the step alone, so a run that goes on from a
checkpoint takes the steps that it would have taken.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable
from functools import partial

import tandem.distributed
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from gla_lm import Config, LanguageModel
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclasses.dataclass
class Plan:
    context: int = 1  # ranks along time
    parallel: str = "ddp"  # or "fsdp"
    folder: pathlib.Path | None = None  # of checkpoints
    every: int = 0  # steps between two; 0: none
    resume: bool = False  # from the last one in the folder


def gla(group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    return tandem.distributed.gla(q, k, v, log_decay, group=group)[0]


class Trainer:
    """A model and its optimizer on this rank: batch [B,T+1] of all ranks, learning rate -> the mean loss."""

    def __init__(self, config: Config, plan: Plan, device: str, seed: int):
        ranks = dist.get_world_size()
        if ranks % plan.context or config.batch % (ranks // plan.context):
            raise ValueError(f"{ranks} ranks by {plan.context} along time do not divide a batch of {config.batch}")
        mesh = init_device_mesh(device, (ranks // plan.context, plan.context), mesh_dim_names=("data", "context"))
        data, context = mesh["data"].get_local_rank(), mesh["context"]
        rows = config.batch // mesh["data"].size()
        self.rows = slice(rows * data, rows * (data + 1))
        self.part = tandem.distributed.part(config.tokens, context.get_group())
        self.tokens = config.batch * config.tokens
        self.device = device
        torch.manual_seed(seed)
        self.model: nn.Module = LanguageModel(config, partial(gla, context.get_group())).to(device)
        self.share: Callable[[Tensor], Tensor] = self.model
        if plan.parallel == "fsdp":
            everyone = init_device_mesh(device, (ranks,))
            for block in self.model.blocks:
                fully_shard(block, mesh=everyone)
            fully_shard(self.model, mesh=everyone)
        else:
            self.share = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)

    def mine(self, batch: Tensor) -> Tensor:
        """This rank's sequences and tokens, and the token behind them, which the last one predicts."""
        return batch[self.rows, self.part.start : self.part.stop + 1]

    def loss(self, batch: Tensor) -> Tensor:
        """What the average over ranks of is the mean over all tokens."""
        mine = self.mine(batch)
        tokens = mine.size(0) * (mine.size(1) - 1)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            return self.share(mine) * (tokens * dist.get_world_size() / self.tokens)

    def mean(self, loss: Tensor) -> float:
        """Over the ranks."""
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def step(self, batch: Tensor, learning_rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return self.mean(loss)

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: pathlib.Path) -> None:
        state = self.state()
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def last_step(folder: pathlib.Path) -> int:
    """The step behind which the last complete checkpoint was written; DCP writes .metadata last."""
    steps = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    if not steps:
        raise FileNotFoundError(f"--resume: no checkpoint in {folder.name}")
    return max(steps)


def start(device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")


def train(config: Config, plan: Plan, device: str, seed: int, batches: list[Tensor], held_out: list[Tensor]) -> dict:
    """On every rank; only the first one prints."""
    trainer = Trainer(config, plan, device, seed)
    first, losses = 0, []
    if plan.resume:
        first = last_step(plan.folder)
        trainer.load(plan.folder / str(first))
    for i in range(first, config.steps):
        factor = min((i + 1) / config.warmup, 0.5 + 0.5 * math.cos(math.pi * i / config.steps))
        losses.append(trainer.step(batches[i], config.learning_rate * factor))
        if dist.get_rank() == 0 and (i % 50 == 0 or i == config.steps - 1):
            print(f"step {i:4d}  loss {losses[-1]:.3f}", flush=True)
        if plan.every and (i + 1) % plan.every == 0:
            checkpoint.save(trainer.state(), checkpoint_id=plan.folder / str(i + 1))
    with torch.no_grad():
        validation = sum(trainer.mean(trainer.loss(batch)) for batch in held_out) / len(held_out)
    return {"first_step": first, "losses": losses, "validation_loss": validation}

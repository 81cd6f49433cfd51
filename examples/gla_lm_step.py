"""One step of a language model's training, on a GPU as one CUDA graph."""

import gc

import torch
from gla_lm import OPS, Config, LanguageModel
from torch import Tensor, nn


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


class Step:
    """A model and one step of its training: batch [B,T+1], learning rate -> loss."""

    def __init__(self, config: Config, op: str, seed: int, device: str, in_graph: bool):
        torch.manual_seed(seed)
        self.device = device
        self.model = LanguageModel(config, OPS[op]).to(device)
        self.batch = torch.zeros(config.batch, config.tokens + 1, dtype=torch.long, device=device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            torch.tensor(0.0, device=device),  # a tensor, so that a graph reads the value of each step
            betas=(0.9, 0.95),
            weight_decay=0.1,
            fused=True,
            capturable=device == "cuda",
        )
        self.graph = None
        if in_graph:
            self._capture()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False)

    def _run(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.model(self.batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def _capture(self) -> None:
        start = [parameter.detach().clone() for parameter in self.model.parameters()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles, tunes, and makes the optimizer's state
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss = self._run()
        self.graph = graph
        with torch.no_grad():  # as if nothing had run
            for parameter, value in zip(self.model.parameters(), start, strict=True):
                parameter.copy_(value)
            for state in self.optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()

    def __call__(self, batch: Tensor, learning_rate: float) -> Tensor:
        self.batch.copy_(batch)
        self.optimizer.param_groups[0]["lr"].fill_(learning_rate)
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.loss


def make_step(config: Config, op: str, seed: int, device: str) -> Step:
    """In a graph where there are graphs and the op can be captured."""
    if device == "cuda":
        try:
            return Step(config, op, seed, device, True)
        except Exception as error:  # whatever a library does that no graph can hold
            print(f"{op}: not in a CUDA graph: {type(error).__name__}: {error}", flush=True)
            free(device)
    return Step(config, op, seed, device, False)

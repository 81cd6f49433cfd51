"""What a layer keeps of the tokens before, for generation."""

import torch
from torch import Tensor

from tandem.nn.padding import Padding


class _Cache:
    """lengths: int32 [B], how many tokens each row holds, on the device."""

    def __init__(self, batch: int, device: torch.device | str | None) -> None:
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.tokens = 0  # what the host knows of lengths: they are at most this

    def reset(self) -> None:
        """Forgets all tokens."""
        self.lengths.zero_()
        self.tokens = 0

    def count(self, tokens: int, most: int) -> None:
        """Refuses more tokens than `most` in all, where the host sees each call: not in a graph."""
        if not torch.compiler.is_compiling():
            self.tokens += tokens
            if self.tokens > most:
                raise ValueError(f"[nn] there is room for {most} tokens of a row, got {self.tokens}")

    def positions(self, tokens: int, padding: Padding | None) -> Tensor:
        """int32 [B,tokens]: the places that the next tokens take in their sequences; of padding 0."""
        places = self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device, dtype=torch.int32)
        return places if padding is None else (places - padding.starts[:, None]).clamp(min=0)

    def advance(self, tokens: int, padding: Padding | None) -> None:
        self.lengths += tokens if padding is None else padding.lengths

    def check(self, *tensors: Tensor) -> None:
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            raise NotImplementedError("[nn] a cache has no gradient: call the layer under torch.no_grad()")


class KeyValueCache(_Cache):
    """Keys and values of up to `capacity` tokens per row, written in place.

    k: [B,capacity,HKV,K], v: [B,capacity,HKV,V]; row b has lengths[b] tokens, from the front, without its padding.

    Args:
        batch: B.
        capacity: most tokens of a row, padding included. More are refused, but not in a replayed graph.
        heads: HKV, key and value heads.
        key_width: K.
        value_width: V.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        heads: int,
        key_width: int,
        value_width: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(batch, device)
        self.capacity = capacity
        self.k = torch.zeros(batch, capacity, heads, key_width, device=device, dtype=dtype)
        self.v = torch.zeros(batch, capacity, heads, value_width, device=device, dtype=dtype)

    def append(self, k: Tensor, v: Tensor, padding: Padding | None) -> None:
        """k [B,T,HKV,K], v [B,T,HKV,V]; padding must be on the left."""
        self.check(k, v)
        T = k.shape[1]
        row = torch.arange(k.shape[0], device=k.device)[:, None]
        if padding is not None:
            # Tokens go to the front. What follows them is read by nobody, and overwritten by the next ones.
            source = (torch.arange(T, device=k.device) + padding.starts[:, None]).clamp(max=T - 1)
            k, v = k[row, source], v[row, source]
        place = self.positions(T, None)
        self.k.index_put_((row, place), k.to(self.k.dtype))
        self.v.index_put_((row, place), v.to(self.v.dtype))
        self.advance(T, padding)


class StateCache(_Cache):
    """The state of a recurrence, overwritten in place.

    state: [B,*widths], which is [B,H,K,V] of gated linear attention, [B,D] of HGRN.
    history: None, or the last tokens as the layer's short convolutions saw them, [B,channels,W-1].

    Args:
        batch: B.
        widths: the other axes of the state.
        history: zeros for the convolutions.
        dtype: of the state: fp32, or bf16 for steps of one token alone, which halves their time and rounds.
    """

    def __init__(
        self,
        batch: int,
        *widths: int,
        history: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(batch, device)
        self.state = torch.zeros(batch, *widths, device=device, dtype=dtype)
        self.history = history

    def reset(self) -> None:
        """Forgets all tokens."""
        super().reset()
        self.state.zero_()
        if self.history is not None:
            self.history.zero_()

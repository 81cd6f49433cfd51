"""Rotary position embeddings."""

import torch
from torch import Tensor

from tandem.nn._constants import Constants


class RotaryEmbedding(Constants):
    """The tables of RoPE, whose pairs are columns j and j + R/2 of a head, as in Llama: cos and sin, fp32 [P,R/2].
    One of them may serve all layers. It has no parameters.

    Args:
        head_dim: R, how many columns of a head are rotated.
        positions: P; tokens beyond are refused.
        theta: base of the frequencies, theta^(-2j/R).
        frequencies: [R/2] instead, for models that scale them: ``inv_freq`` of transformers' rotary embedding.
        factor: of cos and sin: its ``attention_scaling``.
    """

    def __init__(
        self,
        head_dim: int,
        positions: int,
        theta: float = 10000.0,
        *,
        frequencies: Tensor | None = None,
        factor: float = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.positions, self.factor = positions, factor
        # Numbers: a tensor would have to follow the module to its device.
        on_host = theta ** (-torch.arange(0, head_dim, 2, device="cpu").float() / head_dim)
        self.frequencies = (on_host if frequencies is None else frequencies.float()).tolist()
        if len(self.frequencies) != head_dim // 2:
            raise ValueError(
                f"[nn.RotaryEmbedding] frequencies must have shape [R/2] = [{head_dim // 2}], "
                f"got [{len(self.frequencies)}]"
            )
        self.make_constants(device)

    def constants(self, device: torch.device | str | None) -> dict[str, Tensor]:
        frequencies = torch.tensor(self.frequencies, device=device)
        angles = torch.arange(self.positions, device=device)[:, None] * frequencies
        return {"cos": angles.cos() * self.factor, "sin": angles.sin() * self.factor}

    def check(self, tokens: int) -> None:
        if tokens > self.positions:
            raise ValueError(f"[nn.RotaryEmbedding] has {self.positions} positions, got {tokens} tokens")

    def forward(self, heads: Tensor, positions: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """heads [B,T,H,K], rotated, where no op does it: by positions, integers [B,T], or the places of the tokens in
        their rows, or in the sequences of cu_seqlens."""
        if positions is None:
            positions = torch.arange(heads.shape[1], device=heads.device)
            if cu_seqlens is not None:
                sequence = torch.searchsorted(cu_seqlens, positions.to(cu_seqlens.dtype), right=True) - 1
                positions = positions - cu_seqlens[sequence]
        positions = positions.clamp(0, self.positions - 1)  # as the op does
        cos, sin = (table[positions].unsqueeze(-2) for table in (self.cos, self.sin))
        half = self.cos.shape[-1]
        a, b, rest = heads.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(heads.dtype)
        return torch.cat((rotated, rest), dim=-1)

    def extra_repr(self) -> str:
        return f"{2 * len(self.frequencies)}, positions={self.positions}"

"""The mixer of Mamba-2: gated linear attention behind a short convolution, with steps of its own per head and token."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn._along_time import recurrence
from tandem.nn.caches import StateCache
from tandem.nn.convolution import ShortConvolution, convolved, new_history
from tandem.nn.linear import Linear, kaiming, output
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences


class Mamba2(nn.Module):
    """The state space dual: of the products z, xBC and dt of x, with x, B, C = silu(conv1d(xBC)) and
    dt = softplus(dt + dt_bias)::

        state = exp(-dt exp(A_log)) state + B (dt x)^T          per head
        y = C^T state + D x
        out = out_proj(norm(y silu(z)))                         the norm per group

    Parameters as transformers' Mamba2Mixer and mamba_ssm's Mamba2, with H heads of P columns, G groups and N =
    state_size: in_proj.weight [2*H*P+2*G*N+H,d], conv1d.weight [H*P+2*G*N,1,W] and .bias [H*P+2*G*N], dt_bias, A_log
    and D [H], norm.weight [H*P], out_proj.weight [d,H*P]; with `bias` also in_proj.bias and out_proj.bias. dt_bias,
    A_log and D want no weight decay.

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        head_dim: P.
        state_size: N.
        n_groups: G, a divisor of H: of B and C, which neighbouring heads share, and of the norm.
        conv_size: W, taps of the convolution.
        bias: whether in_proj and out_proj have one.
        conv_bias: whether conv1d has one.
        dt_limit: what dt is clamped to.
        dt_range: between which softplus(dt_bias) begins, on a logarithmic scale.
        eps: of the norm.

    Example, a prompt and the tokens behind it, one by one::

        >>> import torch
        >>> import tandem.nn
        >>> layer = tandem.nn.Mamba2(64, num_heads=4, head_dim=32, state_size=16)
        >>> x = torch.randn(2, 12, 64)
        >>> with torch.no_grad():
        ...     cache = layer.new_cache(2)
        ...     parts = [layer(part, cache=cache) for part in x.split([9, 1, 1, 1], dim=1)]
        >>> torch.allclose(torch.cat(parts, 1), layer(x), atol=1e-5)
        True
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int = 64,
        *,
        state_size: int = 128,
        n_groups: int = 1,
        conv_size: int = 4,
        bias: bool = False,
        conv_bias: bool = True,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        dt_range: tuple[float, float] = (0.001, 0.1),
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_heads % n_groups:
            raise ValueError(f"[nn.Mamba2] n_groups must divide num_heads = {num_heads}, got {n_groups}")
        self.head_dim, self.state_size, self.n_groups, self.dt_range = head_dim, state_size, n_groups, dt_range
        width, states = num_heads * head_dim, n_groups * state_size
        where = {"device": device, "dtype": dtype}
        self.in_proj = Linear(hidden_size, 2 * (width + states) + num_heads, bias, init=kaiming, **where)
        self.conv1d = ShortConvolution(width + 2 * states, conv_size, conv_bias, "silu", **where)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(num_heads, **where)) for _ in range(3))
        self.norm = RMSNorm(width, eps, **where)
        self.out_proj = Linear(width, hidden_size, bias, init=kaiming, **where)
        low, high = dt_limit
        Segment = tandem.ops.Segment
        self.segments = (
            Segment(width),
            Segment(width + 2 * states),
            Segment(
                num_heads,
                "softplus",
                dtype=torch.float32,
                min=low if low > 0 else None,
                max=high if high < math.inf else None,
            ),
        )
        self.reset_parameters()

    @classmethod
    def of_config(
        cls, config: Any, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Mamba2":
        """The mixer of transformers' Mamba2Config."""
        if config.hidden_act not in ("silu", "swish"):
            raise ValueError(f"[nn.Mamba2] has no activation but silu, got {config.hidden_act}")
        return cls(
            config.hidden_size,
            config.num_heads,
            config.head_dim,
            state_size=config.state_size,
            n_groups=config.n_groups,
            conv_size=config.conv_kernel,
            bias=config.use_bias,
            conv_bias=config.use_conv_bias,
            dt_limit=tuple(config.time_step_limit),
            dt_range=(config.time_step_min, config.time_step_max),
            eps=config.layer_norm_epsilon,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """As in the paper: dt as dt_range says, exp(A_log) from 1 to 16, D = 1."""
        low, high = map(math.log, self.dt_range)
        with torch.no_grad():
            dt = torch.empty_like(self.dt_bias, dtype=torch.float32).uniform_(low, high).exp().clamp(min=1e-4)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus gives it back
            self.A_log.copy_(torch.empty_like(self.A_log, dtype=torch.float32).uniform_(1, 16).log())
            nn.init.ones_(self.D)

    def new_cache(self, batch: int, dtype: torch.dtype = torch.float32) -> StateCache:
        """An empty cache of `batch` rows, on the weights' device."""
        widths, history = (self.D.shape[0], self.state_size, self.head_dim), new_history(batch, (self.conv1d,))
        return StateCache(batch, *widths, history=history, device=self.D.device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        *,
        norm: RMSNorm | None = None,
        residual: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        cu_seqlens: Tensor | None = None,
        cache: StateCache | None = None,
    ) -> Tensor:
        """Arguments as every layer takes them. Returns a tensor like x."""
        padding = Padding.of(attention_mask, x.shape[1])
        sequences = checked_sequences(cu_seqlens, padding, cache)
        x = x if norm is None else norm(x)
        gate, xbc, dt = tandem.ops.projection(x, self.in_proj.weight, self.segments, self._biases())
        (xbc,) = convolved((xbc,), (self.conv1d,), padding, sequences, cache)
        states = self.n_groups * self.state_size
        x, b, c = xbc.split([gate.shape[-1], states, states], dim=-1)
        x = x.unflatten(-1, (-1, self.head_dim))
        b, c = (y.unflatten(-1, (self.n_groups, -1)) for y in (b, c))
        # dt is rounded for the product alone: beside fp32 that would be fp32, twice the memory on the way.
        dt_x = x * dt.to(x.dtype)[..., None]
        log_decay = -dt * self.A_log.float().exp()
        o = recurrence(c, b, dt_x, log_decay, scale=1.0, padding=padding, cu_seqlens=sequences, cache=cache)
        o = torch.addcmul(o, x, self.D.to(x.dtype)[:, None]).flatten(-2)
        end = {"group_norm_weight": self.norm.weight, "group_eps": self.norm.eps, "norm_behind_gate": True}
        end["group_width"] = gate.shape[-1] // self.n_groups
        return output(self.out_proj, o, residual, gate, gate_activation="silu", **end)

    def _biases(self) -> tuple[Tensor | None, ...]:
        if self.in_proj.bias is None:
            return None, None, self.dt_bias
        of_gate, of_xbc, of_dt = self.in_proj.bias.split([segment.columns for segment in self.segments])
        return of_gate, of_xbc, of_dt + self.dt_bias

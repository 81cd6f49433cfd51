"""HGRN: a gated recurrence of each channel."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tandem.ops
from tandem.nn._along_time import scan
from tandem.nn.caches import StateCache
from tandem.nn.convolution import ShortConvolution, convolved, new_history
from tandem.nn.linear import Linear, output
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences


class HGRN(nn.Module):
    """state = f state + (1 - f) silu(i_proj(x)) with f = sigmoid(f_proj(x)), or lower_bound + (1 - lower_bound) of
    that; a norm of the state, gated by silu(g_proj(x)), and a product end it. Parameters as fla's HGRNAttention, with
    D = expand_ratio * d: i_proj.weight, f_proj.weight and g_proj.weight [D,d], g_norm.weight [D], o_proj.weight [d,D];
    with conv_size also i_conv1d and f_conv1d, :class:`ShortConvolution` of i_proj(x) and f_proj(x).

    Args:
        hidden_size: d, width of the tokens.
        expand_ratio: D / d.
        conv_size: taps of the short convolutions; None is without them.
        conv_bias: whether these have a bias.
        eps: of the norm.

    Example, a prompt and the tokens behind it, one by one::

        >>> import torch
        >>> import tandem.nn
        >>> layer = tandem.nn.HGRN(64)
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
        expand_ratio: int = 1,
        *,
        conv_size: int | None = None,
        conv_bias: bool = False,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        width, where = expand_ratio * hidden_size, {"device": device, "dtype": dtype}
        self.i_proj = Linear(hidden_size, width, **where)
        self.f_proj = Linear(hidden_size, width, **where)
        self.g_proj = Linear(hidden_size, width, **where)
        self.i_conv1d = self.f_conv1d = None
        if conv_size is not None:
            self.i_conv1d = ShortConvolution(width, conv_size, conv_bias, **where)
            self.f_conv1d = ShortConvolution(width, conv_size, conv_bias, **where)
        self.g_norm = RMSNorm(width, eps, **where)
        self.o_proj = Linear(width, hidden_size, **where)
        Segment = tandem.ops.Segment
        self.segments = (Segment(width, "silu"), Segment(width, "log_sigmoid", torch.float32, 1.0), Segment(width))
        if conv_size is not None:  # in front of silu and log_sigmoid
            self.segments = (Segment(width),) * 3

    def new_cache(self, batch: int) -> StateCache:
        """An empty cache of `batch` rows, on the weights' device."""
        history = new_history(batch, (self.i_conv1d, self.f_conv1d))
        return StateCache(batch, self.g_norm.weight.shape[0], history=history, device=self.g_norm.weight.device)

    def forward(
        self,
        x: Tensor,
        *,
        norm: RMSNorm | None = None,
        residual: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        cu_seqlens: Tensor | None = None,
        cache: StateCache | None = None,
        lower_bound: Tensor | None = None,
    ) -> Tensor:
        """lower_bound: None, or [D], of the forget gate: it grows from layer to layer, and the first has none. The
        others as every layer takes them. Returns a tensor like x."""
        padding = Padding.of(attention_mask, x.shape[1])
        sequences = checked_sequences(cu_seqlens, padding, cache)
        x = x if norm is None else norm(x)
        weights = (self.i_proj.weight, self.f_proj.weight, self.g_proj.weight)
        i, log_f, gate = tandem.ops.projection(x, weights, self.segments)
        if self.i_conv1d is not None:
            i, f = convolved((i, log_f), (self.i_conv1d, self.f_conv1d), padding, sequences, cache)
            i, log_f = F.silu(i), F.logsigmoid(f.float())
        rest = -torch.expm1(log_f)  # 1 - f, exact where f is close to 1
        if lower_bound is not None:
            rest = (1 - lower_bound) * rest
            log_f = torch.log1p(-rest)
        o = scan(i * rest.to(i.dtype), log_f, padding=padding, cu_seqlens=sequences, cache=cache)
        end = {"group_norm_weight": self.g_norm.weight, "group_eps": self.g_norm.eps}
        return output(self.o_proj, o, residual, gate, gate_activation="silu", **end)

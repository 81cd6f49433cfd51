"""The gated MLP of a transformer's layer."""

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn.linear import Linear, output
from tandem.nn.norm import RMSNorm


class GatedMLP(nn.Module):
    """down_proj(f(gate_proj(x)) * up_proj(x)): SwiGLU with f = silu. Parameters as transformers' LlamaMLP:
    gate_proj.weight and up_proj.weight [intermediate_size,hidden_size], down_proj.weight
    [hidden_size,intermediate_size].

    Args:
        hidden_size: d, width of the tokens.
        intermediate_size: F, width between the products.
        activation: f: "silu", "gelu", "gelu_tanh" or "relu".

    Example::

        >>> import torch
        >>> import tandem.nn
        >>> mlp, norm = tandem.nn.GatedMLP(64, 192), tandem.nn.RMSNorm(64)
        >>> x = torch.randn(2, 100, 64)
        >>> torch.allclose(mlp(x, norm=norm, residual=x), x + mlp(norm(x)), atol=1e-6)
        True
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = Linear(hidden_size, intermediate_size, device=device, dtype=dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, device=device, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, norm: RMSNorm | None = None, residual: Tensor | None = None) -> Tensor:
        """x [B,T,d], or any leading axes; norm and residual as every layer takes them. Returns a tensor like x."""
        fused = {} if norm is None else {"norm_weight": norm.weight, "eps": norm.eps}
        h = tandem.ops.gemm_swiglu(x, self.gate_proj.weight, self.up_proj.weight, self.activation, **fused)
        return output(self.down_proj, h, residual)

"""A layer of a transformer: attention and a gated MLP, each with its norm and residual."""

from typing import Any

import torch
from torch import Tensor, nn

from tandem.nn.attention import Attention
from tandem.nn.caches import KeyValueCache
from tandem.nn.mlp import GatedMLP
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding
from tandem.nn.rotary import RotaryEmbedding


class TransformerBlock(nn.Module):
    """h = x + self_attn(input_layernorm(x)); h + mlp(post_attention_layernorm(h)). Its parameters are those of
    transformers' Llama, Mistral, Qwen2 and Qwen3 decoder layers.

    It is five ops: rms_norm_gemm (the norm, queries, keys and values with their norms and RoPE), attention,
    gated_output (with the residual), gemm_swiglu (with the norm) and gated_output (with the residual).

    Args:
        self_attn: the attention.
        mlp: the MLP.
        hidden_size: d, width of the tokens.
        eps: of the two norms.

    Example, of a configuration of transformers::

        >>> import torch
        >>> import tandem.nn
        >>> rotary = tandem.nn.RotaryEmbedding(32, positions=2048)
        >>> attention = tandem.nn.Attention(64, num_heads=4, num_kv_heads=2, head_dim=32, rotary=rotary)
        >>> block = tandem.nn.TransformerBlock(attention, tandem.nn.GatedMLP(64, 192), 64)
        >>> block(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        self_attn: Attention,
        mlp: GatedMLP,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = RMSNorm(hidden_size, eps, device=device, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps, device=device, dtype=dtype)

    @classmethod
    def of_config(
        cls,
        config: Any,
        layer_idx: int,
        rotary: RotaryEmbedding,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> "TransformerBlock":
        """The layer of a transformers configuration: LlamaConfig, MistralConfig, Qwen2Config or Qwen3Config."""
        model, where = config.model_type, {"device": device, "dtype": dtype}
        if model not in _MODELS:
            raise ValueError(f"[nn.TransformerBlock] model_type must be one of {', '.join(_MODELS)}, got {model}")
        if config.hidden_act not in _ACTIVATIONS or getattr(config, "mlp_bias", False):
            raise ValueError("[nn.TransformerBlock] has no MLP with biases, nor activation " + config.hidden_act)
        bias = model == "qwen2" or getattr(config, "attention_bias", False)
        window = config.sliding_window if model != "llama" else None
        if model in ("qwen2", "qwen3") and config.layer_types[layer_idx] != "sliding_attention":
            window = None
        attention = Attention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            getattr(config, "head_dim", None),
            rotary=rotary,
            qk_norm=model == "qwen3",
            bias=bias,
            output_bias=bias and model != "qwen2",
            window=window,
            eps=config.rms_norm_eps,
            **where,
        )
        mlp = GatedMLP(config.hidden_size, config.intermediate_size, _ACTIVATIONS[config.hidden_act], **where)
        return cls(attention, mlp, config.hidden_size, config.rms_norm_eps, **where)

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KeyValueCache:
        """As that of :class:`Attention`."""
        return self.self_attn.new_cache(batch, capacity, dtype)

    def forward(
        self,
        x: Tensor,
        *,
        attention_mask: Tensor | Padding | None = None,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Arguments as :class:`Attention` takes them. Returns a tensor like x."""
        options = {"attention_mask": attention_mask, "position_ids": position_ids, "cu_seqlens": cu_seqlens}
        h = self.self_attn(x, norm=self.input_layernorm, residual=x, cache=cache, **options)
        return self.mlp(h, norm=self.post_attention_layernorm, residual=h)


_MODELS = ("llama", "mistral", "qwen2", "qwen3")
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}

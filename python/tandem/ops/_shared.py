"""What the ops do with their arguments before the extension sees them. What is no tensor passes, and is refused."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from tandem._registration import widened

is_any_autocast_enabled = torch._C._is_any_autocast_enabled  # a quarter of a question by the device's name

# What callers who come from fla, mamba-ssm, flash_attn or torch pass, by its name there (docs/recipes.md).
_FLA = {"g": "it is log_decay here, called g in fla"}
_FLA_HEADS = _FLA | {
    "g_gamma": "it is log_decay of shape [H] here, called g_gamma in fla",
    "head_first": "axes are [B,T,H,K] here, heads behind time",
    "state_v_first": "states are [N,H,K,V] here",
}
_MAMBA_SCAN = {
    "z": "it is gate here, called z in mamba-ssm",
    "return_last_state": "it is output_final_state here, called return_last_state in mamba-ssm",
}
_NO_MASK = "which keys a query sees is said by causal, window and lengths alone here"
_ATTENTION = {
    "dropout_p": "there is no dropout here",
    "attn_mask": _NO_MASK,
    "key_padding_mask": "lengths of keys are lengths_k here, or packed sequences cu_seqlens_q and cu_seqlens_k",
    "bias": "scores have no bias here",
    "attn_bias": "scores have no bias here",
    "alibi_slopes": "scores have no bias here",
    "softcap": "scores are not capped here",
    "block_table": "keys lie one behind the other here, not in pages",
    "is_causal": "it is causal here, called is_causal in torch",
    "enable_gqa": "heads of k and v are shared where q has more of them here",
    "softmax_scale": "it is scale here, called softmax_scale in flash_attn",
    "window_size": "it is window here, called window_size in flash_attn",
    "cache_seqlens": "it is lengths_k here, called cache_seqlens in flash_attn",
    "seqused_k": "it is lengths_k here, called seqused_k in flash_attn",
    "max_seqlen_q": "lengths are those of cu_seqlens_q alone here",
    "max_seqlen_k": "lengths are those of cu_seqlens_k alone here",
    "return_attn_probs": "it is return_log_sum_exp here, and weights are attention_weights",
    "deterministic": "gradients are bitwise repeatable always here",
}
_CONV = {
    "seq_idx": "packed sequences are cu_seqlens here",
    "initial_states": "it is initial_state here, called initial_states in causal-conv1d",
    "return_final_states": "it is output_final_state here, called return_final_states in causal-conv1d",
    "final_states_out": "it is returned with output_final_state here",
    "cache": "it is initial_state here, of W-1 tokens, called cache in fla",
    "residual": "nothing is added to the result here",
}
_CONV_STEP = {
    "conv_state": "it is state here, called conv_state in causal-conv1d",
    "cache": "it is state here, of W-1 tokens, called cache in fla",
    "cache_seqlens": "state's last column is always the latest token here",
    "conv_state_indices": "a state is taken where it lies, by its strides, here",
}
_ELSEWHERE = {
    "attention": _ATTENTION,
    "attention_weights": _ATTENTION,
    "causal_conv1d": _CONV,
    "causal_conv1d_step": _CONV_STEP,
    "gla": _FLA_HEADS
    | {
        "initial_states": "it is initial_state here, transposed, called initial_states in mamba-ssm",
        "return_final_states": "it is output_final_state here, called return_final_states in mamba-ssm",
    },
    "gla_step": _FLA_HEADS
    | {
        "initial_state": "it is state here, which is overwritten, called initial_state in fla",
        "output_final_state": "state is always overwritten with it here",
        "ssm_state": "it is state here, transposed, called ssm_state in mamba-ssm",
    },
    "gla_state": _FLA_HEADS,
    "gla_state_backward": _FLA_HEADS | {"do": "it is d_o here, called do in fla"},
    "gated_scan": _FLA | _MAMBA_SCAN,
    "gated_scan_carry": _FLA,
    "gated_scan_carry_backward": _FLA,
    "gated_scan_decay": _FLA,
    "linear_scan": _FLA | _MAMBA_SCAN,
}
_Op = TypeVar("_Op", bound=Callable[..., Any])


def needs_more_than_a_kernel() -> bool:
    """Whether a compiler, autocast or forward mode looks on. Where none does, a step calls its kernel first: what
    others need takes longer than the rest of a token's call. What tensors need, a direct call sees itself."""
    return is_compiling() or is_any_autocast_enabled() or forward_ad._current_level >= 0


def wants_gradient(*tensors: Any) -> bool:
    """Whether autograd is to differentiate a call of these."""
    return torch.is_grad_enabled() and any([isinstance(x, Tensor) and x.requires_grad for x in tensors])


def closed(op: _Op) -> _Op:
    """An op whose last parameter, `others`, is there for `refuse` alone: help and the documents leave it out."""
    signature = inspect.signature(op)
    shown = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    op.__dict__["__signature__"] = signature.replace(parameters=shown)
    return op


def refuse(op: str, others: dict[str, Any]) -> NoReturn:
    """Raises for the first argument that the op does not have, and says what it is here where it has another name."""
    name = next(iter(others))
    known = _ELSEWHERE[op].get(name)
    raise TypeError(f"[{op}] unexpected argument {name}" + (f": {known}" if known else ""))


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in autocast's dtype where it is enabled for the first one's device, else as they are; None stays.

    By hand: torch.library.register_autocast would cast log_decay and states too.
    """
    if not is_any_autocast_enabled():
        return tensors
    first = tensors[0]
    if not isinstance(first, Tensor):
        return tensors
    device = first.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    # fp64 and integers are left alone, as torch's own ops leave them.
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in tensors
    )


def scan_decay(x: Tensor, decay: Tensor | None) -> Tensor | None:
    """A scan's decay, or its log, in x's dtype or widened."""
    fits = not isinstance(decay, Tensor) or not isinstance(x, Tensor) or decay.dtype == x.dtype
    return decay if fits else widened(x, decay)

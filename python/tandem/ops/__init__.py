"""The ops. Each is one function on torch tensors.

Errors, of every op: TypeError for what is no tensor, or an argument that the op does not have, ValueError for an
argument that breaks the contract, NotImplementedError for one that is right but that nothing in this build or on this
machine can run, or for a derivative that there is not, RuntimeError for a failure of CUDA. The text names op, argument,
what was expected and what was given, and nothing has been written when it is raised. torch.compile says a ValueError
while it traces, as its own RuntimeError; what only a call of the compiled graph finds is a RuntimeError with the class
at the beginning of its text.

Transforms, of every op with a gradient: torch.func.grad, vjp and jacrev take its backward. Forward mode (jvp,
jacfwd, linearize, dual tensors) is one more call where outputs are linear in all inputs that have tangents, and
refused where they are not. vmap puts the mapped axis into B, or the rows of a product, and copies what all items share
and has B > 1; with cu_seqlens, or a weight that differs or needs a gradient per item, it makes a call per item.
"""

from tandem.ops.attention import attention
from tandem.ops.attention_weights import attention_weights
from tandem.ops.causal_conv1d import causal_conv1d, causal_conv1d_step
from tandem.ops.gated_output import gated_output
from tandem.ops.gated_scan import gated_scan
from tandem.ops.gated_scan_carry import gated_scan_carry, gated_scan_carry_backward, gated_scan_decay
from tandem.ops.gemm_swiglu import gemm_swiglu
from tandem.ops.gla import gla
from tandem.ops.gla_state import gla_state
from tandem.ops.gla_state_backward import gla_state_backward
from tandem.ops.gla_step import gla_step
from tandem.ops.linear_scan import linear_scan
from tandem.ops.projection import Segment, projection
from tandem.ops.rms_norm_gemm import rms_norm_gemm

__all__ = [
    "Segment",
    "attention",
    "attention_weights",
    "causal_conv1d",
    "causal_conv1d_step",
    "gated_output",
    "gated_scan",
    "gated_scan_carry",
    "gated_scan_carry_backward",
    "gated_scan_decay",
    "gemm_swiglu",
    "gla",
    "gla_state",
    "gla_state_backward",
    "gla_step",
    "linear_scan",
    "projection",
    "rms_norm_gemm",
]

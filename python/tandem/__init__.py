"""Tandem: fused layer kernels for NVIDIA Hopper, with a CPU backend behind the same calls.

The ops are in :mod:`tandem.ops`, layers made of them in :mod:`tandem.nn`. They take torch tensors on a CPU or on a
Hopper GPU (compute capability 9.0), run on torch's current stream, and work under ``torch.compile``, ``torch.func``,
autocast and in CUDA graphs.
:func:`set_batch_invariant` makes a sequence's results independent of those computed with it. Sequences longer than
one device: :mod:`tandem.distributed`, which is imported by itself.
"""

from importlib.metadata import version as _version

from tandem import nn, ops
from tandem._extension import cuda_unavailable_reason, is_batch_invariant, set_batch_invariant

__all__ = ["cuda_unavailable_reason", "is_batch_invariant", "nn", "ops", "set_batch_invariant"]
__version__ = _version("tandem-kernels")

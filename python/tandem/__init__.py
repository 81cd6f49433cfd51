"""Tandem: fused layer kernels for NVIDIA Hopper, with a CPU backend behind the same calls.

The ops are in :mod:`tandem.ops`. They take torch tensors on a CPU or on a Hopper GPU (compute capability 9.0),
run on torch's current stream, and work under ``torch.compile``, ``torch.func``, autocast and in CUDA graphs.
"""

from importlib.metadata import version

from tandem import ops
from tandem._extension import cuda_unavailable_reason

__all__ = ["cuda_unavailable_reason", "ops"]
__version__ = version("tandem")

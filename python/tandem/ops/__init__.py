"""The ops. Each is one function on torch tensors.

Errors, of every op: ValueError for an argument that breaks the contract, NotImplementedError for one that is
right but that nothing in this build or on this machine can run, RuntimeError for a failure of CUDA. The text
names op, argument, what was expected and what was given, and nothing has been written when it is raised. Inside
a graph of torch.compile all of them are RuntimeError, with the class at the beginning of the text.
"""

from tandem.ops.gated_scan import gated_scan
from tandem.ops.gla import gla
from tandem.ops.gla_state import gla_state
from tandem.ops.gla_state_backward import gla_state_backward
from tandem.ops.gla_step import gla_step
from tandem.ops.linear_scan import linear_scan

__all__ = ["gated_scan", "gla", "gla_state", "gla_state_backward", "gla_step", "linear_scan"]

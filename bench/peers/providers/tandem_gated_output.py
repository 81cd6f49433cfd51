"""gated_output through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

from .. import gated_output
from .tandem_scans import TandemGatedScan


class TandemGatedOutput(TandemGatedScan):
    op = "gated_output"
    limits = {  # of tandem check
        dtype: {
            **dict.fromkeys(("out", "sum"), out),
            **dict.fromkeys(("d_o", "d_gate", "d_residual", "d_weight", "d_bias"), gradient),
            **dict.fromkeys(("d_group_norm_weight", "d_norm_weight", "d_norm_bias"), gradient),
        }
        for dtype, out, gradient in (("bf16", 3.2e-3, 4e-3), ("fp16", 4e-4, 6e-4))
    }

    def _forward(self, case, tensors):
        named = {name: tensors[name] for name in gated_output.wants(case) if name not in ("o", "weight")}
        if case.output_gate not in ("none", "plain"):
            named["gate_activation"] = case.output_gate
        if gated_output.groups(case):
            named |= {"group_width": gated_output.groups(case), "norm_behind_gate": case.behind_gate == "yes"}
        if case.output_norm != "none":
            named |= {"norm": case.output_norm, "eps": gated_output.EPS, "return_sum": case.sum == "yes"}
        found = self._op(tensors["o"], tensors["weight"], **named)
        names = gated_output.outputs(case)
        return dict(zip(names, found if len(names) > 1 else (found,), strict=True))

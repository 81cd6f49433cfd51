"""Mamba-2's block as mamba_ssm computes it where its fused path is not compiled: Triton kernels for the SSD and the
gated norm, the convolution of the causal-conv1d package, else of fla."""

import importlib

from .mamba2 import Mamba2


class MambaSsmBlock(Mamba2):
    op = "mamba2_block"
    name = "mamba_ssm"
    directions = ("forward", "forward_backward")
    settings = ("chunk256",)
    note = "in_proj, out_proj and the norm in front by torch"

    def load(self):
        super().load()
        self._gated_norm = importlib.import_module("mamba_ssm.ops.triton.layernorm_gated").rmsnorm_fn
        self._convolution, self._convolve = convolution()

    def refusal(self, case, dtype):
        return ""

    def variant(self, case, setting):
        return f"{setting}, convolution of {self._convolution}"

    def prepare(self, case, dtype, tensors, setting):
        from .. import block_maths

        chunk = int(setting.removeprefix("chunk"))

        def mix(u, dt, A_log, b, c, D, dt_bias):
            given = (u, dt, -A_log.float().exp(), b.unsqueeze(2), c.unsqueeze(2), chunk)
            return self._call(*given, D=D, dt_bias=dt_bias, dt_softplus=True)

        def gated_norm(y, weight, z):
            return self._gated_norm(y, weight, None, z=z, eps=block_maths.EPS["heads"], norm_before_gate=False)

        def forward(p, x):
            return block_maths.mamba2_block(p, x, case.H, case.N, self._convolve, mix, gated_norm)

        return block_maths.call_of(case, tensors, forward)


def convolution():
    """(whose, the function of x [B,T,C], weight [C,W] and bias)."""
    try:
        function = importlib.import_module("causal_conv1d").causal_conv1d_fn
    except ImportError:
        function = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d
        return "fla", lambda x, weight, bias: function(x=x, weight=weight, bias=bias, activation="silu")[0]

    def convolve(x, weight, bias):
        return function(x.transpose(1, 2), weight, bias, activation="silu").transpose(1, 2)

    return "causal-conv1d", convolve

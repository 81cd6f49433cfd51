"""torch's softmax attention: scaled_dot_product_attention by cuDNN and by FlashAttention, and varlen_attn."""

import itertools

from ..gradients import forward_backward, leaves
from ..provider import Provider


class SdpaCudnn(Provider):
    op = "attention"
    name = "sdpa_cudnn"
    directions = ("forward", "backward", "forward_backward")
    backend = "CUDNN_ATTENTION"
    note = "gradients with torch.use_deterministic_algorithms"

    def load(self):
        import torch
        import torch.nn.attention

        self._torch = torch
        self._backend = getattr(torch.nn.attention.SDPBackend, self.backend)

    def versions(self):
        return {"torch": self._torch.__version__, "cudnn": str(self._torch.backends.cudnn.version())}

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        if case.window_left is not None or case.window_right is not None:
            return "no windows"
        return "aligns a causal mask at the first key" if case.causal == "yes" and case.T != case.TK else ""

    def attend(self, case, tensors):
        heads = [tensors[name].transpose(1, 2) for name in "qkv"]
        named = {"is_causal": case.causal == "yes", "scale": case.softmax_scale, "enable_gqa": case.H != case.HKV}
        with self._torch.nn.attention.sdpa_kernel(self._backend):
            return self._torch.nn.functional.scaled_dot_product_attention(*heads, **named)

    def prepare(self, case, dtype, tensors, setting):
        def forward(inputs):
            return {"o": self.attend(case, inputs).transpose(1, 2)}

        if case.direction == "forward":
            return lambda: forward(tensors)
        if case.direction == "forward_backward":
            return self._deterministic(forward_backward(case, tensors, forward))
        inputs = leaves(case, tensors)
        with self._torch.enable_grad():
            o = self.attend(case, inputs)  # kept: when it goes, so does what its graph has saved
        d_o = tensors["d_o"].transpose(1, 2)

        def backward():
            with self._torch.no_grad():
                # why not autograd.grad: torch's engine would run it on the stream of the forward, outside a capture.
                found = o.grad_fn(d_o, *[None] * (len(o.grad_fn._input_metadata) - 1))
            return {name: x.transpose(1, 2) for name, x in zip(case.wants.values(), found, strict=False)}

        return self._deterministic(backward)

    def _deterministic(self, call):
        def run():
            before = self._torch.are_deterministic_algorithms_enabled()
            self._torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                return call()
            finally:
                self._torch.use_deterministic_algorithms(before)

        return run


class SdpaFlash(SdpaCudnn):
    name = "sdpa_flash"
    backend = "FLASH_ATTENTION"

    def versions(self):
        return {"torch": self._torch.__version__}


def offsets(case, device):
    """The starts of sequences, int32, of queries and of keys, and the longest of each."""
    import torch

    of_queries = case.cu_seqlens or (0, case.T)
    of_keys = case.cu_seqlens_k or case.cu_seqlens or (0, case.TK)
    starts = [torch.tensor(x, dtype=torch.int32, device=device) for x in (of_queries, of_keys)]
    return starts, [max(b - a for a, b in itertools.pairwise(x)) for x in (of_queries, of_keys)]


class VarlenFlash(Provider):
    """Packed sequences and windows, which scaled_dot_product_attention has not."""

    op = "attention"
    name = "torch_varlen"
    directions = ("forward", "forward_backward")

    def load(self):
        import torch
        from torch.nn.attention import varlen

        self._torch, self._varlen = torch, varlen

    def versions(self):
        return {"torch": self._torch.__version__}

    def refusal(self, case, dtype):
        return "" if case.B == 1 else "one batch row, as packed sequences are"

    def prepare(self, case, dtype, tensors, setting):
        starts, longest = offsets(case, tensors["q"].device)
        right = 0 if case.causal == "yes" else case.window_right
        window = tuple(-1 if side is None else side for side in (case.window_left, right))

        def forward(inputs):
            q, k, v = (inputs[name][0] for name in "qkv")
            named = {"scale": case.softmax_scale, "window_size": window, "enable_gqa": case.H != case.HKV}
            return {"o": self._varlen.varlen_attn(q, k, v, *starts, *longest, **named)[None]}

        if case.direction == "forward":
            return lambda: forward(tensors)
        return forward_backward(case, tensors, forward)

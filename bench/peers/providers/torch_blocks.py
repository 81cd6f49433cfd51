"""The blocks' maths compiled by torch: all of it, or around fla's or torch's own attention."""

import importlib

from ..provider import Provider


class TorchCompileGla(Provider):
    op = "gla_block"
    name = "torch_compile"
    directions = ("forward", "forward_backward")
    settings = ("max-autotune-no-cudagraphs", "default")
    note = "gla by products of chunks of 128 tokens, without a loop"
    _last = None  # (what was compiled, the functions)

    def load(self):
        self._torch = importlib.import_module("torch")

    def versions(self):
        return {"torch": self._torch.__version__, **super().versions()}

    def compiled(self, case, setting, *functions):
        """These functions, compiled once for all buffer sets; "" leaves them as they are."""
        if not setting:
            return functions
        key = case, setting
        if self._last is None or self._last[0] != key:
            self._torch.compiler.reset()
            self._last = key, [self._torch.compile(one, mode=setting, dynamic=False) for one in functions]
        return self._last[1]

    def prepare(self, case, dtype, tensors, setting):
        from .. import block_maths

        (block,) = self.compiled(case, setting, block_maths.gla_block)
        return block_maths.call_of(case, tensors, lambda p, x: block(p, x, case.H))


class TorchCompileAroundFla(TorchCompileGla):
    name = "torch_compile_fla"
    packages = ("fla-core",)
    note = "around fla's chunk_simple_gla"

    def load(self):
        super().load()
        if not self._torch.cuda.is_available():
            raise RuntimeError("fla's kernels need a GPU")
        self._mix = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla

    def prepare(self, case, dtype, tensors, setting):
        from .. import block_maths

        begin, end = self.compiled(case, setting, block_maths.gla_inputs, block_maths.gla_end)

        def forward(p, x):
            q, k, v, gate, log_decay = begin(p, x, case.H)
            return end(p, x, self._mix(q, k, v, log_decay)[0], gate)

        return block_maths.call_of(case, tensors, forward)


class TorchCompileTransformer(TorchCompileGla):
    """With the faster of cuDNN's and FlashAttention's kernels, as they are at these shapes."""

    op = "transformer_block"
    directions = ("forward", "step")
    note = ""
    _backends = {}  # {case: its backend}

    def note_on(self, case):
        said = "one weight for q, k and v, one for gate and up"
        return f"{said}; a full cache: no mask" if case.direction == "step" else said

    def prepare(self, case, dtype, tensors, setting):
        from .. import block_maths

        torch, step = self._torch, case.direction == "step"
        weights = block_maths.stacked(tensors["parameters"])
        cos, sin = tensors["cos"], tensors["sin"]
        if step:
            shape = (case.B, case.cached + 1, case.H, case.K)
            keys, values = (torch.empty(shape, dtype=weights["qkv"].dtype, device=cos.device) for _ in range(2))
            keys[:, :-1], values[:, :-1] = tensors["keys"], tensors["values"]
            place = torch.tensor([case.cached], device=cos.device)
            block = self.compiled(case, setting, block_maths.transformer_step)[0]
            forward = lambda p, x: block(p, x, cos, sin, keys, values, place)  # noqa: E731
        else:
            block = self.compiled(case, setting, block_maths.transformer_forward)[0]
            forward = lambda p, x: block(p, x, cos, sin)  # noqa: E731
        call = block_maths.call_of(case, tensors, forward, weights)
        if cos.device.type == "cpu":
            return call
        if case not in self._backends:
            self._backends[case] = self.faster_backend(case, tensors)

        def run():
            with torch.nn.attention.sdpa_kernel(self._backends[case]):
                return call()

        return run

    def faster_backend(self, case, tensors):
        """By five calls of each."""
        from .. import block_maths

        torch = self._torch
        importlib.import_module("torch.nn.attention")
        drawn = torch.randn(case.B, case.T + case.cached, case.H, case.K, device="cuda").to(tensors["x"].dtype)
        times = {}
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            backend = getattr(torch.nn.attention.SDPBackend, name)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            try:
                with torch.nn.attention.sdpa_kernel(backend):
                    for i in range(6):
                        if i == 1:  # the first one warms up
                            start.record()
                        block_maths.attention(drawn[:, : case.T], drawn, drawn, causal=case.direction == "forward")
                    end.record()
            except RuntimeError:  # it has no kernel for this
                continue
            torch.cuda.synchronize()
            times[backend] = start.elapsed_time(end)
        if not times:
            raise RuntimeError("neither cuDNN nor FlashAttention has an attention for this")
        return min(times, key=times.get)

    def variant(self, case, setting):
        backend = self._backends.get(case)
        return setting if backend is None else f"{setting}, {backend.name.lower()}"

"""torch's causal softmax attention at the same shape: what linear attention competes with, not the same function."""

from ..provider import Provider


class SdpaCudnn(Provider):
    name = "sdpa_cudnn"
    same_function = False
    backend = "CUDNN_ATTENTION"
    note = "causal softmax attention of the same shape: a yardstick, not the same function"

    def load(self):
        import torch.nn.attention

        self._backend = getattr(torch.nn.attention.SDPBackend, self.backend)

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        return "" if case.H == case.HQ and case.K == case.V else "needs equal heads and K = V"

    def versions(self):
        import torch

        return {"cudnn": str(torch.backends.cudnn.version())}

    def prepare(self, case, dtype, tensors, setting):
        import torch

        q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")

        def call():
            with torch.nn.attention.sdpa_kernel(self._backend):
                return {
                    "o": torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, scale=case.softmax_scale
                    )
                }

        return call


class SdpaFlash(SdpaCudnn):
    name = "sdpa_flash"
    backend = "FLASH_ATTENTION"

    def versions(self):
        return {}

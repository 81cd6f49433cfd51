"""TFLA: mLSTM with sigmoid input gate and no normaliser, its kernels with two levels of chunks."""

import importlib

from ..provider import Provider


class Tfla(Provider):
    name = "tfla"
    packages = ("mlstm_kernels",)
    settings = ("chunk128", "chunk256", "chunk64")
    note = (
        "q, k, v in its own layout [B,H,T,D], made before the call; forget gate = logit of the decay, input gate open"
    )

    def load(self):
        import torch._dynamo

        # Its gates are torch.compile'd: with the default of 8 shapes, later cases would silently run them uncompiled.
        torch._dynamo.config.recompile_limit = 256
        module = importlib.import_module("mlstm_kernels.torch.chunkwise.triton_xl_chunk_siging")
        self._call = module.mlstm_siging_chunkwise__xl_chunk

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        if case.decay_kind != "per_token":
            return "needs a decay at every token"
        if case.H != case.HQ:
            return "no grouped heads"
        return "" if case.scale is None else "its scale is K^-0.5"

    def prepare(self, case, dtype, tensors, setting):
        import torch

        q, k, v = (tensors[name].transpose(1, 2).contiguous() for name in "qkv")
        log_decay = tensors["log_decay"].transpose(1, 2).double()
        forget = (log_decay - torch.log(-torch.expm1(log_decay))).float().contiguous()
        let_in = torch.full_like(forget, 40.0)  # log sigmoid(40) is 0 in fp32
        chunk = int(setting.removeprefix("chunk"))

        def call():
            o = self._call(q, k, v, let_in, forget, normalize=False, chunk_size=chunk, autocast_kernel_dtype=q.dtype)
            return {"o": o.transpose(1, 2)}

        return call

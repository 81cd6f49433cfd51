"""FlashAttention-3's backward for Hopper as the wheel dew-flash-attn-cu13 brings it, deterministic, in bf16 and fp16.
Its library takes neither torch's tensors nor jax's but the struct that FlashAttention-3's own Python module fills
(mha_bwd of hopper/flash_api.cpp). TANDEM_FA3_LIBRARY names the library's file where the wheel is not installed."""

import ctypes
import hashlib
import importlib
import importlib.metadata
import os
import pathlib

PACKAGE = "dew-flash-attn-cu13"
VERSION = "0.3.6"  # the one whose struct is below
ELEMENTS = {"bf16": "N7cutlass10bfloat16_tE", "fp16": "N7cutlass6half_tE"}
WIDTHS = (64, 128, 192)  # of heads; the library has 256 too, but not deterministic
_POINTER, _STRIDE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_LAYOUT = (
    # Qkv_params of hopper/flash.h
    (_POINTER, "q_ptr k_ptr v_ptr"),
    (_STRIDE, "q_batch_stride k_batch_stride v_batch_stride q_row_stride k_row_stride v_row_stride"),
    (_STRIDE, "q_head_stride k_head_stride v_head_stride v_dim_stride"),
    (_INT, "h h_k"),
    # Flash_fwd_params
    (_POINTER, "o_ptr oaccum_ptr"),
    (_STRIDE, "o_batch_stride o_row_stride o_head_stride"),
    (_POINTER, "softmax_lse_ptr softmax_lseaccum_ptr q_descale_ptr k_descale_ptr v_descale_ptr"),
    (_STRIDE, "q_descale_batch_stride q_descale_head_stride k_descale_batch_stride k_descale_head_stride"),
    (_STRIDE, "v_descale_batch_stride v_descale_head_stride"),
    (_INT, "b seqlen_q seqlen_k seqlen_knew d seqlen_q_rounded seqlen_k_rounded d_rounded rotary_dim"),
    (_INT, "total_q total_k total_knew b_k dv dv_rounded"),
    (_FLOAT, "scale_softmax softcap"),
    (_POINTER, "cu_seqlens_q cu_seqlens_k cu_seqlens_knew leftpad_k seqused_q seqused_k"),
    (_STRIDE, "oaccum_split_stride oaccum_batch_stride oaccum_row_stride oaccum_head_stride"),
    (_STRIDE, "lseaccum_split_stride lseaccum_batch_stride lseaccum_head_stride"),
    (_POINTER, "knew_ptr vnew_ptr"),
    (_STRIDE, "knew_batch_stride vnew_batch_stride knew_row_stride vnew_row_stride knew_head_stride vnew_head_stride"),
    (_POINTER, "qv_ptr"),
    (_STRIDE, "qv_batch_stride qv_row_stride qv_head_stride"),
    (_POINTER, "rotary_cos_ptr rotary_sin_ptr seqlens_rotary kv_batch_idx page_table"),
    (_STRIDE, "page_table_batch_stride"),
    (_INT, "page_size num_pages"),
    (ctypes.c_bool, "pagedkv_tma"),
    (_FLOAT, "p_dropout"),
    (ctypes.c_uint8, "p_dropout_in_uint8_t"),
    (_FLOAT, "rp_dropout"),
    (_INT, "window_size_left window_size_right attention_chunk"),
    (_POINTER, "rng_state"),
    (ctypes.c_bool, "is_bf16 is_fp32 is_e4m3 is_causal is_local is_rotary_interleaved"),
    (_INT, "num_splits"),
    (ctypes.c_bool, "pack_gqa"),
    (_POINTER, "tile_count_semaphore num_m_blocks_ptr num_splits_dynamic_ptr varlen_batch_idx_ptr"),
    (_POINTER, "num_nheads_in_l2_ptr"),
    (ctypes.c_bool, "skip_scheduler_metadata_computation varlen_sort_batches"),
    (_INT, "tile_count_semaphore_offset"),
    (ctypes.c_bool, "head_swizzle prepare_varlen_pdl"),
    (_INT, "arch num_sm"),
    # Flash_bwd_params
    (_POINTER, "do_ptr dq_ptr dk_ptr dv_ptr dq_accum_ptr dk_accum_ptr dv_accum_ptr"),
    (_STRIDE, "do_batch_stride do_row_stride do_head_stride dq_batch_stride dk_batch_stride dv_batch_stride"),
    (_STRIDE, "dq_row_stride dk_row_stride dv_row_stride dq_head_stride dk_head_stride dv_head_stride"),
    (_POINTER, "dsoftmax_sum softmax_lse_log2_ptr dq_semaphore dk_semaphore dv_semaphore"),
    (ctypes.c_bool, "deterministic"),
    (_STRIDE, "dq_accum_split_stride"),
)


class Parameters(ctypes.Structure):
    """Flash_bwd_params of hopper/flash.h. Strides are in elements."""

    _fields_ = [(name, kind) for kind, names in _LAYOUT for name in names.split()]


def refusal(case, dtype):
    """Says why the library cannot do the gradients of this case, "" where it can."""
    if dtype not in ELEMENTS:
        return "gradients in bf16 and fp16 only"
    if case.cu_seqlens is not None:
        return "gradients of dense batches only"
    if case.window_left is not None or case.window_right is not None:
        return "no gradients with windows"
    if case.K != case.V or case.K not in WIDTHS:
        return "deterministic gradients of heads of 64, 128 and 192 columns only, K = V"
    if case.causal == "yes" and case.T != case.TK:
        return "gradients with a causal mask of as many queries as keys only"
    return "" if all((case.B, case.T, case.TK, case.H)) else "no gradients where there is nothing"


def find():
    """The library's file, and what is known of its version: the file that TANDEM_FA3_LIBRARY names, or the wheel's."""
    named = os.environ.get("TANDEM_FA3_LIBRARY")
    if named:
        path = pathlib.Path(named).resolve()  # a name without a folder would be looked for elsewhere
        if not path.is_file():
            raise ImportError("TANDEM_FA3_LIBRARY names no file")
        return path, f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    wheel = importlib.metadata.distribution(PACKAGE)
    if wheel.version != VERSION:
        raise ImportError(f"{PACKAGE} is {wheel.version}; the struct of {VERSION} is known")
    return wheel.locate_file("dew_flash_attn/libdew_flash_attn3.so"), wheel.version


def blocks(width, causal):
    """(rows of queries, of keys) of the kernel's blocks: buffers are rounded up to them."""
    return {64: (128, 128), 128: (64 if causal else 80, 128), 192: (64, 96)}[width]


class Backward:
    def __init__(self):
        importlib.import_module("torch")  # brings the CUDA runtime that the library needs
        path, self.version = find()
        library = ctypes.CDLL(str(path))
        self.functions = {(dtype, K): self._function(library, dtype, K) for dtype in ELEMENTS for K in WIDTHS}

    @staticmethod
    def _function(library, dtype, width):
        """run_mha_bwd_<90, element, width, no softcap>(Flash_bwd_params&, cudaStream_t)."""
        name = f"_Z12run_mha_bwd_ILi90E{ELEMENTS[dtype]}Li{width}ELb0EEvR16Flash_bwd_paramsP11CUstream_st"
        found = getattr(library, name)
        found.restype, found.argtypes = None, [ctypes.POINTER(Parameters), ctypes.c_void_p]
        return found

    def __call__(self, case, dtype, inputs, o, sums):
        """The gradients by name, from q, k, v and d_o of `inputs`, o and the log-sum-exp, contiguous [B,H,T]. Allocates
        and zeroes what mha_bwd does: for grouped heads, buffers and semaphores of dk and dv."""
        import torch

        q, k, v = (inputs[name] for name in "qkv")
        B, T, H, K = q.shape
        TK, HKV = k.shape[1:3]
        causal = case.causal == "yes"
        rows_of_block, keys_of_block = blocks(K, causal)
        row_blocks, key_blocks = -(-T // rows_of_block), -(-TK // keys_of_block)
        rows, keys = row_blocks * rows_of_block, key_blocks * keys_of_block
        tensors = {"q": q, "k": k, "v": v, "o": o, "do": inputs["d_o"]}
        tensors |= {f"d{name}": torch.empty_like(inputs[name]) for name in "qkv"}
        floats, ints = ({"dtype": kind, "device": q.device} for kind in (torch.float32, torch.int32))
        buffers = {
            "softmax_lse_ptr": sums,
            "dsoftmax_sum": torch.empty((B, H, rows), **floats),
            "softmax_lse_log2_ptr": torch.empty((B, H, rows), **floats),
            "dq_accum_ptr": torch.empty((B, H, rows * K), **floats),
            "dq_semaphore": torch.empty((row_blocks, B, H), **ints),
        }
        if H != HKV:
            buffers |= {f"{name}_accum_ptr": torch.zeros((B, HKV, keys * K), **floats) for name in ("dk", "dv")}
            buffers |= {f"{name}_semaphore": torch.zeros((key_blocks, B, HKV), **ints) for name in ("dk", "dv")}
        parameters = Parameters(
            v_dim_stride=1, h=H, h_k=HKV, b=B, b_k=B, seqlen_q=T, seqlen_k=TK, seqlen_q_rounded=rows,
            seqlen_k_rounded=keys, d=K, d_rounded=K, dv=K, dv_rounded=K, total_q=B * T, total_k=B * TK,
            scale_softmax=case.softmax_scale, p_dropout=1.0, p_dropout_in_uint8_t=255, rp_dropout=1.0,
            window_size_left=TK - 1, window_size_right=0 if causal else T - 1, is_bf16=dtype == "bf16",
            is_causal=causal, arch=90, num_sm=torch.cuda.get_device_properties(q.device).multi_processor_count,
            deterministic=True, **{name: x.data_ptr() for name, x in buffers.items()},
        )  # fmt: skip
        for name, x in tensors.items():
            setattr(parameters, f"{name}_ptr", x.data_ptr())
            for at, axis in enumerate(("batch", "row", "head")):
                setattr(parameters, f"{name}_{axis}_stride", x.stride(at))
        stream = torch.cuda.current_stream(q.device).cuda_stream
        self.functions[dtype, K](ctypes.byref(parameters), stream)
        return {name: tensors[name] for name in case.wants.values()}

"""The blocks' maths by torch's plain operations, of parameters by tandem.nn's names, in the dtype that these have: what
every result is checked against in fp64, and what torch compiles."""

import torch
from torch.nn import functional as F

from examples.speed_layers import chunked

EPS = {"norm": 1e-6, "heads": 1e-5}


def norm(x, weight, eps=EPS["norm"]):
    return F.rms_norm(x, weight.shape, weight, eps)


def wide(x):
    """At least fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def gla_inputs(p, x, H):
    """q, k, v [B,T,H,K], the gate [B,T,d] and log_decay [B,T,H]."""
    n = norm(x, p["norm.weight"])
    q, k, v = (F.linear(n, p[f"mixer.{one}_proj.weight"]).unflatten(-1, (H, -1)) for one in "qkv")
    decay = F.linear(n, p["mixer.gk_proj.weight"], p["mixer.gk_proj.bias"])
    return q, k, v, F.linear(n, p["mixer.g_proj.weight"]), F.logsigmoid(wide(decay)) / 16


def gla_end(p, x, o, gate):
    o = norm(o, p["mixer.g_norm_swish_gate.weight"], EPS["heads"]).flatten(-2)
    return x + F.linear(o * F.silu(gate), p["mixer.o_proj.weight"])


def gla_block(p, x, H, mix=chunked):
    q, k, v, gate, log_decay = gla_inputs(p, x, H)
    return gla_end(p, x, mix(q, k, v, log_decay), gate)


def mamba2_block(p, x, H, N, convolve=None, mix=None, gated_norm=None):
    """One group. `convolve`, `mix` and `gated_norm` may be a library's own."""
    width = p["mixer.norm.weight"].shape[0]
    n = norm(x, p["norm.weight"])
    z, xbc, dt = F.linear(n, p["mixer.in_proj.weight"]).split([width, width + 2 * N, H], -1)
    xbc = (convolve or plain_convolution)(xbc, p["mixer.conv1d.weight"].squeeze(1), p["mixer.conv1d.bias"])
    u, b, c = xbc.split([width, N, N], -1)
    y = (mix or plain_ssd)(u.unflatten(-1, (H, -1)), dt, p["mixer.A_log"], b, c, p["mixer.D"], p["mixer.dt_bias"])
    y = (gated_norm or plain_gated_norm)(y.flatten(-2), p["mixer.norm.weight"], z)
    return x + F.linear(y, p["mixer.out_proj.weight"])


def plain_convolution(x, weight, bias):
    channels, taps = weight.shape
    z = F.conv1d(x.transpose(1, 2), weight.unsqueeze(1), bias, padding=taps - 1, groups=channels)
    return F.silu(z[..., : x.shape[1]]).transpose(1, 2)


def plain_ssd(u, dt, A_log, b, c, D, dt_bias):
    """u [B,T,H,P], dt [B,T,H], b and c [B,T,N]."""
    dt = F.softplus(wide(dt) + dt_bias)
    b, c = (one.unsqueeze(2).expand(-1, -1, u.shape[2], -1) for one in (b, c))
    c = c * c.shape[-1] ** 0.5  # `chunked` scales by its inverse
    return chunked(c, b, u * dt.to(u.dtype)[..., None], -dt * wide(A_log).exp()) + D[:, None] * u


def plain_gated_norm(y, weight, z):
    return norm(y * F.silu(z), weight, EPS["heads"])


def stacked(p):
    """The parameters of a transformer's block with one weight for each product's input, as programs that decode hold
    them."""
    names = {"qkv": [f"self_attn.{one}_proj.weight" for one in "qkv"]}
    names["gate_up"] = [f"mlp.{one}_proj.weight" for one in ("gate", "up")]
    return p | {name: torch.cat([p[one] for one in parts]) for name, parts in names.items()}


def rotated(heads, cos, sin):
    """heads [B,T,H,K], cos and sin [T,K/2]."""
    a, b = wide(heads).chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(heads.dtype)


def transformer_block(p, x, cos, sin, attend):
    """Of `stacked` parameters. `attend` makes o [B,T,H,K] of q, k and v."""
    K = 2 * cos.shape[-1]
    q, k, v = F.linear(norm(x, p["input_layernorm.weight"]), p["qkv"]).unflatten(-1, (-1, K)).chunk(3, -2)
    o = attend(rotated(q, cos, sin), rotated(k, cos, sin), v)
    h = x + F.linear(o.flatten(-2), p["self_attn.o_proj.weight"])
    gate, up = F.linear(norm(h, p["post_attention_layernorm.weight"]), p["gate_up"]).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, p["mlp.down_proj.weight"])


def attention(q, k, v, causal):
    """scaled_dot_product_attention of [B,T,H,K]."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def transformer_forward(p, x, cos, sin):
    return transformer_block(p, x, cos, sin, lambda q, k, v: attention(q, k, v, causal=True))


def transformer_step(p, x, cos, sin, keys, values, place):
    """One token, whose keys and values go to their place in a cache [B,S,H,K] that they fill."""

    def attend(q, k, v):
        keys.index_copy_(1, place, k)
        values.index_copy_(1, place, v)
        return attention(q, keys, values, causal=False)

    return transformer_block(p, x, cos, sin, attend)


def after(keys, values):
    """The attention of one token behind those of a cache [B,S,H,K], which is not written."""

    def attend(q, k, v):
        return attention(q, torch.cat((keys, k), 1), torch.cat((values, v), 1), causal=False)

    return attend


def define(case, tensors):
    """The outputs of a case in fp64, by the maths above."""
    tensors = {name: x.double() if torch.is_tensor(x) else x for name, x in tensors.items()}
    tensors["parameters"] = {name: x.double() for name, x in tensors["parameters"].items()}

    def forward(p, x):
        if case.block == "gla_block":
            return gla_block(p, x, case.H)
        if case.block == "mamba2_block":
            return mamba2_block(p, x, case.H, case.N)
        if case.direction == "forward":
            return transformer_forward(stacked(p), x, tensors["cos"], tensors["sin"])
        return transformer_block(
            stacked(p), x, tensors["cos"], tensors["sin"], after(tensors["keys"], tensors["values"])
        )

    return call_of(case, tensors, forward)()


def call_of(case, tensors, forward, parameters=None):
    """A call that returns the outputs of a case by name: out and, with a backward, the gradients of x and of all
    parameters, which are leaves. `forward` is a function of parameters by name and x."""
    x, d_out = tensors["x"], tensors.get("d_out")
    if case.direction != "forward_backward":
        given = tensors["parameters"] if parameters is None else parameters

        def run():
            with torch.no_grad():
                return {"out": forward(given, x)}

        return run
    if parameters is None:
        parameters = {name: one.detach().requires_grad_() for name, one in tensors["parameters"].items()}

    def run_both():
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            out = forward(parameters, leaf)
        found = torch.autograd.grad(out, [leaf, *parameters.values()], d_out)
        named = zip(("dx", *(f"d_{name}" for name in parameters)), found, strict=True)
        return {"out": out.detach(), **dict(named)}

    return run_both

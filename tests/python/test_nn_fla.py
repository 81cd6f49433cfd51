"""tandem.nn beside fla's own layers: state dicts, outputs, gradients. Without a GPU fla's Triton kernels cannot run:
there its layers compute with their plain definitions."""

import contextlib
import unittest
from unittest import mock

import tandem
import torch
from reference import causal_conv1d, gated_scan, gla, relative_rms
from torch import nn
from torch.nn.functional import rms_norm, silu

try:
    import fla.layers.hgrn as fla_hgrn
    import fla.layers.multiscale_retention as fla_retention
    import fla.layers.simple_gla as fla_gla
except Exception as error:  # a package that is broken for this torch or Triton may raise anything
    MISSING = f"no flash-linear-attention: {type(error).__name__}: {error}"
else:
    MISSING = ""


def plain_gla(q, k, v, g=None, **options):
    """What fla's simple GLA computes, and its retention where there is no g."""
    if g is None:
        g = torch.log1p(-torch.exp2(-5.0 - torch.arange(q.shape[2])))
    return gla(q, k, v, g, **options)[0].to(q.dtype), None


def plain_rotary(self, q, k, seqlen_offset=0, max_seqlen=None, cu_seqlens=None):
    positions = torch.arange(q.shape[1])
    if cu_seqlens is not None:
        positions = torch.cat([torch.arange(n) for n in cu_seqlens.diff().tolist()])
    angles = (positions[:, None] * self.base ** (-torch.arange(0, self.dim, 2) / self.dim))[:, None]

    def rotated(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)

    return rotated(q), rotated(k)


def plain_norm(self, x, gate):
    return rms_norm(x, self.weight.shape, self.weight, self.eps) * silu(gate)


def plain_convolution(self, x, mask=None, cu_seqlens=None, **options):
    x = x if mask is None else x * mask[..., None]
    weight = self.weight.squeeze(1)
    out, _ = causal_conv1d(x, weight, self.bias, activation=self.activation, cu_seqlens=cu_seqlens)
    return out.to(x.dtype), None


def plain_scan(x, g, **options):
    return gated_scan(x, log_decay=g)[0].to(x.dtype), None


@contextlib.contextmanager
def plain_definitions():
    with contextlib.ExitStack() as stack:
        for module, name, definition in (
            (fla_gla, "chunk_simple_gla", plain_gla),
            (fla_retention, "chunk_retention", plain_gla),
            (fla_hgrn, "chunk_hgrn", plain_scan),
            (fla_hgrn, "swiglu", lambda x, y: silu(x) * y),
            (fla_gla.FusedRMSNormGated, "forward", plain_norm),
            (fla_gla.ShortConvolution, "forward", plain_convolution),
            (fla_retention.RotaryEmbedding, "forward", plain_rotary),
        ):
            stack.enter_context(mock.patch.object(module, name, definition))
        yield


def pairs():
    """(name, fla's layer, ours), with different parameters."""
    rotary = tandem.nn.RotaryEmbedding(16, 64)
    simple, retention = fla_gla.SimpleGatedLinearAttention, fla_retention.MultiScaleRetention
    sizes = {"hidden_size": 64, "num_heads": 4}
    convolutions = {"conv_size": 3, "conv_bias": True}
    for options in (
        {},
        {"num_kv_heads": 2, "expand_k": 0.5, "expand_v": 2.0, "gate_logit_normalizer": 4},
        {"conv_size": 4},
        {"num_kv_heads": 2, "expand_v": 2.0, **convolutions},
    ):
        ours = tandem.nn.GatedLinearAttention(**sizes, **options)
        yield f"GLA {options}", simple(**sizes, **options, use_short_conv="conv_size" in options), ours
    for options in ({}, {"conv_size": 4}):
        theirs = simple(**sizes, **options, use_short_conv="conv_size" in options)
        theirs.feature_map_fn = silu  # its own is a kernel
        ours = tandem.nn.GatedLinearAttention(**sizes, **options, feature_map="silu")
        yield f"GLA with a feature map {options}", theirs, ours
    for options in ({}, {"num_kv_heads": 2, "expand_v": 1.0}, {"num_kv_heads": 2, **convolutions}):
        ours = tandem.nn.MultiScaleRetention(**sizes, **options, rotary=rotary)
        yield f"retention {options}", retention(**sizes, **options, use_short_conv="conv_size" in options), ours
    for options in ({}, {"expand_ratio": 2, **convolutions}):
        theirs = fla_hgrn.HGRNAttention(hidden_size=64, **options, use_short_conv="conv_size" in options)
        yield f"HGRN {options}", theirs, tandem.nn.HGRN(64, **options)


@unittest.skipIf(MISSING, MISSING)
class Fla(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring
        self.x = torch.randn(3, 40, 64)
        self.mask = torch.ones(3, 40, dtype=torch.long)
        self.mask[0, :7] = self.mask[1, :39] = 0

    def test_state_dicts_load_strictly_both_ways(self):
        for name, theirs, ours in pairs():
            with self.subTest(name):
                theirs.load_state_dict(ours.state_dict(), strict=True)
                for parameter in theirs.parameters():
                    nn.init.normal_(parameter)
                ours.load_state_dict(theirs.state_dict(), strict=True)
                for key, parameter in theirs.named_parameters():
                    self.assertTrue(torch.equal(parameter, ours.get_parameter(key)), key)

    def test_outputs_and_gradients(self):
        for name, theirs, ours in pairs():
            with self.subTest(name):
                for parameter in theirs.parameters():  # norms and biases begin with ones and zeros
                    if parameter.dim() == 1:
                        nn.init.normal_(parameter)
                ours.load_state_dict(theirs.state_dict(), strict=True)
                with plain_definitions():
                    expected = theirs(self.x)[0]
                    expected.square().sum().backward()
                got = ours(self.x)
                self.assertLess(relative_rms(got, expected.double()), 1e-5)
                got.square().sum().backward()
                for key, parameter in theirs.named_parameters():
                    self.assertLess(relative_rms(ours.get_parameter(key).grad, parameter.grad.double()), 1e-4, key)

    def test_lower_bound(self):
        theirs, ours = fla_hgrn.HGRNAttention(hidden_size=64, layer_idx=1), tandem.nn.HGRN(64)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        bound = torch.rand(64)
        with plain_definitions():
            expected = theirs(self.x, lower_bound=bound)[0]
        self.assertLess(relative_rms(ours(self.x, lower_bound=bound), expected.double()), 1e-5)

    def test_padding_on_the_left(self):
        for name, theirs, ours in pairs():
            with self.subTest(name), torch.no_grad():
                ours.load_state_dict(theirs.state_dict(), strict=True)
                with plain_definitions(), torch.enable_grad():  # without one fla takes another kernel
                    expected = theirs(self.x, attention_mask=self.mask)[0].detach()
                got = ours(self.x, attention_mask=self.mask)
                self.assertLess(relative_rms(got[self.mask == 1], expected[self.mask == 1].double()), 1e-5)


@unittest.skipIf(MISSING or not torch.cuda.is_available(), MISSING or "fla's kernels need a GPU")
class FlaOnGpu(unittest.TestCase):
    def test_outputs(self):
        torch.manual_seed(0)
        x = torch.randn(3, 200, 64, device="cuda", dtype=torch.bfloat16)
        compiled = ("GLA {'conv_size': 4}", "retention {}", "HGRN {}")  # which takes half a minute each
        for name, theirs, ours in pairs():
            if name not in compiled:
                continue
            with self.subTest(name):
                ours.load_state_dict(theirs.state_dict(), strict=True)
                got, expected = (layer.to(x.device, x.dtype)(x) for layer in (ours, theirs))
                self.assertLess(relative_rms(got, expected[0].double()), 2e-2)


if __name__ == "__main__":
    unittest.main()

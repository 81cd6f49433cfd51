"""Tests of what bench/peers runs on, with torch's CPU tensors: the inputs, and the fp64 reference."""

import dataclasses
import math
import unittest

import torch
from test_peers import small  # first: it puts the checkout on sys.path

from bench.peers import inputs, reference


class Inputs(unittest.TestCase):
    def test_shapes_dtypes_and_seeds(self):
        case = small(axes={"HQ": 2, "V": 8})
        one, same, other = (inputs.make(case, "bf16", seed, "cpu") for seed in (1, 1, 2))
        self.assertEqual(
            [tuple(one[name].shape) for name in ("q", "k", "v", "log_decay")],
            [(2, 70, 2, 16), (2, 70, 2, 16), (2, 70, 4, 8), (2, 70, 4)],
        )
        self.assertEqual((one["q"].dtype, one["log_decay"].dtype), (torch.bfloat16, torch.float32))
        self.assertTrue(torch.equal(one["q"], same["q"]))
        self.assertFalse(torch.equal(one["q"], other["q"]))

    def test_distributions(self):
        wide = small(axes={"T": 4000})

        def decays(distribution):
            return inputs.make(dataclasses.replace(wide, distribution=distribution), "bf16", 1, "cpu")["log_decay"]

        # E log_sigmoid(N(0,1)) = -0.806, E log_sigmoid(N(0,1) + 2) = -0.178 (numerical integration).
        self.assertAlmostEqual(decays("normal").mean().item() * 16, -0.806, delta=0.02)
        self.assertAlmostEqual(decays("normal_bench").mean().item(), -0.178, delta=0.01)
        self.assertAlmostEqual(torch.isinf(decays("reset")).float().mean().item(), 1 / 16, delta=0.01)
        self.assertAlmostEqual(torch.isinf(decays("reset_half")).float().mean().item(), 1 / 2, delta=0.02)
        strong = decays("strong")
        self.assertTrue(-20 <= strong.min() and strong.max() <= -2)
        q = inputs.make(wide, "bf16", 1, "cpu")["q"].float()
        self.assertAlmostEqual(q.mean().item(), 0, delta=0.01)
        self.assertAlmostEqual(q.std().item(), 1, delta=0.01)
        time = torch.arange(4000).reshape(1, -1, 1).expand(2, -1, 4)
        self.assertTrue(torch.equal(decays("reset_edges").isinf(), (time % 64 == 0) | (time % 64 == 63)))
        self.assertTrue(torch.equal(decays("alternating"), -20.0 * (time % 2)))
        phases, at = decays("phases"), time % 1000
        signs = torch.where(at < 500, -1.0, torch.where(at < 850, 0.0, 1.0))
        self.assertLess((phases.sign() != signs).float().mean().item(), 1e-3)  # a growth of 0
        constant = inputs.log_decay("huge", (4,), torch.Generator())
        self.assertEqual((constant == -1e30).tolist(), [False, True, False, False])

    def test_offsets(self):
        self.assertNotIn("cu_seqlens", inputs.make(small(), "bf16", 1, "cpu"))
        offsets = inputs.make(small(axes={"B": 1}, cu_seqlens=(0, 3, 70)), "bf16", 1, "cpu")["cu_seqlens"]
        self.assertEqual((offsets.dtype, offsets.tolist()), (torch.int32, [0, 3, 70]))

    def test_gradients_are_of_the_same_inputs(self):
        case = small(axes={"V": 8})
        plain, both = (inputs.make(dataclasses.replace(case, direction=one), "bf16", 1, "cpu")
                       for one in ("forward", "forward_backward"))  # fmt: skip
        self.assertEqual((set(both) - set(plain), both["d_o"].shape), ({"d_o"}, plain["v"].shape))
        self.assertTrue(all(torch.equal(plain[name], both[name]) for name in plain))
        self.assertFalse(torch.equal(both["d_o"], both["v"]))

    def test_other_kinds_of_decay(self):
        self.assertEqual(tuple(inputs.make(small(decay_kind="constant"), "fp16", 1, "cpu")["log_decay"].shape), (4,))
        self.assertNotIn("log_decay", inputs.make(small(decay_kind="none"), "fp16", 1, "cpu"))


def quadratic(case, tensors):
    """gla as masked attention in fp64, [B,T,H,V]: shares no code with the recurrence."""
    group = case.H // case.HQ
    q, k = (tensors[name].double().repeat_interleave(group, 2).transpose(1, 2) for name in "qk")
    v = tensors["v"].double().transpose(1, 2)
    decay = tensors.get("log_decay", torch.zeros(case.H)).double()
    sums = decay.expand(case.B, case.T, case.H).cumsum(1).transpose(1, 2)
    reach = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    if case.cu_seqlens is not None:  # 0 across a boundary, and outside every sequence
        which = torch.bucketize(torch.arange(case.T), torch.tensor(case.cu_seqlens), right=True)
        inside = (which > 0) & (which < len(case.cu_seqlens))
        reach = reach * ((which[:, None] == which) & inside)
    return (case.softmax_scale * ((q @ k.transpose(2, 3)) * reach) @ v).transpose(1, 2)


@torch.enable_grad()
def token_by_token(case, tensors):
    """o and its gradients, [B,T,H,...], in fp64 by autograd of the definition."""
    leaves = {name: tensors[name].double().requires_grad_() for name in "qkv"}
    decay = tensors.get("log_decay", torch.zeros(case.H)).double().expand(case.B, case.T, case.H)
    leaves["log_decay"] = decay.clone().requires_grad_()
    offsets = case.cu_seqlens or (0, case.T)
    outputs, state = [], torch.zeros(case.B, case.H, case.K, case.V, dtype=torch.float64)
    for t in range(case.T):
        q, k, v, g = (x[:, t] for x in leaves.values())
        state = torch.zeros_like(state) if t in offsets else state
        state = g.exp()[..., None, None] * state + k[..., None] * v[..., None, :]
        inside = offsets[0] <= t < offsets[-1]
        outputs.append(inside * case.softmax_scale * (q[..., None, :] @ state).squeeze(-2))
    o = torch.stack(outputs, 1)
    gradients = torch.autograd.grad(o, list(leaves.values()), tensors["d_o"].double())
    return {"o": o.detach(), **dict(zip(("dq", "dk", "dv", "d_log_decay"), gradients, strict=True))}


class Reference(unittest.TestCase):
    def test_gradients_against_autograd(self):
        for changed in (
            {},
            {"axes": {"V": 8}, "scale": -0.5},
            {"axes": {"T": 64}, "distribution": "minus20"},
            {"distribution": "reset"},
            {"distribution": "all_reset"},  # d_log_decay is 0
            {"decay_kind": "constant"},
            {"decay_kind": "none"},
            {"axes": {"B": 1, "T": 200}, "cu_seqlens": (3, 3, 20, 64, 64, 190)},
        ):
            for direction in ("backward", "forward_backward"):
                case = small(direction=direction, **changed)
                tensors = inputs.make(case, "bf16", 3, "cpu")
                heads = reference.sample_heads(case)
                expected = reference.define(case, tensors, heads)
                names = {"o"} if direction == "forward_backward" else set()
                self.assertEqual(set(expected), names | set(case.wants.values()))
                self.assertLess(reference.relative_rms(token_by_token(case, tensors), expected, heads), 1e-13)

    def test_each_output_has_its_error(self):
        expected = {"dq": torch.ones(1, 3, 8).double(), "dk": torch.zeros(1, 3, 8).double()}
        right = {name: x.reshape(1, 3, 1, 8) for name, x in expected.items()}
        self.assertEqual(reference.errors(right, expected, [(0, 0)]), {"dq": 0.0, "dk": 0.0})
        found = reference.errors({"dq": 1.5 * right["dq"], "dk": None}, expected, [(0, 0)])
        self.assertEqual(found, {"dq": 0.5, "dk": math.inf})
        self.assertGreater(reference.errors({**right, "dk": right["dq"]}, expected, [(0, 0)])["dk"], 1e200)

    def test_against_masked_attention(self):
        varlen = [
            small(axes={"B": 1, "H": 8, "HQ": 8}, cu_seqlens=offsets)
            for offsets in ((0, 70), (3, 3, 20, 21, 21, 60, 60), (0, 1, 70))
        ]
        for case in (
            small(),
            small(axes={"HQ": 2, "K": 8}),
            small(decay_kind="constant", scale=-0.5),
            small(decay_kind="none"),
            *varlen,
        ):
            tensors = inputs.make(case, "bf16", 3, "cpu")
            heads = reference.sample_heads(case)
            self.assertEqual(len(heads), 8)
            error = reference.relative_rms(
                {"o": quadratic(case, tensors)}, reference.define(case, tensors, heads), heads
            )
            self.assertLess(error, 1e-12)

    def test_samples_reach_both_ends(self):
        heads = reference.sample_heads(small(axes={"B": 8, "H": 32}))
        self.assertEqual((len(heads), heads[0], heads[-1]), (16, (0, 0), (7, 31)))
        self.assertEqual(reference.sample_heads(small(axes={"B": 1, "H": 1})), [(0, 0)])

    def test_nan_anywhere_never_passes(self):
        o = torch.zeros(2, 3, 4, 8)
        o[1, 2, 3, 7] = math.nan
        expected = {"o": torch.ones(1, 3, 8, dtype=torch.float64)}
        self.assertEqual(reference.relative_rms({"o": o}, expected, [(0, 0)]), math.inf)
        self.assertEqual(
            reference.relative_rms({}, expected, [(0, 0)]), math.inf
        )  # nor does an output that is not there


if __name__ == "__main__":
    unittest.main()

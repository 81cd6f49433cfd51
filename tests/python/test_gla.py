"""tandem.ops.gla on the CPU: the cases of cases/gla.json against the fp64 definition, and what it refuses."""

import unittest

import tandem
import torch
from reference import check_gla, gla, relative_rms

from cases import DTYPES, cover, gla_inputs


class Cases(unittest.TestCase):
    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "forward"):
            with self.subTest(case["name"], dtype=name):
                inputs = gla_inputs(case, DTYPES[name])
                kept = inputs["q"].stride()
                check_gla(self, inputs, *tandem.ops.gla(**inputs))
                self.assertEqual(inputs["q"].stride(), kept)

    def test_the_reference_is_the_formula(self):
        # Written out for T = 2, one head: another hand than reference.gla's.
        q, k, v = torch.randn(3, 1, 2, 1, 8, dtype=torch.float64)
        g = torch.tensor([-0.3, -0.7], dtype=torch.float64)
        S = torch.outer(k[0, 0, 0], v[0, 0, 0])
        S = g[1].exp() * S + torch.outer(k[0, 1, 0], v[0, 1, 0])
        o, state = gla(q, k, v, g.reshape(1, 2, 1), scale=2.0)
        self.assertLess(relative_rms(state[0, 0], S), 1e-12)
        self.assertLess(relative_rms(o[0, 1, 0], 2 * q[0, 1, 0] @ S), 1e-12)

    def test_a_wrong_result_fails(self):
        expected = torch.ones(4, dtype=torch.float64)
        self.assertGreater(relative_rms(expected * 1.01, expected), 3e-3)
        self.assertEqual(relative_rms(torch.full((4,), torch.nan), expected), float("inf"))


class Arguments(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.q, self.k, self.v = torch.randn(3, 2, 70, 4, 64).to(torch.bfloat16)
        self.g = torch.nn.functional.logsigmoid(torch.randn(2, 70, 4)) / 16

    def refuses(self, error, text, *args, **kwargs):
        with self.assertRaises(error) as caught:
            tandem.ops.gla(*args, **kwargs)
        self.assertEqual(type(caught.exception), error)
        self.assertIn(text, str(caught.exception))
        self.assertTrue(str(caught.exception).startswith("["), str(caught.exception))

    def test_int64_cu_seqlens(self):
        q, k, v, g = (x[:1] for x in (self.q, self.k, self.v, self.g))
        offsets = torch.tensor([0, 30, 30, 70])
        both = [
            tandem.ops.gla(q, k, v, g, cu_seqlens=offsets.to(dtype), output_final_state=True)
            for dtype in (torch.int32, torch.int64)
        ]
        self.assertTrue(torch.equal(both[0][0], both[1][0]) and torch.equal(both[0][1], both[1][1]))
        self.assertEqual(both[0][1].shape, (3, 4, 64, 64))

    def test_int64_cu_seqlens_that_int32_has_not(self):
        q, k, v, g = (x[:1] for x in (self.q, self.k, self.v, self.g))
        for offsets in ([0, 2**32 + 5], [-(2**32), 70]):
            text = "[gla_forward] cu_seqlens must lie in [0,T]"
            self.refuses(ValueError, text, q, k, v, g, cu_seqlens=torch.tensor(offsets))

    def test_layouts_that_the_library_refuses_are_copied(self):
        expected = tandem.ops.gla(self.q, self.k, self.v, self.g)[0]
        columns = self.v.transpose(-1, -2).contiguous().transpose(-1, -2)
        self.assertNotEqual(columns.stride(-1), 1)
        self.assertTrue(torch.equal(tandem.ops.gla(self.q, self.k, columns, self.g)[0], expected))
        state = torch.randn(2, 4, 64, 64)
        expected = tandem.ops.gla(self.q, self.k, self.v, self.g, initial_state=state)[0]
        turned = state.transpose(2, 3).contiguous().transpose(2, 3)
        got = tandem.ops.gla(self.q, self.k, self.v, self.g, initial_state=turned)[0]
        self.assertTrue(torch.equal(got, expected))

    def test_log_decay_of_another_dtype(self):
        half = self.g.to(torch.bfloat16)
        got = tandem.ops.gla(self.q, self.k, self.v, half)[0]
        self.assertTrue(torch.equal(got, tandem.ops.gla(self.q, self.k, self.v, half.float())[0]))

    def test_initial_state_is_not_written_to(self):
        state = torch.randn(2, 4, 64, 64)
        kept = state.clone()
        _, final = tandem.ops.gla(self.q, self.k, self.v, self.g, initial_state=state, output_final_state=True)
        self.assertTrue(torch.equal(state, kept))
        self.assertFalse(torch.equal(final, kept))

    def test_refusals(self):
        q, k, v, g = self.q, self.k, self.v, self.g
        shape = "[gla_forward] k must have shape [B,T,HQ,K] = [2,70,4,64], got [2,69,4,64]"
        self.refuses(ValueError, shape, q, k[:, :69], v, g)
        self.refuses(ValueError, "q must have shape [B,T,HQ,K], got [70,4,64]", q[0], k[0], v[0])
        self.refuses(ValueError, "q must have at most 5 axes, got 6", q[None, None], k, v)
        self.refuses(ValueError, "q must have dtype bf16, fp16, fp32 or fp64, got Long", q.long(), k, v)
        self.refuses(ValueError, "k must have dtype bf16, got fp32", q, k.float(), v)
        self.refuses(ValueError, "log_decay must have dtype fp32 or fp64, got Long", q, k, v, g.long())
        self.refuses(ValueError, "log_decay must have shape [B,T,H] = [2,70,4], got [2,70,3]", q, k, v, g[..., :3])
        self.refuses(ValueError, "scale must be finite", q, k, v, scale=float("inf"))
        self.refuses(ValueError, "cu_seqlens needs B = 1", q, k, v, cu_seqlens=torch.tensor([0, 70]))
        self.refuses(ValueError, "initial_state must have dtype fp32", q, k, v, initial_state=q.new_zeros(2, 4, 64, 64))
        offsets = torch.tensor([0, 71])
        self.refuses(ValueError, "cu_seqlens must lie in [0,T]", q[:1], k[:1], v[:1], cu_seqlens=offsets)
        self.refuses(
            ValueError,
            "initial_state must be on cpu, got meta",
            q,
            k,
            v,
            initial_state=torch.zeros(2, 4, 64, 64, device="meta"),
        )
        self.refuses(NotImplementedError, "a decay per key channel is not built yet", q, k, v, q.float())


if __name__ == "__main__":
    unittest.main()

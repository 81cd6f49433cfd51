"""tandem.set_batch_invariant: a sequence has the same bits alone, as a row of a batch and packed with others, and a
row of a product beside any others, in results and gradients. On a GPU: test_cuda.py."""

import os
import unittest
from unittest import mock

import tandem
import torch
from torch.nn.functional import logsigmoid


class Switch(unittest.TestCase):
    def tearDown(self):
        tandem.set_batch_invariant(False)

    def test_is_what_was_set(self):
        self.assertFalse(tandem.is_batch_invariant())
        tandem.set_batch_invariant(True)
        self.assertTrue(tandem.is_batch_invariant())
        tandem.set_batch_invariant(False)
        self.assertFalse(tandem.is_batch_invariant())

    def test_the_environment_asks_for_it_too(self):
        with mock.patch.dict(os.environ, TANDEM_BATCH_INVARIANT="1"):
            self.assertTrue(tandem.is_batch_invariant())
        with mock.patch.dict(os.environ, TANDEM_BATCH_INVARIANT="0"):
            self.assertFalse(tandem.is_batch_invariant())
        with mock.patch.dict(os.environ, TANDEM_BATCH_INVARIANT="on"):
            text = r"\[environment\] TANDEM_BATCH_INVARIANT must be 0 or 1, got on"
            with self.assertRaisesRegex(ValueError, text):
                tandem.is_batch_invariant()
            with self.assertRaisesRegex(ValueError, text):
                tandem.ops.gla(*torch.randn(3, 1, 4, 1, 8, dtype=torch.bfloat16).unbind())


class BatchInvariance(unittest.TestCase):
    device = "cpu"
    dtype = torch.bfloat16
    lengths = (3, 64, 1, 65, 700, 130)

    def setUp(self):
        torch.manual_seed(0)
        tandem.set_batch_invariant(True)

    def tearDown(self):
        tandem.set_batch_invariant(False)

    def draw(self, *shape, dtype=None):
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)

    def call(self, op, tokens, shared, state, **options):
        """Outputs, then gradients by `tokens`, the state's last."""
        leaves = [x.detach().requires_grad_() for x in (*tokens, state)]
        outputs = op(*leaves[:-1], *shared, initial_state=leaves[-1], output_final_state=True, **options)
        # A sum's gradient is one value for all: of a function of each output it has the output's layout.
        loss = sum((x.float() ** 2).sum() for x in outputs)
        return [x.detach() for x in outputs], torch.autograd.grad(loss, leaves)

    def assert_invariant(self, op, tokens_of, shared, state_of):
        """Calls of one sequence, against the same packed and, of the longest, in a batch."""
        total = sum(self.lengths)
        tokens, state = tokens_of(1, total), state_of(len(self.lengths))
        offsets = torch.tensor([0, *torch.tensor(self.lengths).cumsum(0)], device=self.device, dtype=torch.int32)
        (out, final), gradients = self.call(op, tokens, shared, state, cu_seqlens=offsets)
        begin = 0
        for n, length in enumerate(self.lengths):
            span = slice(begin, begin + length)
            begin += length
            own = [x[:, span] for x in tokens]
            alone, by_alone = self.call(op, own, shared, state[n : n + 1])
            packed = [out[:, span], final[n : n + 1], *(x[:, span] for x in gradients[:-1]), gradients[-1][n : n + 1]]
            with self.subTest(length=length, call="packed"):
                for a, b in zip(packed, [*alone, *by_alone], strict=True):
                    self.assertTrue(torch.equal(a, b))
            row = 1
            batch = [torch.cat([self.draw(1, *x.shape[1:], dtype=x.dtype).clamp(max=0), x, x, x]) for x in own]
            states = torch.cat([state[:1], state[n : n + 1], state[:2]])
            results, by_batch = self.call(op, batch, shared, states)
            with self.subTest(length=length, call="batch"):
                for a, b in zip([*results, *by_batch], [*alone, *by_alone], strict=True):
                    self.assertTrue(torch.equal(a[row : row + 1], b))

    def test_gla(self):
        def tokens(B, T):
            q, k, v = self.draw(B, T, 2, 64), self.draw(B, T, 2, 64), self.draw(B, T, 4, 64)
            return q, k, v, logsigmoid(self.draw(B, T, 4, dtype=torch.float32) + 2)

        self.assert_invariant(tandem.ops.gla, tokens, (), lambda n: self.draw(n, 4, 64, 64, dtype=torch.float32))

    def test_gla_without_gradients_goes_directly(self):
        q, k, v = (self.draw(3, 300, 2, 64) for _ in range(3))
        with torch.no_grad():
            for row in range(3):
                one = [x[row : row + 1] for x in (q, k, v)]
                self.assertTrue(torch.equal(tandem.ops.gla(q, k, v)[0][row], tandem.ops.gla(*one)[0][0]))

    def test_gla_step(self):
        B, H, D = 200, 8, 64
        q, k, v = (self.draw(B, H, D) for _ in range(3))
        state = self.draw(B, H, D, D, dtype=torch.float32)
        alone = state[7:8].clone()
        o = tandem.ops.gla_step(q, k, v, None, state)
        self.assertTrue(torch.equal(tandem.ops.gla_step(q[7:8], k[7:8], v[7:8], None, alone), o[7:8]))
        self.assertTrue(torch.equal(alone, state[7:8]))

    def test_gated_scan(self):
        def scan(x, log_decay, gate, **options):
            return tandem.ops.gated_scan(x, log_decay=log_decay, gate=gate, **options)

        def tokens(B, T):
            return self.draw(B, T, 72), logsigmoid(self.draw(B, T, 72)), self.draw(B, T, 72)

        self.assert_invariant(scan, tokens, (), lambda n: self.draw(n, 72, dtype=torch.float32))

    def test_linear_scan(self):
        def scan(u, log_decay, gate, weight, **options):
            return tandem.ops.linear_scan(u, weight, log_decay=log_decay, gate=gate, **options)

        def tokens(B, T):
            return self.draw(B, T, 64), logsigmoid(self.draw(B, T, 72)), self.draw(B, T, 72)

        weight = self.draw(72, 64) / 8
        self.assert_invariant(scan, tokens, (weight,), lambda n: self.draw(n, 72, dtype=torch.float32))

    def test_rows_of_products(self):
        d, columns = 136, 264
        weight, norm_weight = self.draw(columns, d) / 12, 1 + self.draw(d) / 4
        out_weight = self.draw(d, d) / 12
        segments = [tandem.ops.Segment(128, "l2_normalize", head_width=64), tandem.ops.Segment(136, "silu")]
        calls = {
            "projection": lambda x: tandem.ops.projection(x, weight, segments),
            "rms_norm_gemm": lambda x: (tandem.ops.rms_norm_gemm(x, norm_weight, weight),),
            "gemm_swiglu": lambda x: (tandem.ops.gemm_swiglu(x, weight, norm_weight=norm_weight),),
        }

        def gated_output(x, **options):
            """o, its gate and the residual are all of a row."""
            named = {"gate_activation": "silu", "group_norm_weight": norm_weight[:8], "residual": x, **options}
            return tandem.ops.gated_output(x, out_weight, x, norm_weight=norm_weight, return_sum=True, **named)

        calls["gated_output"] = lambda x: gated_output(x, norm="rms_norm")
        calls["gated_output behind"] = lambda x: gated_output(
            x, norm="layer_norm", group_norm_weight=norm_weight, norm_behind_gate=True
        )
        rows = self.draw(700, d)
        for name, call in calls.items():

            def results(x, call=call):
                leaf = x.detach().requires_grad_()
                outputs = call(leaf)
                loss = sum((y.float() ** 2).sum() for y in outputs)
                return [*(y.detach() for y in outputs), *torch.autograd.grad(loss, leaf)]

            together = results(rows)
            for span in (slice(3, 4), slice(5, 21), slice(3, 67), slice(100, 400)):
                with self.subTest(op=name, rows=span):
                    for a, b in zip(together, results(rows[span]), strict=True):
                        self.assertTrue(torch.equal(a[span], b))


if __name__ == "__main__":
    unittest.main()

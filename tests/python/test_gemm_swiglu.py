"""tandem.ops.gemm_swiglu on the CPU: against fp64 and torch's own layers, and as a citizen of torch."""

import itertools
import unittest

import tandem
import torch
from reference import relative_rms
from tandem._registration import OPS
from tandem.ops import gemm_swiglu

RAW = torch.ops.tandem.gemm_swiglu_forward.default
d, F, EPS = 40, 24, 1e-5
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
OUTPUT_TOLERANCE = {torch.bfloat16: 3.2e-3, torch.float16: 4e-4, torch.float32: 1e-6, torch.float64: 1e-14}
GRADIENT_TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-6, torch.float64: 1e-13}


def activate(z, activation):
    """As torch's own functions have it, in z's dtype."""
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(z, approximate="tanh")
    return getattr(torch.nn.functional, activation)(z)


def inverse_rms(x):
    return (x.square().mean(-1) + EPS).rsqrt()


class Rounded(torch.autograd.Function):
    """fp64 rounded to a dtype, as n is; its gradient is that of no rounding."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).double()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def definition(x, weight, activation="silu", norm_weight=None):
    """The result in fp64, of stacked weights."""
    n = x.double()
    if norm_weight is not None:
        n = Rounded.apply(n * inverse_rms(n)[..., None] * norm_weight.double(), x.dtype)
    gate, up = (n @ weight.double().T).chunk(2, -1)
    return activate(gate, activation) * up


class GemmSwigluCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def draw(self, *leading, dtype=torch.float32, norm_dtype=None, requires_grad=False):
        """x, the stacked weights and the norm's weight."""
        x = torch.randn(*leading, d, dtype=torch.float64).to(dtype)
        weight = (torch.randn(2 * F, d, dtype=torch.float64) / d**0.5).to(dtype)
        norm_weight = (1 + torch.randn(d, dtype=torch.float64) / 4).to(norm_dtype or dtype)
        return tuple(tensor.requires_grad_(requires_grad) for tensor in (x, weight, norm_weight))

    def assert_same(self, got, expected):
        for one, other in zip(got, expected, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertTrue(torch.equal(one, other))


class Values(GemmSwigluCase):
    def test_outputs_and_gradients(self):
        for dtype, activation in itertools.product(OUTPUT_TOLERANCE, ("silu", "gelu", "gelu_tanh")):
            for norm_dtype in (None, dtype, torch.float64 if dtype == torch.float64 else torch.float32):
                with self.subTest(dtype=dtype, activation=activation, norm=norm_dtype):
                    leaves = self.draw(3, 67, dtype=dtype, norm_dtype=norm_dtype, requires_grad=True)
                    leaves = leaves[: 2 if norm_dtype is None else 3]
                    norm = {} if norm_dtype is None else {"norm_weight": leaves[2], "eps": EPS}
                    got = gemm_swiglu(leaves[0], leaves[1], activation=activation, **norm)
                    expected = definition(leaves[0], leaves[1], activation, norm.get("norm_weight"))
                    self.assertEqual((got.shape, got.dtype), ((3, 67, F), dtype))
                    self.assertTrue(got.is_contiguous())
                    self.assertLess(relative_rms(got, expected), OUTPUT_TOLERANCE[dtype])
                    d_out = torch.randn_like(got)
                    gradients = torch.autograd.grad(got, leaves, d_out)
                    defined = torch.autograd.grad(expected, leaves, d_out.double())
                    for one, leaf, other in zip(gradients, leaves, defined, strict=True):
                        self.assertEqual((one.dtype, one.shape), (leaf.dtype, leaf.shape))
                        self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype])

    def test_torchs_own_layers(self):
        functions = torch.nn.functional
        for activation, normalizes in itertools.product(ACTIVATIONS, (False, True)):
            with self.subTest(activation, normalizes=normalizes):
                x, weight, norm_weight = leaves = self.draw(2, 33, requires_grad=True)
                norm = {"norm_weight": norm_weight, "eps": EPS} if normalizes else {}
                n = functions.rms_norm(x, (d,), norm_weight, EPS) if normalizes else x
                gate, up = functions.linear(n, weight).chunk(2, -1)
                expected = activate(gate, activation) * up
                got = gemm_swiglu(x, weight, activation=activation, **norm)
                torch.testing.assert_close(got, expected)
                d_out, wanted = torch.randn_like(got), leaves[: 3 if normalizes else 2]
                torch.testing.assert_close(
                    torch.autograd.grad(got, wanted, d_out), torch.autograd.grad(expected, wanted, d_out)
                )

    def test_far_from_zero(self):
        """Where a gate is nearly open or closed the gradients are as good as elsewhere. Torch's gelus at -8 are not,
        not even in fp64."""
        for activation, around in (("silu", -8), *itertools.product(("silu", "gelu", "gelu_tanh"), (-4, 4, 8))):
            with self.subTest(activation, around=around):
                x, weight, _ = self.draw(67)
                weight = weight / 4
                x[:, 0], weight[:F, 0], weight[F:, 0] = 1, around, 0
                leaves = [x.requires_grad_(), weight.requires_grad_()]
                got, expected = (op(*leaves, activation=activation) for op in (gemm_swiglu, definition))
                self.assertLess(relative_rms(got, expected), 1e-5)
                d_out = torch.randn_like(got)
                gradients = torch.autograd.grad(got, leaves, d_out)
                defined = torch.autograd.grad(expected, leaves, d_out.double())
                for one, other in zip(gradients, defined, strict=True):
                    self.assertLess(relative_rms(one, other.double()), 1e-5)

    def draw_few(self):
        """As draw, in fp64, with few values: each takes two calls of a gradcheck."""
        x, weight, norm_weight = self.draw(2, 3, dtype=torch.float64)
        return x[..., :6].contiguous(), weight[:8, :6].contiguous(), norm_weight[:6].contiguous()

    def test_gradcheck(self):
        for activation, normalizes in itertools.product(ACTIVATIONS, (False, True)):
            with self.subTest(activation, normalizes=normalizes):
                leaves = [one.requires_grad_() for one in self.draw_few()[: 3 if normalizes else 2]]

                def check(x, weight, norm_weight=None, activation=activation):
                    return gemm_swiglu(x, weight, activation=activation, norm_weight=norm_weight)

                self.assertTrue(torch.autograd.gradcheck(check, leaves))

    def test_gradcheck_of_a_given_rstd(self):
        """The gradient through it is part of that by x."""

        def check(x, weight, norm_weight):
            return gemm_swiglu(x, weight, norm_weight=norm_weight, rstd=inverse_rms(x).detach())

        self.assertTrue(torch.autograd.gradcheck(check, [one.requires_grad_() for one in self.draw_few()]))

    def test_a_given_rstd_is_as_good_as_a_computed_one(self):
        for dtype in OUTPUT_TOLERANCE:
            with self.subTest(dtype=dtype):
                leaves = self.draw(2, 33, dtype=dtype, requires_grad=True)
                x, weight, norm_weight = leaves
                real = torch.float64 if dtype == torch.float64 else torch.float32
                rstd = inverse_rms(x.detach().double()).to(real)
                expected = gemm_swiglu(x, weight, norm_weight=norm_weight, eps=EPS)
                got = gemm_swiglu(x, weight, norm_weight=norm_weight, rstd=rstd)
                self.assertLess(relative_rms(got, expected.double()), OUTPUT_TOLERANCE[dtype])
                d_out = torch.randn_like(got)
                gradients = (torch.autograd.grad(y, leaves, d_out) for y in (got, expected))
                for one, other in zip(*gradients, strict=True):
                    self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype])

    def test_the_default_eps(self):
        x, weight, norm_weight = self.draw(5)
        x *= 1e-3
        self.assert_same(
            [gemm_swiglu(x, weight, norm_weight=norm_weight)],
            [gemm_swiglu(x, weight, norm_weight=norm_weight, eps=1e-6)],
        )

    def test_one_weight_is_as_good_as_two(self):
        x, weight, _ = self.draw(2, 33, requires_grad=True)
        gate, up = (one.detach().clone().requires_grad_() for one in weight.chunk(2))
        one, two = gemm_swiglu(x, weight), gemm_swiglu(x, gate, up)
        self.assert_same([one], [two])
        d_out = torch.randn_like(one)
        dx, d_weight = torch.autograd.grad(one, (x, weight), d_out)
        gradients = torch.autograd.grad(two, (x, gate, up), d_out)
        self.assert_same((dx, d_weight), (gradients[0], torch.cat(gradients[1:])))

    def test_leading_axes(self):
        x, weight, norm_weight = self.draw(2, 3, 4)
        run = lambda x: gemm_swiglu(x, weight, norm_weight=norm_weight, rstd=inverse_rms(x))  # noqa: E731
        expected = run(x.reshape(24, d))
        for leading in ((24,), (2, 12), (2, 3, 4), (2, 3, 2, 2), (1, 2, 3, 2, 2)):
            self.assert_same([run(x.reshape(*leading, d))], [expected.view(*leading, F)])
        self.assert_same([run(x[0, 0, 0])], [expected[0]])
        for leading in ((0,), (2, 0), (0, 3)):
            self.assertEqual(run(torch.zeros(*leading, d)).shape, (*leading, F))

    def test_no_rows_and_no_columns_have_gradients_of_zero(self):
        for rows, columns in ((0, 2 * F), (5, 0)):
            leaves = self.draw(rows, requires_grad=True)
            x, weight, norm_weight = (leaves[0], leaves[1].detach()[:columns].requires_grad_(), leaves[2])
            gemm_swiglu(x, weight, norm_weight=norm_weight).sum().backward()
            for leaf in (x, weight, norm_weight):
                self.assertEqual((leaf.grad.shape, leaf.grad.abs().sum()), (leaf.shape, 0))

    def test_strides(self):
        x, weight, _ = self.draw(6, 7)
        expected = [gemm_swiglu(x, weight)]
        wide = torch.zeros(6, 7, d + 3)
        wide[..., :d] = x
        for other in (wide[..., :d], x.transpose(0, 1).contiguous().transpose(0, 1), x.mT.contiguous().mT):
            self.assert_same([gemm_swiglu(other, weight)], expected)
        self.assert_same([gemm_swiglu(x, weight.T.contiguous().T)], expected)


class Autograd(GemmSwigluCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        leaves = self.draw(2, 33, requires_grad=True)
        d_out = torch.randn(2, 33, F)
        run = lambda x, weight, norm_weight: gemm_swiglu(x, weight, norm_weight=norm_weight)  # noqa: E731
        everything = torch.autograd.grad(run(*leaves), leaves, d_out)
        for i, expected in enumerate(everything):
            inputs = [leaf.detach().requires_grad_(i == j) for j, leaf in enumerate(leaves)]
            (gradient,) = torch.autograd.grad(run(*inputs), inputs[i], d_out)
            self.assert_same([gradient], [expected])

    def test_what_is_kept(self):
        """Two slopes and the norm's rstd, where it is not given, and nothing without a gradient."""
        x, weight, norm_weight = self.draw(2, 33, dtype=torch.bfloat16)
        self.assertIsNone(gemm_swiglu(x, weight).grad_fn)
        saved = OPS["gemm_swiglu_forward"].saved
        slopes = {name: (torch.bfloat16, (66, F)) for name in ("gate_slope", "up_slope")}
        x.requires_grad_()
        for options, expected in (
            ({}, slopes),
            ({"norm_weight": norm_weight}, slopes | {"kept_rstd": (torch.float32, (66,))}),
            ({"norm_weight": norm_weight, "rstd": torch.ones(2, 33)}, slopes),
        ):
            node = gemm_swiglu(x, weight, **options).grad_fn.next_functions[0][0]
            tensors = dict(zip(saved.names, node.saved_tensors, strict=False))  # numbers follow
            kept = {name: tensors[name] for name in saved.outputs}
            self.assertEqual(
                {name: (one.dtype, tuple(one.shape)) for name, one in kept.items() if one is not None}, expected
            )

    def test_a_given_rstd_gets_no_gradient(self):
        x, weight, norm_weight = self.draw(5, requires_grad=True)
        rstd = inverse_rms(x).detach().requires_grad_()
        gemm_swiglu(x, weight, norm_weight=norm_weight, rstd=rstd).sum().backward()
        self.assertIsNone(rstd.grad)
        self.assertIsNotNone(x.grad)

    def test_no_second_derivative(self):
        x, weight, _ = self.draw(5, requires_grad=True)
        (dx,) = torch.autograd.grad(gemm_swiglu(x, weight).sum(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, r"tandem\.ops\.gemm_swiglu has no second derivative"):
            dx.sum().backward()

    def test_checkpoints(self):
        leaves = self.draw(2, 33, requires_grad=True)
        run = lambda x, weight, norm_weight: gemm_swiglu(x, weight, norm_weight=norm_weight)  # noqa: E731
        expected = torch.autograd.grad(run(*leaves).sum(), leaves)
        out = torch.utils.checkpoint.checkpoint(run, *leaves, use_reentrant=False)
        self.assert_same(torch.autograd.grad(out.sum(), leaves), expected)


class Transforms(GemmSwigluCase):
    def test_grad(self):
        leaves = self.draw(2, 7)
        loss = lambda x, weight, norm_weight: gemm_swiglu(x, weight, norm_weight=norm_weight).square().sum()  # noqa: E731
        got = torch.func.grad(loss, (0, 1, 2))(*leaves)
        leaves = [one.requires_grad_() for one in leaves]
        self.assert_same(got, torch.autograd.grad(loss(*leaves), leaves))

    def test_vmap(self):
        x, weight, norm_weight = self.draw(3, 5)
        run = lambda x, weight, rstd: gemm_swiglu(x, weight, norm_weight=norm_weight, rstd=rstd)  # noqa: E731
        rstd = inverse_rms(x)
        expected = run(x, weight, rstd)
        self.assert_same([torch.vmap(run, (0, None, 0))(x, weight, rstd)], [expected])
        weights = torch.stack([weight, 2 * weight, -weight])
        got = torch.vmap(run)(x, weights, rstd)
        self.assert_same(got, [run(*items) for items in zip(x, weights, rstd, strict=True)])
        loss = lambda weight, x: gemm_swiglu(x, weight, norm_weight=norm_weight).sum()  # noqa: E731
        got = torch.vmap(torch.func.grad(loss), (None, 0))(weight, x)
        self.assert_same([got], [torch.stack([torch.func.grad(loss)(weight, one) for one in x])])

    def test_forward_mode(self):
        x, weight, _ = self.draw(5)
        gate, up = weight.chunk(2)
        tangent = torch.randn_like(up)
        out, moved = torch.func.jvp(lambda up: gemm_swiglu(x, gate, up), (up,), (tangent,))
        self.assert_same([out, moved], [gemm_swiglu(x, gate, up), gemm_swiglu(x, gate, tangent)])
        with self.assertRaisesRegex(NotImplementedError, r"\[gemm_swiglu\] has no forward-mode derivative by x"):
            torch.func.jvp(lambda x: gemm_swiglu(x, weight), (x,), (x,))


class Compile(GemmSwigluCase):
    def test_opcheck(self):
        x, weight, norm_weight = self.draw(5)
        gate, up = weight.chunk(2)
        for keeps in (False, True):
            torch.library.opcheck(RAW, (x, gate, up, 1.0, norm_weight, EPS, None, keeps, keeps, keeps))
        rstd = inverse_rms(x)
        torch.library.opcheck(RAW, (x, gate, up, None, norm_weight, None, rstd, False, False, False))
        leaves = [one.detach().clone().requires_grad_() for one in (x, gate, up)]
        torch.library.opcheck(RAW, (*leaves, 3.0, None, None, None, False, False, False))

    def test_one_graph_for_any_number_of_rows(self):
        def layer(x, weight, norm_weight):
            return gemm_swiglu(torch.nn.functional.silu(x), weight, norm_weight=norm_weight, eps=EPS) * 2

        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for leading in ((2, 33), (3, 5), (2, 128)):
            leaves = self.draw(*leading, requires_grad=True)
            got, expected = compiled(*leaves), layer(*leaves)
            self.assert_same([got], [expected])
            d_out = torch.randn_like(expected)
            self.assert_same(torch.autograd.grad(got, leaves, d_out), torch.autograd.grad(expected, leaves, d_out))

    def test_fakes(self):
        x, weight, norm_weight = self.draw(2, 33, dtype=torch.bfloat16)
        real = gemm_swiglu(x, weight, norm_weight=norm_weight)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = gemm_swiglu(*map(mode.from_tensor, (x, weight)), norm_weight=mode.from_tensor(norm_weight))
        self.assertEqual((fake.shape, fake.stride(), fake.dtype), (real.shape, real.stride(), real.dtype))
        self.assertEqual(gemm_swiglu(x.to("meta"), weight.to("meta")).shape, real.shape)

    def test_cuda_is_refused_without_its_kernels(self):
        if not tandem.cuda_unavailable_reason():
            self.skipTest("there is a device")
        with torch._subclasses.FakeTensorMode():
            x, weight = torch.empty(5, d, device="cuda"), torch.empty(2 * F, d, device="cuda")
            with self.assertRaisesRegex(ValueError, r"x must have dtype bf16 or fp16 on cuda:0, got fp32"):
                gemm_swiglu(x, weight)

    def test_autocast(self):
        x, weight, norm_weight = self.draw(2, 33)
        expected = gemm_swiglu(x.bfloat16(), weight.bfloat16(), norm_weight=norm_weight)
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_same([gemm_swiglu(x, weight, norm_weight=norm_weight)], [expected])


class Direct(GemmSwigluCase):
    def test_plain_tensors_go_past_the_dispatcher(self):
        op = OPS["gemm_swiglu_forward"]
        x, weight, norm_weight = self.draw(5, dtype=torch.bfloat16)
        for keeps in (False, True):
            given = (x, *weight.chunk(2), 2.0, norm_weight, None, None, keeps, keeps, keeps)
            results = op.run_directly(*given)
            self.assertIsNot(results, NotImplemented)
            for one, other in zip(results, op.raw(*given), strict=True):
                self.assertEqual(one is None, other is None)
                if one is not None:
                    self.assert_same([one], [other])


class Arguments(GemmSwigluCase):
    def test_refusals(self):
        x, weight, norm_weight = self.draw(5, dtype=torch.bfloat16)
        gate, up = weight.chunk(2)
        for error, text, arguments, options in (
            (TypeError, "[gemm_swiglu] x must be a torch.Tensor, got list", ([1], weight), {}),
            (TypeError, "[gemm_swiglu] weight must be a torch.Tensor, got str", (x, "a"), {}),
            (TypeError, "[gemm_swiglu] up_weight must be a torch.Tensor, got int", (x, gate, 3), {}),
            (
                ValueError,
                "[gemm_swiglu] activation must be one of silu, gelu, gelu_tanh, relu, got swish",
                (x, weight),
                {"activation": "swish"},
            ),
            (
                ValueError,
                f"[gemm_swiglu] weight must have shape [2F,d] without up_weight, got [{2 * F - 1}, {d}]",
                (x, weight[1:]),
                {},
            ),
            (
                ValueError,
                f"[gemm_swiglu_forward] gate_weight must have shape [F,d] = [{F},{d}], got [{F},{d - 1}]",
                (x, weight[:, 1:]),
                {},
            ),
            (
                ValueError,
                f"[gemm_swiglu_forward] up_weight must have shape [F,d] = [{F},{d}], got [{F - 1},{d}]",
                (x, gate, up[1:]),
                {},
            ),
            (
                ValueError,
                "[gemm_swiglu_forward] gate_weight must have dtype bf16, got fp32",
                (x, weight.float()),
                {},
            ),
            (
                ValueError,
                "[gemm_swiglu_forward] norm_weight must have dtype bf16 or fp32, got fp16",
                (x, weight),
                {"norm_weight": norm_weight.half()},
            ),
            (ValueError, "[gemm_swiglu_forward] eps needs norm_weight", (x, weight), {"eps": EPS}),
            (
                ValueError,
                "[gemm_swiglu_forward] eps must not be negative, got -1.000000",
                (x, weight),
                {"norm_weight": norm_weight, "eps": -1.0},
            ),
            (
                ValueError,
                "[gemm_swiglu_forward] eps must not be given beside rstd, which has it",
                (x, weight),
                {"norm_weight": norm_weight, "eps": EPS, "rstd": torch.ones(5)},
            ),
            (
                ValueError,
                "[gemm_swiglu_forward] rstd needs norm_weight",
                (x, weight),
                {"rstd": torch.ones(5)},
            ),
            (
                ValueError,
                "[gemm_swiglu_forward] rstd must have dtype fp32, got bf16",
                (x, weight),
                {"norm_weight": norm_weight, "rstd": torch.ones(5, dtype=torch.bfloat16)},
            ),
            (
                ValueError,
                "[gemm_swiglu] rstd must have x's shape without its last axis, [5], got [5, 1]",
                (x, weight),
                {"norm_weight": norm_weight, "rstd": torch.ones(5, 1)},
            ),
        ):
            with self.subTest(text), self.assertRaises(error) as caught:
                gemm_swiglu(*arguments, **options)
            self.assertEqual(str(caught.exception), text)


if __name__ == "__main__":
    unittest.main()

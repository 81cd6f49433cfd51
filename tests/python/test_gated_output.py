"""tandem.ops.gated_output: against fp64 and torch's own layers, and as a citizen of torch. On a GPU: test_cuda.py."""

import unittest

import tandem
import torch
from reference import relative_rms
from tandem._registration import OPS
from tandem.ops import gated_output

FORWARD = torch.ops.tandem.gated_output_forward.default
BACKWARD = torch.ops.tandem.gated_output_backward.default
d_in, d, WIDTH, EPS = 48, 40, 16, 1e-5
OUTPUT_TOLERANCE = {torch.bfloat16: 3.2e-3, torch.float16: 4e-4, torch.float32: 1e-6, torch.float64: 1e-14}
GRADIENT_TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 2e-6, torch.float64: 1e-13}

# Of each chain: the tensors beside o and weight, and what is no tensor.
CHAINS = {
    "product": ("", {}),
    "bias": ("bias", {}),
    "gate": ("gate", {}),
    "silu": ("gate residual", {"gate_activation": "silu"}),
    "gla": (
        "gate group_norm_weight residual norm_weight",
        {"gate_activation": "silu", "group_eps": EPS, "norm": "rms_norm", "eps": EPS},
    ),
    "mamba2": (
        "gate full_norm_weight residual norm_weight",
        {"gate_activation": "silu", "group_eps": EPS, "norm_behind_gate": True, "norm": "rms_norm"},
    ),
    "groups": (
        "gate full_norm_weight bias residual norm_weight norm_bias",
        {
            "gate_activation": "sigmoid",
            "group_width": WIDTH,
            "norm_behind_gate": True,
            "norm": "layer_norm",
            "eps": EPS,
        },
    ),
    "no_gate": ("group_norm_weight residual", {"norm": "layer_norm"}),
    "no_weights": ("residual bias", {"norm": "rms_norm", "eps": EPS}),
}


class Rounded(torch.autograd.Function):
    """fp64 rounded to a dtype, as a and the sum are; its gradient is that of no rounding."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).double()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def definition(
    o,
    weight,
    gate=None,
    gate_activation=None,
    group_norm_weight=None,
    group_width=None,
    group_eps=None,
    norm_behind_gate=False,
    bias=None,
    residual=None,
    norm=None,
    norm_weight=None,
    norm_bias=None,
    eps=None,
):
    """out and sum in fp64."""
    dtype, y = o.dtype, o.double()
    activate = {None: lambda g: g, "silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid}[gate_activation]
    f = 1 if gate is None else activate(gate.double())
    if norm_behind_gate:
        y, f = y * f, 1
    if group_norm_weight is not None:
        groups = y.unflatten(-1, (-1, group_width or len(group_norm_weight)))
        groups = groups * (groups.square().mean(-1, keepdim=True) + (1e-6 if group_eps is None else group_eps)).rsqrt()
        y = groups.flatten(-2) * group_norm_weight.double().repeat(y.shape[-1] // len(group_norm_weight))
    total = Rounded.apply(y * f, dtype) @ weight.double().T
    for one in (bias, residual):
        total = total if one is None else total + one.double()
    if norm is None:
        return total, total
    total = Rounded.apply(total, dtype)
    centred = total - total.mean(-1, keepdim=True) if norm == "layer_norm" else total
    out = centred * (centred.square().mean(-1, keepdim=True) + (1e-6 if eps is None else eps)).rsqrt()
    out = out if norm_weight is None else out * norm_weight.double()
    return out if norm_bias is None else out + norm_bias.double(), total


class GatedOutputCase(unittest.TestCase):
    device = "cpu"
    dtypes = tuple(OUTPUT_TOLERANCE)

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def draw(self, chain, *leading, dtype=None, vector_dtype=None, requires_grad=False, width=WIDTH):
        """The tensors of a chain, and its options."""
        dtype = dtype or (torch.float32 if self.device == "cpu" else torch.bfloat16)

        def normal(*shape, by=1.0, around=0.0, dtype=dtype):
            x = around + by * torch.randn(*shape, dtype=torch.float64)
            return x.to(dtype).to(self.device).requires_grad_(requires_grad)

        vector = {"dtype": vector_dtype or dtype}
        makers = {
            "o": lambda: normal(*leading, d_in),
            "weight": lambda: normal(d, d_in, by=d_in**-0.5),
            "gate": lambda: normal(*leading, d_in),
            "group_norm_weight": lambda: normal(width, by=0.25, around=1, **vector),
            "full_norm_weight": lambda: normal(d_in, by=0.25, around=1, **vector),
            "bias": lambda: normal(d, **vector),
            "residual": lambda: normal(*leading, d),
            "norm_weight": lambda: normal(d, by=0.25, around=1, **vector),
            "norm_bias": lambda: normal(d, **vector),
        }
        names, options = CHAINS[chain]
        tensors = {name: makers[name]() for name in ("o", "weight", *names.split())}
        if "full_norm_weight" in tensors:
            tensors["group_norm_weight"] = tensors.pop("full_norm_weight")
        return tensors, options

    def assert_same(self, got, expected):
        for one, other in zip(got, expected, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertTrue(torch.equal(one, other))


def both(tensors, options):
    """out and, where there is a norm, sum."""
    if options.get("norm") is None:
        return (gated_output(**tensors, **options),)
    return gated_output(**tensors, **options, return_sum=True)


def gradients_of(results, tensors, cotangents):
    return torch.autograd.grad(results, list(tensors.values()), cotangents)


class Values(GatedOutputCase):
    def test_outputs_and_gradients(self):
        for dtype in self.dtypes:
            for vector_dtype in {dtype, torch.float64 if dtype == torch.float64 else torch.float32}:
                for chain in CHAINS:
                    with self.subTest(chain, dtype=dtype, vector_dtype=vector_dtype):
                        tensors, options = self.draw(
                            chain, 3, 67, dtype=dtype, vector_dtype=vector_dtype, requires_grad=True
                        )
                        got = both(tensors, options)
                        expected = definition(**tensors, **options)[: len(got)]
                        for one, other in zip(got, expected, strict=True):
                            self.assertEqual((one.shape, one.dtype), ((3, 67, d), dtype))
                            self.assertTrue(one.is_contiguous())
                            self.assertLess(relative_rms(one, other), OUTPUT_TOLERANCE[dtype])
                        cotangents = [torch.randn_like(one) for one in got]
                        found = gradients_of(got, tensors, cotangents)
                        defined = gradients_of(expected, tensors, [one.double() for one in cotangents])
                        for (name, leaf), one, other in zip(tensors.items(), found, defined, strict=True):
                            self.assertEqual((one.dtype, one.shape), (leaf.dtype, leaf.shape), name)
                            self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype], name)

    def test_same_bits_again(self):
        for chain in CHAINS:
            with self.subTest(chain):
                tensors, options = self.draw(chain, 300, requires_grad=True)
                cotangents = [torch.randn_like(one) for one in both(tensors, options)]

                def results(tensors=tensors, options=options, cotangents=cotangents):
                    got = both(tensors, options)
                    return [*got, *gradients_of(got, tensors, cotangents)]

                expected = results()
                for _ in range(3):
                    self.assert_same(results(), expected)

    def test_the_returned_rstd(self):
        for chain, centres in (("gla", False), ("groups", True)):
            tensors, options = self.draw(chain, 3, 67)
            out, total, rstd = gated_output(**tensors, **options, return_sum=True, return_rstd=True)
            wide = total.double()
            square = wide.var(-1, correction=0) if centres else wide.square().mean(-1)
            self.assertEqual((rstd.shape, rstd.dtype), ((3, 67), torch.float32))
            self.assertLess(relative_rms(rstd, (square + EPS).rsqrt()), 1e-6)
            alone = gated_output(**tensors, **options, return_rstd=True)
            self.assert_same(alone, (out, rstd))
            self.assert_same(gated_output(**tensors, **options, return_sum=True), (out, total))

    def test_strides(self):
        tensors, options = self.draw("gla", 6, 7)
        expected = both(tensors, options)

        def check(**changed):
            got = both({**tensors, **changed}, options)
            if self.device == "cpu":
                return self.assert_same(got, expected)
            # Rows that begin anywhere are added up in another order there.
            for one, other in zip(got, expected, strict=True):
                self.assertLess(relative_rms(one, other.double()), OUTPUT_TOLERANCE[one.dtype])

        for name in ("o", "gate", "residual"):
            x = tensors[name]
            wide = torch.zeros(6, 7, x.shape[-1] + 3, dtype=x.dtype, device=x.device)
            wide[..., : x.shape[-1]] = x
            check(**{name: wide[..., : x.shape[-1]]})
            check(**{name: x.transpose(0, 1).contiguous().transpose(0, 1)})
            check(**{name: x.mT.contiguous().mT})
        check(weight=tensors["weight"].T.contiguous().T)

    def test_an_expanded_cotangent(self):
        tensors, options = self.draw("silu", 6, 7, requires_grad=True)
        (out,) = both(tensors, options)
        ones = torch.ones_like(out)
        expected = gradients_of(out, tensors, ones)
        self.assert_same(gradients_of(both(tensors, options), tensors, [ones[:1, :1, :1].expand_as(out)]), expected)

    def test_no_rows_have_gradients_of_zero(self):
        for chain in ("product", "gla", "groups", "silu", "bias"):
            tensors, options = self.draw(chain, 0, requires_grad=True)
            sum(one.sum() for one in both(tensors, options)).backward()
            for name, leaf in tensors.items():
                self.assertEqual((leaf.grad.shape, leaf.grad.abs().sum()), (leaf.shape, 0), f"{chain} {name}")


class Layers(GatedOutputCase):
    def test_torchs_own(self):
        functions = torch.nn.functional
        tensors, options = self.draw("gla", 2, 33, requires_grad=True)
        heads = tensors["o"].unflatten(-1, (-1, WIDTH))
        normed = functions.rms_norm(heads, (WIDTH,), tensors["group_norm_weight"], EPS).flatten(-2)
        total = functions.linear(normed * functions.silu(tensors["gate"]), tensors["weight"]) + tensors["residual"]
        expected = functions.rms_norm(total, (d,), tensors["norm_weight"], EPS), total
        got = both(tensors, options)
        torch.testing.assert_close(got, expected)
        cotangents = [torch.randn_like(one) for one in got]
        torch.testing.assert_close(
            gradients_of(got, tensors, cotangents), gradients_of(expected, tensors, cotangents), rtol=1e-4, atol=1e-5
        )

    def test_torchs_own_layer_norm(self):
        functions = torch.nn.functional
        tensors, options = self.draw("groups", 2, 33, requires_grad=True)
        heads = (tensors["o"] * torch.sigmoid(tensors["gate"])).unflatten(-1, (-1, WIDTH))
        normed = functions.rms_norm(heads, (WIDTH,), None, 1e-6).flatten(-2) * tensors["group_norm_weight"]
        total = functions.linear(normed, tensors["weight"], tensors["bias"]) + tensors["residual"]
        expected = functions.layer_norm(total, (d,), tensors["norm_weight"], tensors["norm_bias"], EPS), total
        got = both(tensors, options)
        torch.testing.assert_close(got, expected)
        cotangents = [torch.randn_like(one) for one in got]
        torch.testing.assert_close(
            gradients_of(got, tensors, cotangents), gradients_of(expected, tensors, cotangents), rtol=1e-4, atol=1e-5
        )

    def test_rstd_for_the_next_op(self):
        """The gradient through a given rstd is part of that by the sum."""
        tensors, options = self.draw("no_weights", 33, dtype=torch.float64, requires_grad=True)
        next_weight, norm_weight = torch.randn(8, d, dtype=torch.float64), 1 + torch.rand(d, dtype=torch.float64)
        _, total, rstd = gated_output(**tensors, **options, return_sum=True, return_rstd=True)
        got = tandem.ops.rms_norm_gemm(total, norm_weight, next_weight, rstd=rstd)
        (total,) = both({**tensors}, {})
        expected = tandem.ops.rms_norm_gemm(total, norm_weight, next_weight, eps=EPS)
        torch.testing.assert_close(got, expected)
        d_out = torch.randn_like(got)
        torch.testing.assert_close(gradients_of(got, tensors, d_out), gradients_of(expected, tensors, d_out))

    def test_gradcheck(self):
        for chain in CHAINS:
            with self.subTest(chain):
                tensors, options = self.draw(chain, 2, dtype=torch.float64)
                few = {"o": 8, "gate": 8, "residual": 3, "weight": 8, "bias": 3, "norm_weight": 3, "norm_bias": 3}
                few["group_norm_weight"] = 8 if chain in ("mamba2", "groups") else 4
                tensors = {name: x[..., : few[name]].contiguous() for name, x in tensors.items()}
                tensors["weight"] = tensors["weight"][:3].contiguous()
                options = {**options, **({"group_width": 4} if "group_width" in options else {})}
                leaves = [one.requires_grad_() for one in tensors.values()]

                def check(*leaves, names=tuple(tensors), options=options):
                    return both(dict(zip(names, leaves, strict=True)), options)

                self.assertTrue(torch.autograd.gradcheck(check, leaves))

    def test_the_defaults(self):
        tensors, _ = self.draw("gla", 5)
        tensors["o"] *= 1e-3
        tensors["residual"] *= 1e-3
        named = {"norm": "rms_norm", "gate_activation": "silu"}
        self.assert_same(
            [gated_output(**tensors, **named)],
            [gated_output(**tensors, **named, group_width=WIDTH, group_eps=1e-6, eps=1e-6, norm_behind_gate=False)],
        )

    def test_a_weight_per_group_or_per_column(self):
        tensors, options = self.draw("gla", 5)
        everywhere = {**tensors, "group_norm_weight": tensors["group_norm_weight"].repeat(d_in // WIDTH)}
        self.assert_same(both(everywhere, {**options, "group_width": WIDTH}), both(tensors, options))
        one_group = both(everywhere, options)
        self.assertFalse(torch.equal(one_group[0], both(tensors, options)[0]))

    def test_leading_axes(self):
        tensors, options = self.draw("gla", 2, 3, 4)
        run = lambda *leading: gated_output(  # noqa: E731
            **{n: x.reshape(*leading, x.shape[-1]) if x.dim() == 4 else x for n, x in tensors.items()},
            **options,
            return_sum=True,
            return_rstd=True,
        )
        expected = run(24)
        for leading in ((2, 12), (2, 3, 4), (2, 3, 2, 2), (1, 2, 3, 2, 2)):
            got = run(*leading)
            self.assertEqual(got[2].shape, leading)
            self.assert_same(got, [one.view(*leading, *one.shape[1:]) for one in expected])
        first = {name: x[0, 0, 0] if x.dim() == 4 else x for name, x in tensors.items()}
        got = gated_output(**first, **options, return_sum=True, return_rstd=True)
        self.assert_same(got, [one[0] for one in expected])
        for leading in ((0,), (2, 0), (0, 3)):
            self.assertEqual(gated_output(torch.zeros(*leading, d_in), tensors["weight"]).shape, (*leading, d))


class Autograd(GatedOutputCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        for chain in ("gla", "groups", "bias"):
            tensors, options = self.draw(chain, 2, 33, requires_grad=True)
            cotangents = [torch.randn_like(one) for one in both(tensors, options)]
            everything = gradients_of(both(tensors, options), tensors, cotangents)
            for wanted, expected in zip(tensors, everything, strict=True):
                alone = {name: x.detach().requires_grad_(name == wanted) for name, x in tensors.items()}
                (gradient,) = torch.autograd.grad(both(alone, options), alone[wanted], cotangents)
                self.assert_same([gradient], [expected])

    def test_the_residuals_gradient_is_no_copy(self):
        for needs_all in (False, True):
            o, weight = torch.randn(5, d_in), torch.randn(d, d_in)
            residual = torch.randn(5, d, requires_grad=True)
            inputs = [residual, *(x.requires_grad_() for x in (o, weight) if needs_all)]
            cotangent = torch.randn(5, d)
            gradients = torch.autograd.grad(gated_output(o, weight, residual=residual), inputs, cotangent)
            self.assertEqual(gradients[0].data_ptr(), cotangent.data_ptr())
            if needs_all:
                self.assertTrue(torch.allclose(gradients[1], cotangent @ weight.detach(), atol=1e-5))

    def test_out_and_sum_have_gradients_of_their_own(self):
        tensors, options = self.draw("gla", 33, dtype=torch.float64, requires_grad=True)
        d_out, d_sum = torch.randn(2, 33, d, dtype=torch.float64)
        leaves = list(tensors.values())
        one = torch.autograd.grad(both(tensors, options)[0], leaves, d_out)
        other = torch.autograd.grad(both(tensors, options)[1], leaves, d_sum, allow_unused=True)
        together = gradients_of(both(tensors, options), tensors, [d_out, d_sum])
        for name, a, b, c in zip(tensors, one, other, together, strict=True):
            torch.testing.assert_close(a + (0 if b is None else b), c, msg=name)

    def test_what_is_kept(self):
        """Of a norm sum and its statistics, of groups their rstd, a for the weight's gradient alone; nothing without
        a gradient."""
        saved = OPS["gated_output_forward"].saved
        bf16, fp32 = torch.bfloat16, torch.float32
        statistics = {"sum": (bf16, (66, d)), "rstd": (fp32, (66,))}
        for chain, expected in (
            ("product", {}),
            ("silu", {}),
            ("gla", {**statistics, "group_rstd": (fp32, (66, d_in // WIDTH))}),
            ("mamba2", {**statistics, "group_rstd": (fp32, (66, 1))}),
            ("no_weights", statistics),
            ("no_gate", {**statistics, "mean": (fp32, (66,)), "group_rstd": (fp32, (66, d_in // WIDTH))}),
        ):
            tensors, options = self.draw(chain, 2, 33, dtype=bf16)
            self.assertIsNone(gated_output(**tensors, **options).grad_fn)
            for wanted in ("o", "weight"):
                leaves = {name: x.detach().requires_grad_(name == wanted) for name, x in tensors.items()}
                node = gated_output(**leaves, **options).grad_fn.next_functions[0][0]
                kept = dict(zip(saved.names, node.saved_tensors, strict=False))  # numbers follow
                kept = {name: kept[name] for name in saved.outputs}
                makes_a = wanted == "weight" and ("gate" in tensors or "group_norm_weight" in tensors)
                with self.subTest(chain, wanted=wanted):
                    self.assertEqual(
                        {name: (one.dtype, tuple(one.shape)) for name, one in kept.items() if one is not None},
                        {**expected, **({"gated": (bf16, (66, d_in))} if makes_a else {})},
                    )

    def test_rstd_has_no_gradient(self):
        tensors, options = self.draw("gla", 5, requires_grad=True)
        out, rstd = gated_output(**tensors, **options, return_rstd=True)
        self.assertTrue(out.requires_grad)
        self.assertFalse(rstd.requires_grad)

    def test_no_second_derivative(self):
        tensors, options = self.draw("gla", 5, requires_grad=True)
        (d_o,) = torch.autograd.grad(gated_output(**tensors, **options).sum(), tensors["o"], create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, r"tandem\.ops\.gated_output has no second derivative"):
            d_o.sum().backward()

    def test_checkpoints(self):
        tensors, options = self.draw("gla", 2, 33, requires_grad=True)
        names = list(tensors)
        run = lambda *leaves: both(dict(zip(names, leaves, strict=True)), options)  # noqa: E731
        expected = gradients_of(run(*tensors.values())[0].sum(), tensors, None)
        out = torch.utils.checkpoint.checkpoint(run, *tensors.values(), use_reentrant=False)[0]
        self.assert_same(gradients_of(out.sum(), tensors, None), expected)


class Transforms(GatedOutputCase):
    def test_grad(self):
        tensors, options = self.draw("groups", 2, 7)
        names = list(tensors)

        def loss(*leaves):
            return sum(one.square().sum() for one in both(dict(zip(names, leaves, strict=True)), options))

        got = torch.func.grad(loss, tuple(range(len(names))))(*tensors.values())
        leaves = [one.requires_grad_() for one in tensors.values()]
        self.assert_same(got, torch.autograd.grad(loss(*leaves), leaves))

    def test_vmap(self):
        tensors, options = self.draw("gla", 3, 5)

        def run(o, gate, residual, weight):
            return both({**tensors, "o": o, "gate": gate, "residual": residual, "weight": weight}, options)

        rows = [tensors[name] for name in ("o", "gate", "residual")]
        weight = tensors["weight"]
        expected = run(*rows, weight)
        self.assert_same(torch.vmap(run, (0, 0, 0, None))(*rows, weight), expected)
        weights = torch.stack([weight, 2 * weight, -weight])
        got = torch.vmap(run)(*rows, weights)
        items = [run(*item) for item in zip(*rows, weights, strict=True)]
        self.assert_same(got, [torch.stack(one) for one in zip(*items, strict=True)])
        loss = lambda weight, *rows: sum(one.sum() for one in run(*rows, weight))  # noqa: E731
        got = torch.vmap(torch.func.grad(loss), (None, 0, 0, 0))(weight, *rows)
        expected = [torch.func.grad(loss)(weight, *item) for item in zip(*rows, strict=True)]
        self.assert_same([got], [torch.stack(expected)])

    def test_forward_mode(self):
        for chain, ways in (
            ("silu", (["weight", "residual"], ["o"], ["o", "residual"])),
            ("bias", (["bias"], ["weight", "bias"], ["o", "bias"])),
        ):
            tensors, options = self.draw(chain, 5, dtype=torch.float64)
            for way in ways:
                with self.subTest(chain, way=way):
                    primals = tuple(tensors[name] for name in way)
                    tangents = tuple(torch.randn_like(x) for x in primals)

                    def f(*values, tensors=tensors, options=options, way=way):
                        return both({**tensors, **dict(zip(way, values, strict=True))}, options)[0]

                    out, moved = torch.func.jvp(f, primals, tangents)
                    self.assert_same([out], [f(*primals)])
                    # Exact: in these inputs the output is linear.
                    expected = f(*(x + dx for x, dx in zip(primals, tangents, strict=True))) - out
                    torch.testing.assert_close(moved, expected)
        for chain, names, text in (
            ("silu", ["gate"], "by gate together, only by some of: bias, residual, weight; bias, o, residual"),
            ("silu", ["o", "weight"], "by o, weight together, only by some of"),
            ("gla", ["weight"], r"by weight together\. Reverse mode is"),
        ):
            tensors, options = self.draw(chain, 5)
            primals = tuple(tensors[name] for name in names)
            f = lambda *x: both({**tensors, **dict(zip(names, x, strict=True))}, options)  # noqa: B023, E731
            with (
                self.subTest(chain, names=names),
                self.assertRaisesRegex(NotImplementedError, r"\[gated_output\] has no forward-mode derivative " + text),
            ):
                torch.func.jvp(f, primals, primals)
        tensors, options = self.draw("no_gate", 5)
        with self.assertRaisesRegex(NotImplementedError, "has no forward-mode derivative by o together, only by some"):
            torch.func.jvp(lambda o: both({**tensors, "o": o}, {}), (tensors["o"],), (tensors["o"],))


class Compile(GatedOutputCase):
    def raw(self, tensors, options, keeps=False):
        names = (None, "silu", "sigmoid")
        numbers = {
            "gate_activation": float(names.index(options.get("gate_activation"))),
            "group_width": None,
            "norm": float((None, "layer_norm", "rms_norm").index(options.get("norm"))),
            "norm_behind_gate": float(options.get("norm_behind_gate", False)),
        }
        if "group_norm_weight" in tensors:
            numbers["group_width"] = float(options.get("group_width", len(tensors["group_norm_weight"])))
        given = {**tensors, **options, **numbers}
        kept = {"output_gated", "output_group_rstd"} if "group_norm_weight" in tensors else set()
        kept |= {"output_sum", "output_rstd"} if options.get("norm") else set()
        kept |= {"output_mean"} if options.get("norm") == "layer_norm" else set()
        return [
            (keeps and name in kept) if name.startswith("output_") else given.get(name)
            for name in OPS["gated_output_forward"].table.arguments
        ]

    def test_opcheck(self):
        for chain in ("silu", "gla", "groups"):
            with self.subTest(chain):
                tensors, options = self.draw(chain, 5)
                torch.library.opcheck(FORWARD, self.raw(tensors, options, keeps=True))
                leaves, options = self.draw(chain, 5, requires_grad=True)
                torch.library.opcheck(FORWARD, self.raw(leaves, options))

    def test_opcheck_of_the_backward(self):
        tensors, options = self.draw("groups", 5)
        arguments = self.raw(tensors, options, keeps=True)
        given = dict(zip(OPS["gated_output_forward"].table.arguments, arguments, strict=True))
        kept = dict(zip(("out", "sum", "mean", "rstd", "gated", "group_rstd"), FORWARD(*arguments), strict=True))
        given |= kept | {"d_out": torch.randn(5, d), "d_sum": None}
        table = OPS["gated_output_backward"].table
        wanted = [True if name.startswith("wants_") else given[name] for name in table.arguments]
        torch.library.opcheck(BACKWARD, wanted)

    def test_one_graph_for_any_number_of_rows(self):
        _, options = CHAINS["gla"]
        names = ("o", "weight", *CHAINS["gla"][0].split())

        def layer(*leaves):
            tensors = dict(zip(names, leaves, strict=True))
            tensors["o"] = torch.nn.functional.silu(tensors["o"])
            out, total = gated_output(**tensors, **options, return_sum=True)
            return out * 2, total

        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for leading in ((2, 33), (3, 5), (2, 128)):
            tensors, _ = self.draw("gla", *leading, requires_grad=True)
            got, expected = compiled(*tensors.values()), layer(*tensors.values())
            self.assert_same(got, expected)
            cotangents = [torch.randn_like(one) for one in expected]
            self.assert_same(gradients_of(got, tensors, cotangents), gradients_of(expected, tensors, cotangents))

    def test_fakes(self):
        tensors, options = self.draw("groups", 2, 33, dtype=torch.bfloat16)
        named = {**options, "return_sum": True, "return_rstd": True}
        real = gated_output(**tensors, **named)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = gated_output(**{name: mode.from_tensor(x) for name, x in tensors.items()}, **named)
            with self.assertRaisesRegex(ValueError, r"group_width must be a divisor of d_in = 48, got 5"):
                gated_output(
                    **{name: mode.from_tensor(x) for name, x in tensors.items()}, **{**named, "group_width": 5}
                )
        for one, other in zip(fake, real, strict=True):
            self.assertEqual((one.shape, one.stride(), one.dtype), (other.shape, other.stride(), other.dtype))
        meta = gated_output(**{name: x.to("meta") for name, x in tensors.items()}, **named)
        self.assertEqual([one.shape for one in meta], [one.shape for one in real])

    def test_cuda_is_refused_without_its_kernels(self):
        if not tandem.cuda_unavailable_reason():
            self.skipTest("there is a device")
        with torch._subclasses.FakeTensorMode():
            o, weight = torch.empty(5, d_in, device="cuda"), torch.empty(d, d_in, device="cuda")
            with self.assertRaisesRegex(ValueError, r"o must have dtype bf16 or fp16 on cuda:0, got fp32"):
                gated_output(o, weight)

    def test_autocast(self):
        tensors, options = self.draw("groups", 2, 33)
        cast = ("o", "weight", "gate", "residual")
        expected = both({name: x.bfloat16() if name in cast else x for name, x in tensors.items()}, options)
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_same(both(tensors, options), expected)


class Direct(GatedOutputCase):
    def test_plain_tensors_go_past_the_dispatcher(self):
        for chain in CHAINS:
            tensors, options = self.draw(chain, 5, dtype=torch.bfloat16)
            for keeps in (False, True):
                arguments = tuple(Compile.raw(self, tensors, options, keeps))
                self.assert_direct("gated_output_forward", arguments)

    def test_a_backward_too(self):
        for chain in CHAINS:
            tensors, options = self.draw(chain, 5, dtype=torch.bfloat16)
            arguments = tuple(Compile.raw(self, tensors, options, True))
            given = dict(zip(OPS["gated_output_forward"].table.arguments, arguments, strict=True))
            names = ("out", "sum", "mean", "rstd", "gated", "group_rstd")
            given |= dict(zip(names, FORWARD(*arguments), strict=True))
            d_out = torch.randn(5, d, dtype=torch.bfloat16)
            given |= {"d_out": d_out, "d_sum": d_out if options.get("norm") else None}
            backward = OPS["gated_output_backward"]
            given |= {row.flag: given[row.source] is not None for row in backward.table.rows.values() if row.flag}
            self.assert_direct("gated_output_backward", tuple(given[name] for name in backward.table.arguments))

    def assert_direct(self, name, arguments):
        op = OPS[name]
        results = op.run_directly(*arguments)
        self.assertIsNot(results, NotImplemented)
        for one, other in zip(results, op.raw(*arguments), strict=True):
            self.assertEqual(one is None, other is None)
            if one is not None:
                self.assert_same([one], [other])


class Arguments(GatedOutputCase):
    def test_refusals(self):
        tensors, _ = self.draw("groups", 2, 3, dtype=torch.bfloat16)
        o, weight, gate, h, bias, residual, norm_weight, norm_bias = (
            tensors[name]
            for name in (
                "o", "weight", "gate", "group_norm_weight", "bias", "residual", "norm_weight", "norm_bias",
            )
        )  # fmt: skip
        rows = o[0]
        for error, text, arguments, options in (
            (TypeError, "[gated_output] o must be a torch.Tensor, got list", ([1], weight), {}),
            (TypeError, "[gated_output] weight must be a torch.Tensor, got str", (o, "a"), {}),
            (TypeError, "[gated_output] gate must be a torch.Tensor, got int", (o, weight, 3), {}),
            (TypeError, "[gated_output] residual must be a torch.Tensor, got int", (o, weight), {"residual": 3}),
            (
                ValueError,
                "[gated_output] gate_activation must be silu, sigmoid or None, got swish",
                (o, weight, gate),
                {"gate_activation": "swish"},
            ),
            (
                ValueError,
                "[gated_output] norm must be layer_norm, rms_norm or None, got batch_norm",
                (o, weight),
                {"norm": "batch_norm"},
            ),
            (ValueError, "[gated_output] return_sum needs norm", (o, weight), {"return_sum": True}),
            (ValueError, "[gated_output] return_rstd needs norm", (o, weight), {"return_rstd": True}),
            (
                ValueError,
                "[gated_output] gate must have o's leading axes, [2, 3], got [3, 2, 48]",
                (o, weight, gate.reshape(3, 2, d_in)),
                {},
            ),
            (
                ValueError,
                "[gated_output] residual must have o's leading axes, [2, 3], got [6, 40]",
                (o, weight),
                {"residual": residual.reshape(6, d)},
            ),
            (
                ValueError,
                "[gated_output_forward] gate must have shape [M,d_in] = [3,48], got [3,40]",
                (rows, weight, gate[0, :, :d]),
                {},
            ),
            (
                ValueError,
                "[gated_output_forward] weight must have dtype bf16, got fp32",
                (rows, weight.float()),
                {},
            ),
            (
                ValueError,
                "[gated_output_forward] bias must have dtype bf16 or fp32, got fp16",
                (rows, weight),
                {"bias": bias.half()},
            ),
            (
                ValueError,
                "[gated_output_forward] residual must have shape [M,d] = [3,40], got [2,40]",
                (rows, weight),
                {"residual": residual[0, :2]},
            ),
            (
                ValueError,
                "[gated_output_forward] gate_activation needs gate",
                (rows, weight),
                {"gate_activation": "silu"},
            ),
            (
                ValueError,
                "[gated_output_forward] group_width must be a divisor of d_in = 48, got 7",
                (rows, weight),
                {"group_norm_weight": h[:7]},
            ),
            (
                ValueError,
                "[gated_output_forward] group_width needs group_norm_weight",
                (rows, weight),
                {"group_width": 16},
            ),
            (
                ValueError,
                "[gated_output_forward] group_norm_weight must have shape [group_width] = [16] or [d_in] = [48], "
                "got [24]",
                (rows, weight),
                {"group_norm_weight": h[:24], "group_width": 16},
            ),
            (
                ValueError,
                "[gated_output_forward] group_eps needs group_norm_weight",
                (rows, weight),
                {"group_eps": EPS},
            ),
            (
                ValueError,
                "[gated_output_forward] norm_behind_gate needs gate",
                (rows, weight),
                {"group_norm_weight": h, "norm_behind_gate": True},
            ),
            (
                ValueError,
                "[gated_output_forward] norm_weight is of layer_norm and rms_norm, got norm = none",
                (rows, weight),
                {"norm_weight": norm_weight},
            ),
            (
                ValueError,
                "[gated_output_forward] norm_bias is of layer_norm, got norm = rms_norm",
                (rows, weight),
                {"norm": "rms_norm", "norm_bias": norm_bias},
            ),
            (
                ValueError,
                "[gated_output_forward] eps must not be negative, got -1.000000",
                (rows, weight),
                {"norm": "rms_norm", "eps": -1.0},
            ),
        ):
            with self.subTest(text), self.assertRaises(error) as caught:
                gated_output(*arguments, **options)
            self.assertEqual(str(caught.exception), text)


if __name__ == "__main__":
    unittest.main()

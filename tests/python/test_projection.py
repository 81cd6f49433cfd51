"""tandem.ops.projection on the CPU: against fp64 and torch's own layers, and as a citizen of torch."""

import itertools
import unittest

import tandem
import torch
from reference import relative_rms
from tandem._registration import OPS
from tandem.ops import Segment, projection

RAW = torch.ops.tandem.projection_forward.default
d = 40
SEGMENTS = (
    Segment(32),
    Segment(48, "l2_normalize", head_width=16),
    Segment(24, "silu"),
    Segment(16, "sigmoid", dtype=torch.float32),
    Segment(16, "log_sigmoid", dtype=torch.float32),
    Segment(16, "log_sigmoid", divisor=2),
    Segment(16, "softplus", min=0.3, max=1.5),
    Segment(0, "silu"),
)
OUTPUT_TOLERANCE = {torch.bfloat16: 2e-3, torch.float16: 2.5e-4, torch.float32: 1e-6, torch.float64: 1e-14}
GRADIENT_TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-6, torch.float64: 1e-13}


def activate(z, segment):
    """As torch's own functions have it, in z's dtype."""
    functions = torch.nn.functional
    if segment.activation == "silu":
        return functions.silu(z)
    if segment.activation == "sigmoid":
        return z.sigmoid()
    if segment.activation == "log_sigmoid":
        return functions.logsigmoid(z) / (16 if segment.divisor is None else segment.divisor)
    if segment.activation == "softplus":
        y = functions.softplus(z, threshold=1e9)
        return y if segment.min is None and segment.max is None else y.clamp(segment.min, segment.max)
    if segment.activation == "l2_normalize":
        heads = z.unflatten(-1, (-1, segment.head_width))
        return (heads / (heads.square().sum(-1, keepdim=True) + 1e-6).sqrt()).flatten(-2)
    return z


def definition(x, weights, segments, biases=None):
    """The outputs in fp64."""
    biases = [None] * len(segments) if biases is None else biases
    outputs = []
    for weight, segment, bias in zip(weights, segments, biases, strict=True):
        z = x.double() @ weight.double().T
        outputs.append(activate(z if bias is None else z + bias.double(), segment))
    return outputs


def columns_of(segments):
    return [segment.columns for segment in segments]


class ProjectionCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def draw(self, *leading, segments=SEGMENTS, dtype=torch.float32, bias_dtype=None, requires_grad=False):
        """x, one weight and one bias."""
        N = sum(columns_of(segments))
        x = torch.randn(*leading, d, dtype=torch.float64).to(dtype)
        weight = (torch.randn(N, d, dtype=torch.float64) / d**0.5).to(dtype)
        bias = torch.randn(N, dtype=torch.float64).to(bias_dtype or dtype)
        return tuple(tensor.requires_grad_(requires_grad) for tensor in (x, weight, bias))

    def assert_outputs(self, got, expected, segments, dtype):
        for one, other, segment in zip(got, expected, segments, strict=True):
            self.assertEqual(one.shape, other.shape)
            self.assertTrue(one.is_contiguous())
            wide = segment.dtype is not None and dtype != torch.float64
            self.assertEqual(one.dtype, torch.float32 if wide else dtype)
            self.assertLess(relative_rms(one, other), OUTPUT_TOLERANCE[one.dtype], segment)

    def assert_same(self, got, expected):
        for one, other in zip(got, expected, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertTrue(torch.equal(one, other))


class Values(ProjectionCase):
    def test_outputs_and_gradients(self):
        for dtype in OUTPUT_TOLERANCE:
            for fp32_bias in (False, True):
                with self.subTest(dtype=dtype, fp32_bias=fp32_bias):
                    bias_dtype = torch.float32 if fp32_bias and dtype != torch.float64 else dtype
                    leaves = self.draw(3, 67, dtype=dtype, bias_dtype=bias_dtype, requires_grad=True)
                    x, weight, bias = leaves
                    got = projection(x, weight, SEGMENTS, bias)
                    split = columns_of(SEGMENTS)
                    expected = definition(x, weight.split(split), SEGMENTS, bias.split(split))
                    self.assert_outputs(got, expected, SEGMENTS, dtype)
                    d_out = [torch.randn_like(y) for y in got]
                    gradients = torch.autograd.grad(got, leaves, d_out)
                    defined = torch.autograd.grad(expected, leaves, [y.double() for y in d_out])
                    for one, leaf, other in zip(gradients, leaves, defined, strict=True):
                        self.assertEqual((one.dtype, one.shape), (leaf.dtype, leaf.shape))
                        self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype])

    def test_far_from_zero(self):
        """Where a sigmoid is nearly 0 or 1 the gradients are as good as elsewhere."""
        for activation, around in itertools.product(("silu", "sigmoid", "log_sigmoid", "softplus"), (-8, -4, 4, 8)):
            with self.subTest(activation, around=around):
                segments = (Segment(64, activation),)
                x, weight, _ = self.draw(67, segments=segments, dtype=torch.bfloat16)
                leaves = [x.requires_grad_(), (weight / 4).requires_grad_(), torch.full((64,), float(around))]
                leaves[2].requires_grad_()
                got = projection(leaves[0], leaves[1], segments, leaves[2])
                expected = definition(leaves[0], leaves[1:2], segments, leaves[2:])
                d_out = torch.randn_like(got[0])
                gradients = torch.autograd.grad(got, leaves, d_out)
                defined = torch.autograd.grad(expected, leaves, d_out.double())
                for one, other in zip(gradients, defined, strict=True):
                    self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[torch.bfloat16])

    def test_gradcheck(self):
        """At its defaults, each activation, with and without a bias."""
        for segment in (
            Segment(8),
            Segment(8, "silu"),
            Segment(8, "sigmoid", dtype=torch.float32),
            Segment(8, "log_sigmoid"),
            Segment(8, "softplus"),
            Segment(8, "softplus", min=0.5, max=1.0),
            Segment(16, "l2_normalize", head_width=8),
        ):
            with self.subTest(segment.activation):
                segments = (segment, Segment(3))
                x, weight, bias = self.draw(2, 3, segments=segments, dtype=torch.float64)
                x, weight = (one[..., :6].contiguous().requires_grad_() for one in (x, weight))
                bias.requires_grad_()
                for biases in ((bias,), ()):
                    check = lambda x, weight, *bias, segments=segments: projection(x, weight, segments, *bias)  # noqa: E731
                    self.assertTrue(torch.autograd.gradcheck(check, (x, weight, *biases)))

    def test_one_weight_is_as_good_as_several(self):
        x, weight, bias = self.draw(2, 33, requires_grad=True)
        split = columns_of(SEGMENTS)
        weights = [one.detach().clone().requires_grad_() for one in weight.split(split)]
        biases = [one.detach().clone().requires_grad_() for one in bias.split(split)]
        one, several = projection(x, weight, SEGMENTS, bias), projection(x, weights, SEGMENTS, biases)
        self.assert_same(one, several)
        d_out = [torch.randn_like(y) for y in one]
        dx, d_weight, d_bias = torch.autograd.grad(one, (x, weight, bias), d_out)
        gradients = torch.autograd.grad(several, (x, *weights, *biases), d_out)
        self.assert_same((dx, d_weight, d_bias), (gradients[0], torch.cat(gradients[1:9]), torch.cat(gradients[9:])))

    def test_some_biases(self):
        x, weight, bias = self.draw(5)
        split = columns_of(SEGMENTS)
        biases = [one if i % 2 else None for i, one in enumerate(bias.split(split))]
        zeros = [one if i % 2 else torch.zeros_like(one) for i, one in enumerate(bias.split(split))]
        self.assert_same(projection(x, weight, SEGMENTS, biases), projection(x, weight, SEGMENTS, zeros))

    def test_leading_axes(self):
        x, weight, _ = self.draw(2, 3, 4)
        expected = projection(x.reshape(24, d), weight, SEGMENTS)
        for leading in ((24,), (2, 12), (2, 3, 4), (2, 3, 2, 2), (1, 2, 3, 2, 2)):
            got = projection(x.reshape(*leading, d), weight, SEGMENTS)
            self.assert_same(got, [y.view(*leading, y.shape[-1]) for y in expected])
        row = projection(x[0, 0, 0], weight, SEGMENTS)
        self.assert_same(row, [y[0] for y in expected])
        for leading in ((0,), (2, 0), (0, 3)):
            nothing = projection(torch.zeros(*leading, d), weight, SEGMENTS)
            self.assertEqual([y.shape for y in nothing], [(*leading, one.columns) for one in SEGMENTS])

    def test_no_rows_have_gradients_of_zero(self):
        x, weight, bias = self.draw(0, requires_grad=True)
        sum(y.sum() for y in projection(x, weight, SEGMENTS, bias)).backward()
        for leaf in (x, weight, bias):
            self.assertEqual((leaf.grad.shape, leaf.grad.abs().sum()), (leaf.shape, 0))

    def test_strides(self):
        x, weight, bias = self.draw(6, 7)
        expected = projection(x, weight, SEGMENTS, bias)
        wide = torch.zeros(6, 7, d + 3)
        wide[..., :d] = x
        for other in (wide[..., :d], x.transpose(0, 1).contiguous().transpose(0, 1), x.mT.contiguous().mT):
            self.assert_same(projection(other, weight, SEGMENTS, bias), expected)
        self.assert_same(projection(x, weight.T.contiguous().T, SEGMENTS, bias), expected)


class Autograd(ProjectionCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        leaves = self.draw(2, 33)
        d_out = [torch.randn(2, 33, one.columns) for one in SEGMENTS]
        for leaf in leaves:
            leaf.requires_grad_()
        everything = torch.autograd.grad(projection(leaves[0], leaves[1], SEGMENTS, leaves[2]), leaves, d_out)
        for i, expected in enumerate(everything):
            inputs = [leaf.detach().requires_grad_(i == j) for j, leaf in enumerate(leaves)]
            outputs = projection(inputs[0], inputs[1], SEGMENTS, inputs[2])
            with torch.profiler.profile() as profile:
                (gradient,) = torch.autograd.grad(outputs, inputs[i], d_out)
            self.assertTrue(torch.equal(gradient, expected))
            self.assertIn("tandem::projection_backward", {event.name for event in profile.events()})

    def test_an_output_that_the_loss_does_not_use(self):
        leaves = self.draw(2, 33, requires_grad=True)
        for used in range(len(SEGMENTS) - 1):
            outputs = projection(leaves[0], leaves[1], SEGMENTS, leaves[2])
            d_out = torch.randn_like(outputs[used])
            got = torch.autograd.grad(outputs[used], leaves, d_out)
            outputs = projection(leaves[0], leaves[1], SEGMENTS, leaves[2])
            zeros = [torch.zeros_like(y) for y in outputs]
            zeros[used] = d_out
            self.assert_same(got, torch.autograd.grad(outputs, leaves, zeros))

    def test_what_is_kept(self):
        """Of each segment what its gradient needs, and nothing without one."""
        x, weight, _ = self.draw(2, 33, dtype=torch.bfloat16)
        outputs = projection(x, weight, SEGMENTS)
        self.assertTrue(all(y.grad_fn is None for y in outputs))
        saved = OPS["projection_forward"].saved
        outputs = projection(x.requires_grad_(), weight, SEGMENTS)
        node = outputs[0].grad_fn.next_functions[0][0]
        tensors = dict(zip(saved.names, node.saved_tensors, strict=False))  # numbers follow
        kept = {name: tensors[name] for name in saved.outputs}
        self.assertEqual(
            {name: (one.dtype, tuple(one.shape)) for name, one in kept.items() if one is not None},
            {
                "out1": (torch.bfloat16, (66, 48)),
                "inverse_norm1": (torch.float32, (66, 3)),
                "slope2": (torch.bfloat16, (66, 24)),
                "slope3": (torch.float32, (66, 16)),
                "slope4": (torch.float32, (66, 16)),
                "slope5": (torch.bfloat16, (66, 16)),
                "slope6": (torch.bfloat16, (66, 16)),
                "slope7": (torch.bfloat16, (66, 0)),
            },
        )

    def test_no_second_derivative(self):
        x, weight, _ = self.draw(5, requires_grad=True)
        (dx,) = torch.autograd.grad(projection(x, weight, SEGMENTS)[2].sum(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, r"tandem\.ops\.projection has no second derivative"):
            dx.sum().backward()

    def test_checkpoints(self):
        x, weight, bias = leaves = self.draw(2, 33, requires_grad=True)
        expected = torch.autograd.grad(sum(y.sum() for y in projection(x, weight, SEGMENTS, bias)), leaves)
        run = lambda *tensors: projection(*tensors[:2], SEGMENTS, tensors[2])  # noqa: E731
        outputs = torch.utils.checkpoint.checkpoint(run, *leaves, use_reentrant=False)
        self.assert_same(torch.autograd.grad(sum(y.sum() for y in outputs), leaves), expected)


class Transforms(ProjectionCase):
    def test_grad(self):
        x, weight, bias = self.draw(2, 7)
        loss = lambda x, weight, bias: sum(y.square().sum() for y in projection(x, weight, SEGMENTS, bias))  # noqa: E731
        got = torch.func.grad(loss, (0, 1, 2))(x, weight, bias)
        leaves = [one.requires_grad_() for one in (x, weight, bias)]
        self.assert_same(got, torch.autograd.grad(loss(*leaves), leaves))

    def test_vmap(self):
        x, weight, bias = self.draw(3, 5)
        expected = projection(x, weight, SEGMENTS, bias)
        self.assert_same(torch.vmap(lambda x: projection(x, weight, SEGMENTS, bias))(x), expected)
        weights = torch.stack([weight, 2 * weight, -weight])
        got = torch.vmap(lambda x, weight: projection(x, weight, SEGMENTS, bias))(x, weights)
        each = [projection(one, other, SEGMENTS, bias) for one, other in zip(x, weights, strict=True)]
        self.assert_same(got, [torch.stack(ys) for ys in zip(*each, strict=True)])
        loss = lambda weight, x: sum(y.sum() for y in projection(x, weight, SEGMENTS, bias))  # noqa: E731
        got = torch.vmap(torch.func.grad(loss), (None, 0))(weight, x)
        self.assert_same(got, torch.stack([torch.func.grad(loss)(weight, one) for one in x]))

    def test_forward_mode_is_refused(self):
        x, weight, _ = self.draw(5)
        with self.assertRaisesRegex(NotImplementedError, r"\[projection\] has no forward-mode derivative by x"):
            torch.func.jvp(lambda x: projection(x, weight, SEGMENTS), (x,), (x,))


class Compile(ProjectionCase):
    def test_opcheck(self):
        # activation0 = silu, head_width1 and activation1 = l2_normalize; slope, norm and an fp32 output asked for.
        table = OPS["projection_forward"].table
        x, weight, bias = self.draw(5, segments=(Segment(16), Segment(16)))
        given = dict.fromkeys(table.arguments)
        given |= {"x": x, "weight0": weight[:16], "bias0": bias[:16], "weight1": weight[16:]}
        given |= {"activation0": 1.0, "activation1": 5.0, "head_width1": 8.0}
        flags = ("output_slope0", "output_inverse_norm1", "fp32_out1")
        for asked in ((), flags):
            arguments = table.pack({**given, **dict.fromkeys(asked, True)}.values())
            torch.library.opcheck(RAW, arguments)
        given["x"] = x.clone().requires_grad_()
        given["weight1"] = weight[16:].clone().requires_grad_()
        torch.library.opcheck(RAW, table.pack(given.values()))

    def test_one_graph_for_any_number_of_rows(self):
        def layer(x, weight, bias):
            return [y * 2 for y in projection(torch.nn.functional.silu(x), weight, SEGMENTS, bias)]

        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for leading in ((2, 33), (3, 5), (2, 128)):
            leaves = self.draw(*leading, requires_grad=True)
            got, expected = compiled(*leaves), layer(*leaves)
            self.assert_same(got, expected)
            d_out = [torch.randn_like(y) for y in expected]
            self.assert_same(torch.autograd.grad(got, leaves, d_out), torch.autograd.grad(expected, leaves, d_out))

    def test_fakes(self):
        x, weight, bias = self.draw(2, 33, dtype=torch.bfloat16)
        real = projection(x, weight, SEGMENTS, bias)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = projection(*(mode.from_tensor(one) for one in (x, weight)), SEGMENTS, mode.from_tensor(bias))
        for one, other in zip(fake, real, strict=True):
            self.assertEqual((one.shape, one.stride(), one.dtype), (other.shape, other.stride(), other.dtype))
        meta = projection(x.to("meta"), weight.to("meta"), SEGMENTS)
        self.assertEqual([y.shape for y in meta], [y.shape for y in real])

    def test_cuda_is_refused_without_its_kernels(self):
        if not tandem.cuda_unavailable_reason():
            self.skipTest("there is a device")
        with torch._subclasses.FakeTensorMode():
            x = torch.empty(5, d, device="cuda")
            with self.assertRaisesRegex(ValueError, r"x must have dtype bf16 or fp16 on cuda:0, got fp32"):
                projection(x, torch.empty(16, d, device="cuda"), [Segment(16)])

    def test_autocast(self):
        x, weight, bias = self.draw(2, 33)
        expected = projection(x.bfloat16(), weight.bfloat16(), SEGMENTS, bias)
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_same(projection(x, weight, SEGMENTS, bias), expected)


class Direct(ProjectionCase):
    def test_plain_tensors_go_past_the_dispatcher(self):
        op, table = OPS["projection_forward"], OPS["projection_forward"].table
        x, weight, _ = self.draw(5, segments=(Segment(16), Segment(16)), dtype=torch.bfloat16)
        given = {name: False if name in table.flags else None for name in table.arguments}
        given |= {"x": x, "weight0": weight[:16], "weight1": weight[16:], "fp32_out0": True}
        given |= {"activation1": 5.0, "head_width1": 8.0, "output_inverse_norm1": True}
        results = op.run_directly(*given.values())
        self.assertIsNot(results, NotImplemented)
        for one, other in zip(results, op.raw(*given.values()), strict=True):
            self.assertEqual(one is None, other is None)
            if one is not None:
                self.assert_same([one], [other])


class Arguments(ProjectionCase):
    def refuses(self, error, text, *arguments):
        with self.assertRaises(error) as caught:
            projection(*arguments)
        self.assertEqual(str(caught.exception), text)

    def test_refusals(self):
        segments = (Segment(16), Segment(24, "silu"))
        x, weight, bias = self.draw(5, segments=segments, dtype=torch.bfloat16)
        several = list(weight.split([16, 24]))
        for error, text, *arguments in (
            (TypeError, "[projection] x must be a torch.Tensor, got list", [1], weight, segments),
            (TypeError, "[projection] weight0 must be a torch.Tensor, got str", x, ["a", several[1]], segments),
            (TypeError, "[projection] weight must be a torch.Tensor or one per segment, got int", x, 3, segments),
            (TypeError, "[projection] segments must be of tandem.ops.Segment, got int", x, weight, [16, 24]),
            (TypeError, "[projection] segments must be of tandem.ops.Segment, got list", x, weight, [[16, "silu"]]),
            (
                TypeError,
                "[projection] segments must be several of tandem.ops.Segment, got Segment",
                x,
                weight,
                segments[0],
            ),
            (ValueError, "[projection_forward] x must have shape [M,d], got []", x[0, 0], weight, segments),
            (ValueError, "[projection] segments must be 1 to 8, got 0", x, weight, []),
            (ValueError, "[projection] segments must be 1 to 8, got 9", x, weight, [Segment(1)] * 9),
            (
                ValueError,
                "[projection] weight must have shape [columns,d] = [40,d] for all segments, got [39, 40]",
                x,
                weight[1:],
                segments,
            ),
            (
                ValueError,
                "[projection] bias must have shape [columns] = [40] for all segments, got [40, 1]",
                x,
                weight,
                segments,
                bias[:, None],
            ),
            (ValueError, "[projection] weight must have a tensor per segment, 2, got 1", x, several[:1], segments),
            (ValueError, "[projection] weight[1] must have 24 rows, got [16, 40]", x, several[:1] * 2, segments),
            (
                ValueError,
                "[projection_forward] weight0 must have shape [C0,d] = [16,40], got [16,39]",
                x,
                weight[:, 1:],
                segments,
            ),
            (
                ValueError,
                "[projection_forward] weight0 must have dtype bf16, got fp32",
                x,
                weight.float(),
                segments,
            ),
            (
                ValueError,
                "[projection_forward] bias0 must have dtype bf16 or fp32, got fp16",
                x,
                weight,
                segments,
                bias.half(),
            ),
        ):
            with self.subTest(text):
                self.refuses(error, text, *arguments)

    def test_segments(self):
        for text, *arguments, options in (
            ("columns of a Segment must be an int, 0 or more, got -1", -1, {}),
            (
                "activation of a Segment must be one of none, silu, sigmoid, log_sigmoid, softplus, l2_normalize, "
                "got gelu",
                16,
                "gelu",
                {},
            ),
            ("dtype of a Segment must be None or torch.float32, got torch.float16", 16, {"dtype": torch.float16}),
            ("divisor of a Segment is of log_sigmoid, got silu", 16, "silu", {"divisor": 2}),
            ("divisor of a Segment must be finite and positive, got 0", 16, "log_sigmoid", {"divisor": 0}),
            ("max of a Segment must be finite, got inf", 16, "softplus", {"max": float("inf")}),
            ("min of a Segment must be at most max = 1, got 2", 16, "softplus", {"min": 2, "max": 1}),
            (
                "head_width of a Segment must be a multiple of 8 in [8,256] that divides columns = 16, got None",
                16,
                "l2_normalize",
                {},
            ),
            (
                "head_width of a Segment must be a multiple of 8 in [8,256] that divides columns = 16, got 24",
                16,
                "l2_normalize",
                {"head_width": 24},
            ),
        ):
            with self.subTest(text), self.assertRaises(ValueError) as caught:
                Segment(*arguments, **options)
            self.assertEqual(str(caught.exception), "[projection] " + text)


if __name__ == "__main__":
    unittest.main()

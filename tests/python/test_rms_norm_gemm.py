"""tandem.ops.rms_norm_gemm on the CPU: against fp64 and torch's own norm and layers, and as a citizen of torch."""

import itertools
import unittest

import tandem
import torch
from reference import relative_rms
from tandem._registration import OPS
from tandem.ops import rms_norm_gemm

RAW = torch.ops.tandem.rms_norm_gemm_forward.default
d = 40
COLUMNS = (32, 16, 0, 24)
OUTPUT_TOLERANCE = {torch.bfloat16: 3.2e-3, torch.float16: 4e-4, torch.float32: 1e-6, torch.float64: 1e-14}
GRADIENT_TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-6, torch.float64: 1e-13}


def definition(x, norm_weight, weights, biases=None, eps=1e-6):
    """The outputs in fp64, by torch's own functions."""
    n = torch.nn.functional.rms_norm(x.double(), (x.shape[-1],), norm_weight.double(), eps)
    biases = [None] * len(weights) if biases is None else biases
    return [
        torch.nn.functional.linear(n, weight.double(), None if bias is None else bias.double())
        for weight, bias in zip(weights, biases, strict=True)
    ]


class RmsNormGemmCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def draw(self, *leading, columns=COLUMNS, dtype=torch.float32, wide=None, requires_grad=False):
        """x, norm_weight, and for each segment a weight, then for each a bias; `wide`: of what may be fp32."""
        wide = dtype if wide is None else wide
        shapes = [((*leading, d), dtype), ((d,), wide)]
        shapes += [((count, d), dtype) for count in columns] + [((count,), wide) for count in columns]
        leaves = [torch.randn(shape, dtype=torch.float64).to(kind) for shape, kind in shapes]
        return [leaf.requires_grad_(requires_grad) for leaf in leaves]

    def call(self, leaves, **options):
        x, norm_weight, *rest = leaves
        count = len(rest) // 2
        return rms_norm_gemm(x, norm_weight, rest[:count], rest[count:], **options)

    def assert_same(self, got, expected):
        for one, other in zip(got, expected, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertTrue(torch.equal(one, other))


class Values(RmsNormGemmCase):
    def test_outputs_and_gradients(self):
        for dtype, eps in itertools.product(OUTPUT_TOLERANCE, (None, 0.0, 0.5)):
            for wide in {dtype, torch.float64 if dtype == torch.float64 else torch.float32}:
                with self.subTest(dtype=dtype, wide=wide, eps=eps):
                    leaves = self.draw(3, 67, dtype=dtype, wide=wide, requires_grad=True)
                    got = self.call(leaves, eps=eps, dtype=(None, torch.float32, None, None))
                    kinds = [dtype, wide if wide == torch.float64 else torch.float32, dtype, dtype]
                    expected = definition(*leaves[:2], leaves[2:6], leaves[6:], 1e-6 if eps is None else eps)
                    for one, other, kind in zip(got, expected, kinds, strict=True):
                        self.assertEqual((one.dtype, one.shape), (kind, other.shape))
                        self.assertTrue(one.is_contiguous())
                        self.assertLess(relative_rms(one, other), OUTPUT_TOLERANCE[dtype])
                    d_out = [torch.randn_like(y) for y in got]
                    gradients = torch.autograd.grad(got, leaves, d_out)
                    defined = torch.autograd.grad(expected, leaves, [y.double() for y in d_out])
                    for one, leaf, other in zip(gradients, leaves, defined, strict=True):
                        self.assertEqual((one.dtype, one.shape), (leaf.dtype, leaf.shape))
                        self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype])

    def test_gradcheck(self):
        """At its defaults, by everything that has a gradient."""
        for eps in (None, 0.1):
            leaves = [
                x[..., :6] if x.shape[-1] == d else x for x in self.draw(2, 3, columns=(5, 3), dtype=torch.float64)
            ]
            leaves = [x.contiguous().requires_grad_() for x in leaves]
            self.assertTrue(torch.autograd.gradcheck(lambda *leaves, eps=eps: self.call(leaves, eps=eps), leaves))
        x, norm_weight, weight, _, _, _ = leaves
        self.assertTrue(torch.autograd.gradcheck(rms_norm_gemm, (x, norm_weight, weight)))

    def test_one_weight_and_several(self):
        x, norm_weight, *rest = self.draw(5, columns=(16,))
        one = rms_norm_gemm(x, norm_weight, rest[0], rest[1])
        self.assert_same([one], rms_norm_gemm(x, norm_weight, rest[:1], rest[1:]))
        self.assert_same([one], [rms_norm_gemm(x, norm_weight, rest[0], (rest[1],))])
        x, norm_weight, *rest = self.draw(5)
        stacked = torch.cat(rest[:4])
        together = rms_norm_gemm(x, norm_weight, stacked.split(COLUMNS))
        self.assert_same(together, rms_norm_gemm(x, norm_weight, rest[:4]))
        self.assertLess(relative_rms(torch.cat(together, -1), rms_norm_gemm(x, norm_weight, stacked).double()), 1e-6)

    def test_some_biases(self):
        x, norm_weight, *rest = self.draw(5)
        some = [one if i % 2 else None for i, one in enumerate(rest[4:])]
        zeros = [one if i % 2 else torch.zeros_like(one) for i, one in enumerate(rest[4:])]
        self.assert_same(rms_norm_gemm(x, norm_weight, rest[:4], some), rms_norm_gemm(x, norm_weight, rest[:4], zeros))

    def test_output_dtypes(self):
        x, norm_weight, *rest = self.draw(5, dtype=torch.bfloat16)
        wide = rms_norm_gemm(x, norm_weight, rest[:4], dtype=torch.float32)
        narrow = rms_norm_gemm(x, norm_weight, rest[:4])
        self.assertTrue(all(y.dtype == torch.float32 for y in wide))
        self.assert_same([y.bfloat16() for y in wide], narrow)
        self.assert_same([rms_norm_gemm(x, norm_weight, rest[0], dtype=torch.float32)], wide[:1])

    def test_leading_axes(self):
        leaves = self.draw(2, 3, 4)
        x, others = leaves[0], leaves[1:]
        expected = self.call([x.reshape(24, d), *others])
        for leading in ((24,), (2, 12), (2, 3, 4), (1, 2, 3, 2, 2)):
            got = self.call([x.reshape(*leading, d), *others])
            self.assert_same(got, [y.view(*leading, y.shape[-1]) for y in expected])
        self.assert_same(self.call([x[0, 0, 0], *others]), [y[0] for y in expected])
        for leading in ((0,), (2, 0)):
            nothing = self.call([torch.zeros(*leading, d), *others])
            self.assertEqual([y.shape for y in nothing], [(*leading, count) for count in COLUMNS])

    def test_no_rows_have_gradients_of_zero(self):
        leaves = self.draw(0, requires_grad=True)
        sum(y.sum() for y in self.call(leaves)).backward()
        for leaf in leaves:
            self.assertEqual((leaf.grad.shape, leaf.grad.abs().sum()), (leaf.shape, 0))

    def test_strides(self):
        leaves = self.draw(6, 7)
        x, norm_weight, *rest = leaves
        expected = self.call(leaves)
        wide = torch.zeros(6, 7, d + 3)
        wide[..., :d] = x
        for other in (wide[..., :d], x.transpose(0, 1).contiguous().transpose(0, 1), x.mT.contiguous().mT):
            self.assert_same(self.call([other, norm_weight, *rest]), expected)
        self.assert_same(self.call([x, norm_weight, *(one.T.contiguous().T for one in rest[:4]), *rest[4:]]), expected)
        spread = torch.zeros(d, 2)
        spread[:, 0] = norm_weight
        self.assert_same(self.call([x, spread[:, 0], *rest]), expected)


class Rstd(RmsNormGemmCase):
    def test_is_that_of_x(self):
        """A given rstd gives the same values and, as it is x's own, the same gradients; none is its."""
        leaves = self.draw(3, 7, dtype=torch.float64, requires_grad=True)
        expected = self.call(leaves, eps=0.5)
        rstd = (leaves[0].detach().square().mean(-1) + 0.5).rsqrt().requires_grad_()
        got = self.call(leaves, rstd=rstd)
        for one, other in zip(got, expected, strict=True):
            if other.numel():
                self.assertLess(relative_rms(one, other), 1e-14)
        d_out = [torch.randn_like(y) for y in got]
        *gradients, by_rstd = torch.autograd.grad(got, [*leaves, rstd], d_out, allow_unused=True)
        self.assertIsNone(by_rstd)
        for one, other in zip(gradients, torch.autograd.grad(expected, leaves, d_out), strict=True):
            if other.numel():
                self.assertLess(relative_rms(one, other), 1e-13)

    def test_is_taken_as_it_is(self):
        x, norm_weight, weight, _ = self.draw(7, columns=(16,))
        ones = rms_norm_gemm(x, norm_weight, weight, rstd=torch.ones(7))
        self.assertLess(relative_rms(ones, (x * norm_weight).double() @ weight.double().T), 1e-6)

    def test_what_is_kept(self):
        """fp32 [M] where a gradient is required, and a given one in its place."""
        x, norm_weight, weight, _ = self.draw(2, 33, columns=(16,), dtype=torch.bfloat16)
        self.assertIsNone(rms_norm_gemm(x, norm_weight, weight).grad_fn)
        saved = OPS["rms_norm_gemm_forward"].saved
        rstd = torch.rand(2, 33) + 0.5
        for given in (None, rstd):
            y = rms_norm_gemm(x.clone().requires_grad_(), norm_weight, weight, rstd=given)
            node = y.grad_fn.next_functions[0][0]
            tensors = dict(zip(saved.names, node.saved_tensors, strict=False))  # numbers follow
            one, other = tensors["kept_rstd"], tensors["rstd"]
            self.assertIsNone(one if given is not None else other)
            kept = one if given is None else other
            self.assertEqual((kept.dtype, tuple(kept.shape)), (torch.float32, (66,)))
            if given is not None:
                self.assertTrue(torch.equal(kept, rstd.flatten()))


class Autograd(RmsNormGemmCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        leaves = self.draw(2, 33, requires_grad=True)
        d_out = [torch.randn(2, 33, count) for count in COLUMNS]
        everything = torch.autograd.grad(self.call(leaves), leaves, d_out)
        for i, expected in enumerate(everything):
            inputs = [leaf.detach().requires_grad_(i == j) for j, leaf in enumerate(leaves)]
            outputs = self.call(inputs)
            with torch.profiler.profile() as profile:
                (gradient,) = torch.autograd.grad(outputs, inputs[i], d_out)
            self.assertTrue(torch.equal(gradient, expected))
            self.assertIn("tandem::rms_norm_gemm_backward", {event.name for event in profile.events()})

    def test_an_output_that_the_loss_does_not_use(self):
        leaves = self.draw(2, 33, requires_grad=True)
        for used in (0, 1, 3):
            outputs = self.call(leaves)
            d_out = torch.randn_like(outputs[used])
            got = torch.autograd.grad(outputs[used], leaves, d_out)
            zeros = [torch.zeros_like(y) for y in outputs]
            zeros[used] = d_out
            self.assert_same(got, torch.autograd.grad(self.call(leaves), leaves, zeros))

    def test_no_second_derivative(self):
        leaves = self.draw(5, requires_grad=True)
        (dx,) = torch.autograd.grad(self.call(leaves)[0].sum(), leaves[0], create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, r"tandem\.ops\.rms_norm_gemm has no second derivative"):
            dx.sum().backward()

    def test_checkpoints(self):
        leaves = self.draw(2, 33, requires_grad=True)
        expected = torch.autograd.grad(sum(y.sum() for y in self.call(leaves)), leaves)
        outputs = torch.utils.checkpoint.checkpoint(lambda *leaves: self.call(leaves), *leaves, use_reentrant=False)
        self.assert_same(torch.autograd.grad(sum(y.sum() for y in outputs), leaves), expected)


class Transforms(RmsNormGemmCase):
    def test_grad(self):
        leaves = self.draw(2, 7)
        loss = lambda *leaves: sum(y.square().sum() for y in self.call(leaves))  # noqa: E731
        got = torch.func.grad(loss, tuple(range(len(leaves))))(*leaves)
        leaves = [one.requires_grad_() for one in leaves]
        self.assert_same(got, torch.autograd.grad(loss(*leaves), leaves))

    def test_vmap(self):
        leaves = self.draw(3, 5)
        x, norm_weight, *rest = leaves
        self.assert_same(torch.vmap(lambda x: self.call([x, norm_weight, *rest]))(x), self.call(leaves))
        rstd = torch.rand(3, 5)
        mapped = torch.vmap(lambda x, rstd: self.call([x, norm_weight, *rest], rstd=rstd))(x, rstd)
        self.assert_same(mapped, self.call(leaves, rstd=rstd))
        norms = torch.stack([norm_weight, 2 * norm_weight, -norm_weight])
        got = torch.vmap(lambda x, norm: self.call([x, norm, *rest]))(x, norms)
        each = [self.call([one, other, *rest]) for one, other in zip(x, norms, strict=True)]
        self.assert_same(got, [torch.stack(ys) for ys in zip(*each, strict=True)])
        loss = lambda weight, x: rms_norm_gemm(x, norm_weight, weight).sum()  # noqa: E731
        got = torch.vmap(torch.func.grad(loss), (None, 0))(rest[0], x)
        self.assert_same(got, torch.stack([torch.func.grad(loss)(rest[0], one) for one in x]))

    def test_forward_mode_is_refused(self):
        x, norm_weight, weight, _ = self.draw(5, columns=(16,))
        with self.assertRaisesRegex(NotImplementedError, r"\[rms_norm_gemm\] has no forward-mode derivative by x"):
            torch.func.jvp(lambda x: rms_norm_gemm(x, norm_weight, weight), (x,), (x,))


class Compile(RmsNormGemmCase):
    def test_opcheck(self):
        table = OPS["rms_norm_gemm_forward"].table
        x, norm_weight, weight, other, bias, _ = self.draw(5, columns=(16, 24))
        given = {name: False if name in table.flags else None for name in table.arguments}
        given |= {"x": x, "norm_weight": norm_weight, "weight0": weight, "bias0": bias, "weight1": other, "eps": 0.5}
        torch.library.opcheck(RAW, tuple(table.pack(given.values())))
        asked = {"output_kept_rstd": True, "fp32_out1": True}
        torch.library.opcheck(RAW, tuple(table.pack({**given, **asked}.values())))
        computed = {**given, **asked, "eps": None, "rstd": torch.rand(5)}
        torch.library.opcheck(RAW, tuple(table.pack(computed.values())))
        given["x"], given["weight1"] = x.clone().requires_grad_(), other.clone().requires_grad_()
        torch.library.opcheck(RAW, tuple(table.pack(given.values())))

    def test_one_graph_for_any_number_of_rows(self):
        def layer(*leaves):
            return [y * 2 for y in self.call([torch.nn.functional.silu(leaves[0]), *leaves[1:]], eps=1e-5)]

        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for leading in ((2, 33), (3, 5), (2, 128)):
            leaves = self.draw(*leading, requires_grad=True)
            got, expected = compiled(*leaves), layer(*leaves)
            self.assert_same(got, expected)
            d_out = [torch.randn_like(y) for y in expected]
            self.assert_same(torch.autograd.grad(got, leaves, d_out), torch.autograd.grad(expected, leaves, d_out))

    def test_a_given_rstd_in_a_graph(self):
        leaves = self.draw(2, 33)
        rstd = torch.rand(2, 33)
        layer = lambda rstd, *leaves: self.call(leaves, rstd=rstd)  # noqa: E731
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assert_same(compiled(rstd, *leaves), layer(rstd, *leaves))

    def test_fakes(self):
        leaves = self.draw(2, 33, dtype=torch.bfloat16)
        real = self.call(leaves, dtype=(None, torch.float32, None, None))
        with torch._subclasses.FakeTensorMode() as mode:
            fake = self.call([mode.from_tensor(one) for one in leaves], dtype=(None, torch.float32, None, None))
        for one, other in zip(fake, real, strict=True):
            self.assertEqual((one.shape, one.stride(), one.dtype), (other.shape, other.stride(), other.dtype))
        meta = self.call([one.to("meta") for one in leaves])
        self.assertEqual([y.shape for y in meta], [y.shape for y in real])

    def test_cuda_is_refused_without_its_kernels(self):
        if not tandem.cuda_unavailable_reason():
            self.skipTest("there is a device")
        with torch._subclasses.FakeTensorMode():
            x, norm_weight, weight, _ = (one.cuda() for one in self.draw(5, columns=(16,)))
            with self.assertRaisesRegex(ValueError, r"x must have dtype bf16 or fp16 on cuda:0, got fp32"):
                rms_norm_gemm(x, norm_weight, weight)

    def test_autocast(self):
        """The norm's weight, the biases and rstd stay fp32."""
        leaves = self.draw(2, 33)
        x, norm_weight, *rest = leaves
        expected = self.call([x.bfloat16(), norm_weight, *(one.bfloat16() for one in rest[:4]), *rest[4:]])
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_same(self.call(leaves), expected)


class Heads(RmsNormGemmCase):
    """Heads that end in a norm and a rotation: of queries and keys, and values that end in neither."""

    columns, width, pairs = (48, 24, 16), 24, 8
    head_width, rotates = (24, 24, None), (True, True, False)

    def draw_heads(self, *leading, dtype=torch.float32, requires_grad=False, normed=True):
        """x, norm_weight, three weights, three biases, and the norms' weights of two."""
        leaves = self.draw(*leading, columns=self.columns, dtype=dtype, requires_grad=requires_grad)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        norms = [torch.randn(self.width, dtype=wide).requires_grad_(requires_grad) for _ in range(2)] if normed else []
        return [*leaves, *norms]

    def tables(self, positions=200, dtype=torch.float32):
        angles = torch.arange(positions)[:, None] * 100.0 ** (-torch.arange(self.pairs) / self.pairs)
        return {"rope_cos": angles.cos().to(dtype), "rope_sin": angles.sin().to(dtype)}

    def call(self, leaves, **options):
        x, norm_weight, *rest = leaves
        given = {"head_width": self.head_width, "rotates": self.rotates, **options}
        if len(rest) > 6:
            given["head_norm_weight"] = (*rest[6:8], None)
        return rms_norm_gemm(x, norm_weight, rest[:3], rest[3:6], **given)

    def define(self, leaves, cos, sin, positions, layout, eps):
        """In fp64, by torch's own functions and the rotation of a complex number."""
        x, norm_weight, *rest = leaves
        outs = definition(x, norm_weight, rest[:3], rest[3:6])
        turn = torch.complex(cos.double(), sin.double())[positions][..., None, :]
        for i in (0, 1):
            y = outs[i].unflatten(-1, (-1, self.width))
            if len(rest) > 6:
                y = torch.nn.functional.rms_norm(y, (self.width,), rest[6 + i].double(), eps)
            first, last = y[..., : 2 * self.pairs], y[..., 2 * self.pairs :]
            axis = -2 if layout == "rotate_half" else -1
            pairs = first.unflatten(-1, (2, self.pairs) if layout == "rotate_half" else (self.pairs, 2))
            turned = torch.complex(*pairs.unbind(axis)) * turn
            first = torch.stack((turned.real, turned.imag), axis).flatten(-2)
            outs[i] = torch.cat((first, last), -1).flatten(-2)
        return outs

    def test_outputs_and_gradients(self):
        for dtype, layout, normed in itertools.product(OUTPUT_TOLERANCE, ("rotate_half", "interleaved"), (True, False)):
            with self.subTest(dtype=dtype, layout=layout, normed=normed):
                leaves = self.draw_heads(3, 67, dtype=dtype, requires_grad=True, normed=normed)
                tables = self.tables(dtype=torch.float64 if dtype == torch.float64 else torch.float32)
                eps = {"head_eps": (0.1, 0.1, None)} if normed else {}
                got = self.call(leaves, rope_layout=layout, **tables, **eps)
                positions = torch.arange(67).expand(3, 67)
                expected = self.define(leaves, *tables.values(), positions, layout, 0.1)
                for one, other in zip(got, expected, strict=True):
                    self.assertEqual((one.dtype, one.shape), (dtype, other.shape))
                    self.assertLess(relative_rms(one, other), OUTPUT_TOLERANCE[dtype])
                d_out = [torch.randn_like(y) for y in got]
                gradients = torch.autograd.grad(got, leaves, d_out)
                defined = torch.autograd.grad(expected, leaves, [y.double() for y in d_out])
                for one, leaf, other in zip(gradients, leaves, defined, strict=True):
                    self.assertEqual((one.dtype, one.shape), (leaf.dtype, leaf.shape))
                    self.assertLess(relative_rms(one, other.double()), GRADIENT_TOLERANCE[dtype])

    def test_gradcheck(self):
        leaves = self.draw_heads(2, 3, dtype=torch.float64)
        leaves = [x[..., :5].contiguous() if x.shape[-1] == d else x for x in leaves]
        leaves = [x.requires_grad_() for x in leaves]
        tables = self.tables(dtype=torch.float64)
        self.assertTrue(torch.autograd.gradcheck(lambda *leaves: self.call(leaves, head_eps=0.1, **tables)[:2], leaves))

    def test_positions(self):
        leaves, tables = self.draw_heads(2, 6), self.tables(6)
        expected = self.call(leaves, **tables)
        for kind in (torch.int32, torch.int64):
            given = torch.arange(6, dtype=kind).expand(2, 6)
            self.assert_same(self.call(leaves, rope_positions=given, **tables), expected)
            flat = [leaves[0].flatten(0, 1), *leaves[1:]]
            packed = self.call(flat, cu_seqlens=torch.tensor([0, 6, 12], dtype=kind), **tables)
            self.assert_same([y.view(2, 6, -1) for y in packed], expected)
        far = torch.tensor([[0, 1, 2, 3, 4, 2**40]] * 2)
        self.assert_same(self.call(leaves, rope_positions=far, **tables), expected)
        moved = self.call(leaves, rope_positions=torch.full((2, 6), 3), **tables)
        self.assertFalse(torch.equal(moved[0], expected[0]))
        self.assertTrue(torch.equal(moved[2], expected[2]))

    def test_one_of_these_for_all(self):
        x, norm_weight, *rest = self.draw_heads(5)
        tables = self.tables()
        one = rms_norm_gemm(
            x, norm_weight, rest[0], head_width=24, head_norm_weight=rest[6], head_eps=0.1, rotates=True, **tables
        )
        same = rms_norm_gemm(
            x, norm_weight, rest[:2], head_width=24, head_norm_weight=rest[6:8], head_eps=0.1, rotates=True, **tables
        )
        self.assert_same([one], same[:1])

    def test_no_rows(self):
        for leading in ((0,), (2, 0), (0, 3)):
            leaves = self.draw_heads(*leading, requires_grad=True)
            sum(y.sum() for y in self.call(leaves, **self.tables())).backward()
            for leaf in leaves:
                self.assertEqual((leaf.grad.shape, leaf.grad.abs().sum()), (leaf.shape, 0))

    def test_vmap(self):
        """Rows of items keep their positions."""
        tables = self.tables()
        for leading in ((3, 5), (3, 2, 5)):
            leaves = self.draw_heads(*leading)
            got = torch.vmap(lambda x, leaves=leaves: self.call([x, *leaves[1:]], **tables))(leaves[0])
            each = [self.call([x, *leaves[1:]], **tables) for x in leaves[0]]
            self.assert_same(got, [torch.stack(ys) for ys in zip(*each, strict=True)])

    def test_grad(self):
        leaves, tables = self.draw_heads(2, 7), self.tables()
        loss = lambda *leaves: sum(y.square().sum() for y in self.call(leaves, **tables))  # noqa: E731
        got = torch.func.grad(loss, tuple(range(len(leaves))))(*leaves)
        leaves = [one.requires_grad_() for one in leaves]
        self.assert_same(got, torch.autograd.grad(loss(*leaves), leaves))

    def test_opcheck(self):
        table = OPS["rms_norm_gemm_forward"].table
        x, norm_weight, weight, *rest = self.draw_heads(6)
        given = {name: False if name in table.flags else None for name in table.arguments}
        given |= {"x": x, "norm_weight": norm_weight, "weight0": weight, "head_width0": 24.0, "rotates0": True}
        given |= {"head_norm_weight0": rest[-1], "rope_length": 3.0, "rope_layout": 1.0, **self.tables()}
        torch.library.opcheck(RAW, tuple(table.pack(given.values())))
        asked = {"output_pre_norm0": True, "output_head_rstd0": True}
        torch.library.opcheck(RAW, tuple(table.pack({**given, **asked}.values())))
        given["x"], given["head_norm_weight0"] = x.clone().requires_grad_(), rest[-1].clone().requires_grad_()
        torch.library.opcheck(RAW, tuple(table.pack(given.values())))

    def test_in_a_graph(self):
        tables = self.tables()
        layer = lambda *leaves: self.call(leaves, **tables)  # noqa: E731
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
        for leading in ((2, 33), (3, 5), (3, 40)):
            leaves = self.draw_heads(*leading, requires_grad=True)
            got, expected = compiled(*leaves), layer(*leaves)
            self.assert_same(got, expected)
            d_out = [torch.randn_like(y) for y in expected]
            self.assert_same(torch.autograd.grad(got, leaves, d_out), torch.autograd.grad(expected, leaves, d_out))
        self.assertEqual(counter.frame_count, 1)  # whatever the length

    def test_fakes(self):
        leaves, tables = self.draw_heads(2, 33), self.tables()
        real = self.call(leaves, **tables)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = {name: mode.from_tensor(one) for name, one in tables.items()}
            fake = self.call([mode.from_tensor(one) for one in leaves], **fakes)
        for one, other in zip(fake, real, strict=True):
            self.assertEqual((one.shape, one.stride(), one.dtype), (other.shape, other.stride(), other.dtype))

    def test_autocast(self):
        leaves, tables = self.draw_heads(2, 33), self.tables()
        x, norm_weight, *rest = leaves
        expected = self.call([x.bfloat16(), norm_weight, *(one.bfloat16() for one in rest[:3]), *rest[3:]], **tables)
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_same(self.call(leaves, **tables), expected)

    def test_plain_tensors_go_past_the_dispatcher(self):
        op = OPS["rms_norm_gemm_forward"]
        x, norm_weight, weight, *rest = self.draw_heads(6, dtype=torch.bfloat16)
        given = {name: False if name in op.table.flags else None for name in op.table.arguments}
        given |= {"x": x, "norm_weight": norm_weight, "weight0": weight, "head_width0": 24.0, "rotates0": 1.0}
        given |= {"head_norm_weight0": rest[-1], "output_pre_norm0": True, "output_head_rstd0": True}
        given |= {"rope_positions": torch.arange(6, dtype=torch.int32), **self.tables()}
        arguments = tuple(given.values())
        results = op.run_directly(*arguments)
        self.assertIsNot(results, NotImplemented)
        for one, expected in zip(results, op.raw(*arguments), strict=True):
            self.assertEqual(one is None, expected is None)
            if one is not None:
                self.assert_same([one], [expected])

    def test_refusals(self):
        leaves, tables = self.draw_heads(2, 6), self.tables(6)
        forward = "[rms_norm_gemm_forward] "
        for text, options in (
            (
                "[rms_norm_gemm] rope_layout must be one of rotate_half, interleaved, got 'half'",
                {"rope_layout": "half"},
            ),
            ("[rms_norm_gemm] head_width must be one per weight, 3, got 2", {"head_width": (24, 24)}),
            (
                "[rms_norm_gemm] rope_positions must have shape [2, 6], as x has rows, got [12]",
                {"rope_positions": torch.arange(12)},
            ),
            (forward + "head_width0 must be a multiple of 8 in [8,256], got 20", {"head_width": (20, 24, None)}),
            (forward + "rotates1 needs head_width1", {"head_width": (24, None, None)}),
            (
                forward + "rope_cos must have a row for each of 6 positions, got 5",
                {name: one[:5] for name, one in tables.items()},
            ),
            (forward + "rope_cos needs rope_sin", {"rope_sin": None}),
            (
                forward + "rope_sin must have shape [P,J] = [6,8], got [6,7]",
                {"rope_sin": tables["rope_sin"][:, :7]},
            ),
        ):
            with self.subTest(text):
                with self.assertRaises(ValueError) as caught:
                    self.call(leaves[:8], **{**tables, **options})
                self.assertEqual(str(caught.exception), text)


class Direct(RmsNormGemmCase):
    def test_plain_tensors_go_past_the_dispatcher(self):
        op, table = OPS["rms_norm_gemm_forward"], OPS["rms_norm_gemm_forward"].table
        x, norm_weight, weight, other, *_ = self.draw(5, columns=(16, 24), dtype=torch.bfloat16)
        given = {name: False if name in table.flags else None for name in table.arguments}
        given |= {"x": x, "norm_weight": norm_weight, "weight0": weight, "weight1": other, "fp32_out0": True}
        for more in ({"output_kept_rstd": True}, {"rstd": torch.rand(5)}, {"eps": 0.5}):
            arguments = tuple({**given, **more}.values())
            results = op.run_directly(*arguments)
            self.assertIsNot(results, NotImplemented)
            for one, expected in zip(results, op.raw(*arguments), strict=True):
                self.assertEqual(one is None, expected is None)
                if one is not None:
                    self.assert_same([one], [expected])


class Arguments(RmsNormGemmCase):
    def refuses(self, error, text, *arguments, **options):
        with self.assertRaises(error) as caught:
            rms_norm_gemm(*arguments, **options)
        self.assertEqual(str(caught.exception), text)

    def test_refusals(self):
        x, norm, *rest = self.draw(2, 5, columns=(16, 24), dtype=torch.bfloat16)
        weights, biases = rest[:2], rest[2:]
        rstd = torch.rand(2, 5)
        forward = "[rms_norm_gemm_forward] "
        for error, text, arguments, options in (
            (TypeError, "[rms_norm_gemm] x must be a torch.Tensor, got list", ([1], norm, weights), {}),
            (TypeError, "[rms_norm_gemm] norm_weight must be a torch.Tensor, got NoneType", (x, None, weights), {}),
            (TypeError, "[rms_norm_gemm] weight must be a torch.Tensor or several, got int", (x, norm, 3), {}),
            (TypeError, "[rms_norm_gemm] weight1 must be a torch.Tensor, got str", (x, norm, [weights[0], "a"]), {}),
            (TypeError, "[rms_norm_gemm] rstd must be a torch.Tensor, got float", (x, norm, weights), {"rstd": 0.5}),
            (
                TypeError,
                "[rms_norm_gemm] head_width must be a number, got 'a'",
                (x, norm, weights),
                {"head_width": "a"},
            ),
            (TypeError, "[rms_norm_gemm] eps must be a number, got 'a'", (x, norm, weights), {"eps": "a"}),
            (TypeError, "[rms_norm_gemm] bias must be one per weight, got Tensor", (x, norm, weights, biases[0]), {}),
            (ValueError, "[rms_norm_gemm] bias must be one per weight, 2, got 1", (x, norm, weights, biases[:1]), {}),
            (ValueError, "[rms_norm_gemm] weight must be 1 to 8 tensors, got 0", (x, norm, []), {}),
            (ValueError, "[rms_norm_gemm] weight must be 1 to 8 tensors, got 9", (x, norm, weights[:1] * 9), {}),
            (
                ValueError,
                "[rms_norm_gemm] dtype must be None or torch.float32, got torch.float16",
                (x, norm, weights),
                {"dtype": torch.float16},
            ),
            (
                ValueError,
                "[rms_norm_gemm] rstd must have shape [2, 5], as x has rows, got [10]",
                (x, norm, weights),
                {"rstd": rstd.flatten()},
            ),
            (ValueError, forward + "x must have shape [M,d], got []", (x[0, 0, 0], norm, weights), {}),
            (ValueError, forward + "norm_weight must have shape [d] = [40], got [39]", (x, norm[1:], weights), {}),
            (ValueError, forward + "norm_weight must have dtype bf16 or fp32, got fp16", (x, norm.half(), weights), {}),
            (ValueError, forward + "weight0 must have dtype bf16, got fp32", (x, norm, weights[0].float()), {}),
            (
                ValueError,
                forward + "bias0 must have dtype bf16 or fp32, got fp16",
                (x, norm, weights[0], biases[0].half()),
                {},
            ),
            (
                ValueError,
                forward + "rstd must have dtype fp32, got bf16",
                (x, norm, weights),
                {"rstd": rstd.bfloat16()},
            ),
            (ValueError, forward + "eps must not be negative, got -1.000000", (x, norm, weights), {"eps": -1}),
            (
                ValueError,
                forward + "eps must not be given beside rstd, which includes it",
                (x, norm, weights),
                {"eps": 0.5, "rstd": rstd},
            ),
        ):
            with self.subTest(text):
                self.refuses(error, text, *arguments, **options)


if __name__ == "__main__":
    unittest.main()

"""torch.func, vmap and forward mode over the ops, and what they refuse. On the CPU."""

import copy
import inspect
import unittest

import numpy
import tandem
import torch
from tandem._extension import error_of
from test_gla_backward import BackwardCase
from torch.autograd import forward_ad

RAW = torch.ops.tandem.gla_forward.default
B, T, H, K, V, D = 2, 7, 4, 8, 6, 5


def draw(*shape):
    return torch.randn(*shape)


def decays(*shape):
    return -torch.rand(*shape)


def gla_inputs(HQ=2):
    return {
        "q": draw(B, T, HQ, K),
        "k": draw(B, T, HQ, K),
        "v": draw(B, T, H, V),
        "log_decay": decays(B, T, H),
        "initial_state": draw(B, H, K, V),
    }


def scan_inputs(**first):
    return {**first, "log_decay": decays(B, T, D), "gate": draw(B, T, D), "initial_state": draw(B, D)}


# Each op with inputs, and the sets of them that its outputs are linear in together.
OPS = {
    "gla": (tandem.ops.gla, gla_inputs, (["q"], ["k", "initial_state"], ["v", "initial_state"])),
    "gated_scan": (tandem.ops.gated_scan, lambda: scan_inputs(x=draw(B, T, D)), (["x", "initial_state"],)),
    "linear_scan": (
        tandem.ops.linear_scan,
        lambda: scan_inputs(u=draw(B, T, 3), weight=draw(D, 3)),
        (["u", "initial_state"], ["weight", "initial_state"]),
    ),
    "gla_state": (
        tandem.ops.gla_state,
        lambda: {name: x for name, x in gla_inputs().items() if name in ("k", "v", "log_decay")},
        (["k"], ["v"]),
    ),
}


def both(op, inputs):
    """op's two outputs, whether or not it has to be asked for the second."""
    asked = {"output_final_state": True} if "output_final_state" in inspect.signature(op).parameters else {}
    return op(**inputs, **asked)


class Forward(BackwardCase):
    def test_tangents_are_differences(self):
        # Exact: in these inputs the outputs are linear.
        for name, (op, make, ways) in OPS.items():
            for way in (*ways, *([one] for one in sorted({one for several in ways for one in several}))):
                with self.subTest(name, way=way):
                    inputs = make()
                    primals = tuple(inputs[one] for one in way)
                    tangents = tuple(torch.randn_like(x) for x in primals)

                    def f(*values, op=op, inputs=inputs, way=way):
                        return both(op, {**inputs, **dict(zip(way, values, strict=True))})

                    outputs, got = torch.func.jvp(f, primals, tangents)
                    moved = f(*(x + dx for x, dx in zip(primals, tangents, strict=True)))
                    self.assert_close(outputs, f(*primals), 1e-9)
                    for dx, a, b in zip(got, moved, outputs, strict=True):
                        self.assertLess((dx - (a - b)).abs().max(), 1e-4)

    def test_dual_tensors_and_linearize(self):
        inputs = gla_inputs()
        v = inputs.pop("v")
        expected = tandem.ops.gla(v=v, **{**inputs, "initial_state": None})[0]
        for requires_grad in (False, True):
            inputs["q"].requires_grad_(requires_grad)
            with forward_ad.dual_level():
                o, _ = tandem.ops.gla(v=forward_ad.make_dual(torch.zeros_like(v), v), **inputs)
                self.assert_close([forward_ad.unpack_dual(o).tangent.detach()], [expected.detach()])
        inputs["q"].requires_grad_(False)
        _, tangent = torch.func.linearize(lambda v: tandem.ops.gla(v=v, **inputs)[0], v)
        self.assert_close([tangent(v)], [expected.detach()])

    def test_compiled(self):
        inputs = gla_inputs()
        f = lambda v: torch.func.jvp(lambda v: tandem.ops.gla(**{**inputs, "v": v})[0], (v,), (v,))  # noqa: E731
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        self.assert_close(compiled(inputs["v"]), f(inputs["v"]))

    def test_the_jacobians_agree(self):
        inputs = gla_inputs()
        f = lambda v: tandem.ops.gla(**{**inputs, "v": v})[0]  # noqa: E731
        self.assert_close([torch.func.jacfwd(f)(inputs["v"])], [torch.func.jacrev(f)(inputs["v"])])

    def test_refusals(self):
        inputs = gla_inputs()

        def tangents(*names):
            values = tuple(inputs[name] for name in names)
            f = lambda *x: tandem.ops.gla(**{**inputs, **dict(zip(names, x, strict=True))})[0]  # noqa: E731
            return torch.func.jvp(f, values, values)

        for names in (("log_decay",), ("q", "k"), ("k", "v"), ("q", "initial_state")):
            text = rf"\[gla\] has no forward-mode derivative by {', '.join(names)} together"
            with self.subTest(names), self.assertRaisesRegex(NotImplementedError, text):
                tangents(*names)
        f = lambda v: tandem.ops.gla(**{**inputs, "v": v})[0].square().sum()  # noqa: E731
        with self.assertRaisesRegex(NotImplementedError, r"\[gla_backward\] has no forward-mode derivative"):
            torch.func.hessian(f)(inputs["v"])


class Reverse(BackwardCase):
    def test_grad_and_vjp(self):
        for name, (op, make, _) in OPS.items():
            with self.subTest(name):
                inputs = make()

                def loss(*values, op=op, names=tuple(inputs)):
                    return sum(x.square().sum() for x in both(op, dict(zip(names, values, strict=True))))

                values = tuple(inputs.values())
                leaves = [x.clone().requires_grad_() for x in values]
                expected = torch.autograd.grad(loss(*leaves), leaves)
                self.assert_close(torch.func.grad(loss, tuple(range(len(values))))(*values), expected, 1e-9)
                out, pull = torch.func.vjp(loss, *values)
                self.assert_close(pull(torch.ones_like(out)), expected, 1e-9)

    def test_a_second_derivative_is_refused(self):
        inputs = gla_inputs()
        f = lambda v: tandem.ops.gla(**{**inputs, "v": v})[0].square().sum()  # noqa: E731
        with self.assertRaisesRegex(NotImplementedError, r"\[gla_backward\] tandem.ops.gla has no second derivative"):
            torch.func.grad(lambda v: torch.func.grad(f)(v).sum())(inputs["v"])

    def test_scale_has_no_gradient(self):
        inputs = gla_inputs()
        scale = torch.tensor(0.5)
        self.assert_close(tandem.ops.gla(**inputs, scale=scale)[:1], tandem.ops.gla(**inputs, scale=0.5)[:1], 1e-9)
        with self.assertRaisesRegex(NotImplementedError, r"\[gla\] has no gradient by scale"):
            tandem.ops.gla(**inputs, scale=scale.requires_grad_())

    def test_exported_programs_train(self):
        inputs = gla_inputs()

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(V))

            def forward(self, v):
                return tandem.ops.gla(**{**inputs, "v": v * self.weight})[0]

        layer = Layer()
        expected = torch.autograd.grad(layer(inputs["v"]).square().sum(), layer.parameters())
        exported = torch.export.export(layer, (inputs["v"],)).module()
        got = torch.autograd.grad(exported(inputs["v"]).square().sum(), exported.parameters())
        self.assert_close(got, expected)

    def test_raw_ops_are_differentiable(self):
        inputs = gla_inputs()
        f = lambda v: RAW(inputs["q"], inputs["k"], v, *[None] * 3, False, None, False)[0].square().sum()  # noqa: E731
        v = inputs["v"].requires_grad_()
        (expected,) = torch.autograd.grad(f(v), v)
        self.assert_close([torch.func.grad(f)(v.detach())], [expected])
        with torch.no_grad():
            self.assertFalse(f(v).requires_grad)
        batch = torch.stack([v.detach()] * 3)
        self.assert_close(torch.vmap(torch.func.grad(f))(batch), [expected] * 3)
        compiled = torch.compile(torch.func.grad(f), fullgraph=True, backend="aot_eager")
        self.assert_close([compiled(v.detach())], [expected])


class Vmap(BackwardCase):
    def compare(self, f, in_dims, *arguments):
        size = next(x.shape[dim] for x, dim in zip(arguments, in_dims, strict=True) if dim is not None)
        items = [
            f(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
            for i in range(size)
        ]
        expected = [torch.stack(one) for one in zip(*items, strict=True)]
        self.assert_close(torch.vmap(f, in_dims)(*arguments), expected)

    def test_every_input_mapped_and_shared(self):
        for name, (op, make, _) in OPS.items():
            inputs = make()
            names = tuple(inputs)

            def f(*values, op=op, names=names):
                return both(op, dict(zip(names, values, strict=True)))

            for mapped in (set(names), *({one} for one in names)):
                with self.subTest(name, mapped=mapped):
                    dims = tuple(1 if one in mapped else None for one in names)
                    values = [torch.stack([inputs[one] + i / 9 for i in range(3)], 1) for one in names]
                    values = [x if one in mapped else inputs[one] for one, x in zip(names, values, strict=True)]
                    self.compare(f, dims, *values)

    def test_gradients_per_sample(self):
        for name, (op, make, _) in OPS.items():
            inputs = make()
            for constant in (False, True):
                if constant and "gla" in name:
                    inputs["log_decay"] = decays(H)
                names = tuple(inputs)
                first = next(iter(names))

                def loss(*values, op=op, names=names):
                    return sum(x.square().sum() for x in both(op, dict(zip(names, values, strict=True))))

                gradients = torch.func.grad(loss, tuple(range(len(names))))
                with self.subTest(name, constant=constant):
                    dims = tuple(0 if one == first else None for one in names)
                    self.compare(gradients, dims, torch.stack([inputs[first]] * 3), *list(inputs.values())[1:])

    def test_constant_decays_and_sequences_of_lists(self):
        inputs = gla_inputs()
        q, k, v = (inputs[name] for name in "qkv")
        self.compare(lambda g: tandem.ops.gla(q, k, v, g)[:1], (0,), decays(3, H))
        offsets = torch.tensor([0, 2, T])
        self.compare(lambda q: tandem.ops.gla(q, k[:1], v[:1], cu_seqlens=offsets)[:1], (0,), draw(3, 1, T, 2, K))

    def test_twice(self):
        inputs = gla_inputs()
        f = lambda v: tandem.ops.gla(**{**inputs, "v": v})[0]  # noqa: E731
        v = draw(3, 2, B, T, H, V)
        expected = torch.stack([torch.stack([f(x) for x in row]) for row in v])
        self.assert_close([torch.vmap(torch.vmap(f))(v)], [expected])

    def test_a_step_in_place_is_refused(self):
        q, v, state = draw(B, H, K), draw(B, H, V), torch.zeros(B, H, K, V)
        text = r"\[gla_step\] updates its state in place"
        for f in (
            lambda: torch.vmap(lambda v: tandem.ops.gla_step(q, q, v, state=state))(v[None]),
            lambda: torch.func.jvp(lambda v: tandem.ops.gla_step(q, q, v, state=state), (v,), (v,)),
        ):
            with self.assertRaisesRegex(NotImplementedError, text):
                f()
        self.assertEqual(state.abs().max(), 0)


class Arguments(BackwardCase):
    def test_what_is_no_tensor(self):
        for name, (op, make, _) in OPS.items():
            inputs = make()
            first = next(iter(inputs))
            for argument, wrong, kind in (
                (first, None, "NoneType"),
                (first, numpy.ones(3), "numpy.ndarray"),
                *((one, 0.5, "float") for one in inputs),
                *((one, [1], "list") for one in inputs),
            ):
                with self.subTest(name, argument=argument, kind=kind), self.assertRaises(TypeError) as caught:
                    op(**{**inputs, argument: wrong})
                self.assertEqual(str(caught.exception), f"[{name}] {argument} must be a torch.Tensor, got {kind}")

    def test_names_that_other_libraries_have(self):
        q, k, d_o = draw(B, T, H, K), draw(B, T, H, K), draw(B, T, H, V)
        x, state = draw(B, T, D), draw(B, H, K, V)
        fla = {"g": "it is log_decay here, called g in fla"}
        heads = {
            **fla,
            "g_gamma": "it is log_decay of shape [H] here, called g_gamma in fla",
            "head_first": "axes are [B,T,H,K] here, heads behind time",
            "state_v_first": "states are [N,H,K,V] here",
        }
        scan = {
            **fla,
            "z": "it is gate here, called z in mamba-ssm",
            "return_last_state": "it is output_final_state here, called return_last_state in mamba-ssm",
        }
        mamba = {
            "initial_states": "it is initial_state here, transposed, called initial_states in mamba-ssm",
            "return_final_states": "it is output_final_state here, called return_final_states in mamba-ssm",
        }
        step = {
            "initial_state": "it is state here, which is overwritten, called initial_state in fla",
            "output_final_state": "state is always overwritten with it here",
            "ssm_state": "it is state here, transposed, called ssm_state in mamba-ssm",
        }
        for op, inputs, names in (
            (tandem.ops.gla, {"q": q, "k": k, "v": d_o}, heads | mamba),
            (tandem.ops.gla_step, {"q": q[:, 0], "k": k[:, 0], "v": d_o[:, 0]}, heads | step),
            (tandem.ops.gla_state, {"k": k, "v": d_o}, heads),
            (tandem.ops.gla_state_backward, {"q": q, "d_o": d_o}, heads | {"do": "it is d_o here, called do in fla"}),
            (tandem.ops.gated_scan, {"x": x}, scan),
            (tandem.ops.linear_scan, {"u": x, "weight": draw(D, D)}, scan),
        ):
            name = op.__name__
            for unknown, text in {"foo": "", **names}.items():
                with self.subTest(name, argument=unknown), self.assertRaises(TypeError) as caught:
                    op(**inputs, **{unknown: x})
                expected = f"[{name}] unexpected argument {unknown}" + (f": {text}" if text else "")
                self.assertEqual(str(caught.exception), expected)
            self.assertNotIn("others", inspect.signature(op).parameters)
            given = inputs | ({"log_decay": decays(B, T, D)} if "decay" in inspect.signature(op).parameters else {})
            if op is tandem.ops.gla_step:
                given["state"] = state
            with self.subTest(f"{name} in one graph"):
                expected = op(**copy.deepcopy(given))
                got = torch.compile(op, fullgraph=True, backend="eager")(**given)
                torch.testing.assert_close(got, expected)

    def test_errors_have_no_frames_of_cxx(self):
        q, state = draw(B, H, K), torch.zeros(B, H, K, V)
        with self.assertRaisesRegex(TypeError, r"^\[gla_step\] v must be a torch.Tensor, got NoneType$"):
            tandem.ops.gla_step(q, q, None, state=state)
        with self.assertRaisesRegex(RuntimeError, r"ValueError: \[gla_step\] v must be a tensor, got None$"):
            torch.ops.tandem.gla_step.default(q, q, None, None, None, state)
        for error in (RuntimeError("of torch\nframe #0"), torch.OutOfMemoryError("of torch\nframe #0")):
            got = error_of(error)
            self.assertEqual((type(got), str(got)), (type(error), "of torch"))

    def test_the_old_order_of_a_step(self):
        q, v, state = draw(B, H, K), draw(B, H, V), torch.zeros(B, H, K, V)
        text = r"\[gla_step\] the order is gla_step\(q, k, v, log_decay, state\)"
        for arguments in ((q, q, v, state), (q, q, v, state, decays(B, H)), (q, q, v)):
            with self.assertRaisesRegex(TypeError, text):
                tandem.ops.gla_step(*arguments)

    def test_a_step_raises_the_version_of_its_state(self):
        q, v, state = draw(B, H, K), draw(B, H, V), torch.zeros(B, H, K, V)
        weight = torch.ones(B, H, K, V, requires_grad=True)
        product = (weight * state).sum()
        with torch.no_grad():
            tandem.ops.gla_step(q, q, v, state=state)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()

    def test_fakes_refuse_what_calls_refuse(self):
        state = torch.zeros(B, H, K, V)
        for name, value in (
            ("k", draw(B, T - 1, 2, K)),
            ("k", draw(B, T, 2, K).double()),
            ("v", draw(B, T, 3, V)),
            ("q", draw(T, 2, K)),
            ("log_decay", decays(B, T, H + 1)),
            ("log_decay", torch.ones(B, T, H, dtype=torch.int64)),
            ("initial_state", state.half()),
            ("initial_state", state[:, :, :, :1]),
            ("cu_seqlens", torch.tensor([0, T])),
            ("scale", float("nan")),
        ):
            inputs = {**gla_inputs(), name: value}
            with self.assertRaises(ValueError) as real:
                tandem.ops.gla(**inputs)
            with self.subTest(str(real.exception)), self.assertRaises(ValueError) as fake:
                tandem.ops.gla(**{one: x.to("meta") if isinstance(x, torch.Tensor) else x for one, x in inputs.items()})
            self.assertEqual(str(fake.exception), str(real.exception))
        with self.assertRaisesRegex(RuntimeError, r"k must have shape \[B,T,HQ,K\]"):
            q, k, v = (gla_inputs()[name] for name in "qkv")
            torch.compile(lambda k: tandem.ops.gla(q, k, v)[0], backend="eager", fullgraph=True)(k[:, :1])


if __name__ == "__main__":
    unittest.main()

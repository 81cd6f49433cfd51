"""The gradients of tandem.ops.gla on the CPU, against fp64 autograd of the recurrence, and how autograd uses them."""

import functools
import math
import shutil
import unittest

import tandem
import torch
from reference import TOLERANCE, gla, relative_rms
from tandem._extension import error_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cases import DTYPES, cover, gla_inputs, load

NAMES = ("q", "k", "v", "log_decay", "initial_state")
OP = torch.ops.tandem.gla_backward.default
FORWARD = torch.ops.tandem.gla_forward.default


def differentiate(op, inputs, d_o, d_final_state):
    """The gradients of <o, d_o> + <final_state, d_final_state> by the tensors of `inputs` that are in NAMES."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in NAMES if inputs.get(name) is not None}
    o, final_state = op(**{**inputs, **leaves})
    outputs, gradients = [o], [d_o.to(o.dtype)]
    if d_final_state is not None:
        outputs.append(final_state)
        gradients.append(d_final_state.to(final_state.dtype))
    pairs = [(x, dx) for x, dx in zip(outputs, gradients, strict=True) if x.requires_grad]
    if not pairs:  # a definition without a token
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    results = torch.autograd.grad(
        [x for x, _ in pairs], list(leaves.values()), [dx for _, dx in pairs], allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, results, strict=True))


def draw(B=1, T=70, H=4, K=16, V=24, HQ=None, dtype=torch.float32):
    """q, k, v, log_decay."""
    q, k = torch.randn(2, B, T, HQ or H, K).to(dtype).unbind()
    return q, k, torch.randn(B, T, H, V).to(dtype), torch.nn.functional.logsigmoid(torch.randn(B, T, H)) / 4


def gradients_of(inputs, loss):
    """loss(*leaves) differentiated by all of them."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(loss(*leaves), leaves)


class Recorder(TorchDispatchMode):
    """Keeps the results of every gla_backward, or of another op."""

    def __init__(self, op=OP):
        super().__init__()
        self.op, self.results = op, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is self.op:
            self.results.append(result)
        return result


class BackwardCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def assert_close(self, got, expected, tolerance=1e-5):
        for a, b in zip(got, expected, strict=True):
            self.assertEqual(a.shape, b.shape)
            self.assertLess(relative_rms(a, b.double()), tolerance)


class AgainstTheDefinition(BackwardCase):
    device = "cpu"
    dtypes = tuple(DTYPES)

    def check(self, case, dtype):
        # Everything is drawn, defined and compared on the CPU. Only the op runs on self.device, on copies.
        inputs = gla_inputs(case, dtype)
        generator = torch.Generator().manual_seed(7)
        d_o = torch.randn(inputs["v"].shape, generator=generator).to(dtype)
        d_final_state = None
        if inputs["output_final_state"]:
            shape = gla(**inputs)[1].shape
            d_final_state = torch.randn(shape, generator=generator)
        there = gla_inputs(case, dtype, self.device)
        cotangents = (x if x is None else x.to(self.device) for x in (d_o, d_final_state))
        got = differentiate(tandem.ops.gla, there, *cotangents)
        for name, gradient in got.items():
            self.assertEqual(gradient.device, there[name].device, name)
        got = {name: gradient.cpu() for name, gradient in got.items()}
        wide = {name: x.double() if name in NAMES and x is not None else x for name, x in inputs.items()}
        constant = wide.get("log_decay") is not None and wide["log_decay"].dim() == 1
        if constant:  # defined per token: its gradient is their sum
            wide["log_decay"] = wide["log_decay"].expand(d_o.shape[:3]).contiguous()
        expected = differentiate(gla, wide, d_o, d_final_state)
        terms = (wide["q"] * expected["q"]).sum(-1).square().mean().sqrt().item()
        for name, right in expected.items():
            source = inputs[name]
            size = right.square().mean().sqrt().item()
            if name == "log_decay" and constant:
                # The sum may cancel: measured by the sizes of what it sums. All tokens of a sequence share one rounded
                # factor, so their errors add up.
                size = right.abs().sum((0, 1)).square().mean().sqrt().item()
                terms *= math.sqrt(d_o.shape[0]) * d_o.shape[1]
                right = right.sum((0, 1))
            self.assertEqual((got[name].dtype, got[name].shape), (source.dtype, source.shape))
            if source.numel() == 0:  # nothing has no mean
                continue
            error = (got[name].double() - right).square().mean().sqrt().item()
            limit = TOLERANCE[dtype] * size
            if name == "log_decay":
                self.assertTrue((got[name][source == -math.inf] == 0).all())
                limit = 2 * TOLERANCE[dtype] * (size + 1e-3 * terms)
            self.assertLessEqual(error, limit, name)

    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "backward", self.dtypes):
            with self.subTest(case["name"], dtype=name):
                self.check(case, DTYPES[name])

    def test_no_tokens(self):
        for case in load("gla", "check", "backward"):
            if case["axes"]["T"] == 0 and case["states"] == "both":
                inputs = gla_inputs(case, DTYPES[self.dtypes[0]], self.device)
                d_final_state = torch.randn_like(inputs["initial_state"])
                got = differentiate(tandem.ops.gla, inputs, torch.zeros_like(inputs["v"]), d_final_state)
                self.assertTrue(torch.equal(got["initial_state"], d_final_state))


class Autograd(BackwardCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        arguments = {**dict(zip(NAMES, draw(HQ=2), strict=False)), "initial_state": torch.randn(1, 4, 16, 24)}
        d_o = torch.randn(1, 70, 4, 24)
        everything = differentiate(tandem.ops.gla, arguments, d_o, None)
        for i, name in enumerate(NAMES):
            leaf = arguments[name].detach().requires_grad_()
            o, _ = tandem.ops.gla(**{**arguments, name: leaf})
            with Recorder() as recorder:
                (gradient,) = torch.autograd.grad(o, leaf, d_o)
            self.assertTrue(torch.equal(gradient, everything[name]), name)
            self.assertEqual([x is not None for x in recorder.results[0]], [j == i for j in range(5)], name)

    def test_an_output_that_the_loss_does_not_use(self):
        inputs = draw()

        def loss(of_o, of_state):
            def call(q, k, v, g):
                o, state = tandem.ops.gla(q, k, v, g, output_final_state=True)
                return (o.sum() if of_o else 0) + (state.sum() if of_state else 0)

            return call

        both = gradients_of(inputs, loss(True, True))
        of_state = gradients_of(inputs, loss(False, True))
        self.assert_close([a + b for a, b in zip(gradients_of(inputs, loss(True, False)), of_state, strict=True)], both)
        self.assertEqual(of_state[0].abs().max(), 0)

    def test_gradients_of_any_layout(self):
        inputs = draw()
        weight = torch.randn(24, 1, 4, 70)
        loss = lambda *x: (tandem.ops.gla(*x)[0].permute(3, 0, 2, 1) * weight).sum()  # noqa: E731
        right = lambda *x: (tandem.ops.gla(*x)[0] * weight.permute(1, 3, 2, 0).contiguous()).sum()  # noqa: E731
        for a, b in zip(gradients_of(inputs, loss), gradients_of(inputs, right), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_log_decay_of_another_dtype(self):
        q, k, v, g = draw()
        half = g.to(torch.bfloat16)
        (got,) = gradients_of([half], lambda x: tandem.ops.gla(q, k, v, x)[0].square().sum())
        (right,) = gradients_of([half.float()], lambda x: tandem.ops.gla(q, k, v, x)[0].square().sum())
        self.assertEqual(got.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(got, right.to(torch.bfloat16)))

    def test_sequences_of_lists(self):
        inputs = draw()
        offsets = torch.tensor([0, 30, 30, 65])
        got = gradients_of(inputs, lambda *x: tandem.ops.gla(*x, cu_seqlens=offsets)[0].square().sum())
        right = gradients_of(
            inputs,
            lambda *x: sum(tandem.ops.gla(*(y[:, a:b] for y in x))[0].square().sum() for a, b in ((0, 30), (30, 65))),
        )
        for a, b in zip(got, right, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_a_second_derivative_is_refused(self):
        q, k, v, g = draw()
        for x in (q, k, v, g):
            x.requires_grad_()
        (dq,) = torch.autograd.grad(tandem.ops.gla(q, k, v, g)[0].sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, r"\[gla_backward\] tandem.ops.gla has no second derivative"):
            dq.sum().backward()

    def test_same_bits_every_time(self):
        inputs = draw(T=300, HQ=2, dtype=torch.bfloat16)
        loss = lambda *x: tandem.ops.gla(*x)[0].float().square().sum()  # noqa: E731
        first = gradients_of(inputs, loss)
        for _ in range(5):
            for a, b in zip(gradients_of(inputs, loss), first, strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_checkpoint(self):
        inputs = draw()

        def layer(*x):
            return tandem.ops.gla(*x)[0].square()

        got = gradients_of(inputs, lambda *x: checkpoint(layer, *x, use_reentrant=False).sum())
        for a, b in zip(got, gradients_of(inputs, lambda *x: layer(*x).sum()), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_autocast(self):
        inputs = draw()

        def layer(*x):
            with torch.autocast("cpu", torch.bfloat16):
                return tandem.ops.gla(*x)[0].float().square().sum()

        got = gradients_of(inputs, layer)
        self.assertEqual([x.dtype for x in got], [torch.float32] * 4)
        right = gradients_of(inputs, lambda q, k, v, g: layer(q.bfloat16(), k.bfloat16(), v.bfloat16(), g))
        for a, b in zip(got, right, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_descent(self):
        # A loss that only the op's parameters explain goes down along the gradient.
        q, k, v, g = draw()
        target = torch.randn(1, 70, 4, 24)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        optimizer = torch.optim.Adam(leaves, 0.05)
        losses = []
        for _ in range(30):
            loss = (tandem.ops.gla(q, k, v, g)[0] - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)


class SavedStates(BackwardCase):
    """What save_states=True keeps, and that gradients are the same with it."""

    device, dtype = "cpu", torch.float32

    def draw(self, B=2, HQ=2):
        """By name; on a GPU the backward reads states of this width."""
        inputs = dict(zip(NAMES, draw(B, T=300, H=2, K=128, V=128, HQ=HQ, dtype=self.dtype), strict=False))
        inputs["initial_state"] = torch.randn(B, 2, 128, 128)
        return {name: x.to(self.device) for name, x in inputs.items()}

    def assert_same(self, got, expected):
        """Expects equal bits; on a GPU states that are kept may choose the kernel."""
        for name, a, b in zip(NAMES, got, expected, strict=False):
            if self.device == "cpu":
                self.assertTrue(torch.equal(a, b), name)
            else:  # each has at most half of it; a constant decay's is a sum that cancels
                times = 2 if name != "log_decay" else 4 if a.dim() > 1 else 30
                self.assertLess(relative_rms(a, b.double()), times * TOLERANCE[self.dtype], name)

    def kept(self, **inputs):
        """What autograd keeps of a call, beside its tensors."""
        saved, given = [], {x.data_ptr() for x in inputs.values() if isinstance(x, torch.Tensor)}
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
            tandem.ops.gla(**inputs)
        return [x for x in saved if x.data_ptr() not in given]

    def test_gradients_are_the_same(self):
        saving = functools.partial(tandem.ops.gla, save_states=True)
        for HQ in (1, 2):
            inputs = self.draw(HQ=HQ)
            d_o, d_state = torch.randn_like(inputs["v"]), torch.randn_like(inputs["initial_state"])
            for changed in (
                {"output_final_state": True},
                {"log_decay": inputs["log_decay"][0, 0].contiguous()},
                {"log_decay": None, "initial_state": None},
            ):
                given = {**inputs, **changed}
                with self.subTest(HQ=HQ, **dict.fromkeys(changed)):
                    cotangents = d_o, d_state if "output_final_state" in changed else None
                    got, expected = (differentiate(op, given, *cotangents) for op in (saving, tandem.ops.gla))
                    self.assert_same(got.values(), expected.values())

    def test_the_states(self):
        inputs = self.draw()
        q, k, v, g, state = inputs.values()
        *results, states = FORWARD(q, k, v, g, None, state, True, None, True)
        self.assertEqual((states.dtype, states.shape), (self.dtype, (2, 3, 2, 128, 128)))
        self.assertTrue(torch.equal(states[:, 0], state.mT.to(self.dtype)))
        for i in (1, 2):
            begin = {name: x if name == "initial_state" else x[:, : 128 * i] for name, x in inputs.items()}
            _, expected = tandem.ops.gla(**begin, output_final_state=True)
            self.assertLess(relative_rms(states[:, i], expected.mT.double()), TOLERANCE[self.dtype])
        for got, expected in zip(results, FORWARD(q, k, v, g, None, state, True, None, False)[:2], strict=True):
            self.assertLess(relative_rms(got, expected.double()), TOLERANCE[self.dtype])

    def test_what_is_kept(self):
        inputs = self.draw()
        for name in NAMES:
            given = {**inputs, name: inputs[name].detach().requires_grad_()}
            self.assertEqual(self.kept(**given), [], name)
            (states,) = self.kept(**given, save_states=True)
            self.assertEqual((states.dtype, states.shape), (self.dtype, (2, 3, 2, 128, 128)), name)

    def test_without_a_gradient_none_are_made(self):
        inputs = self.draw()
        with Recorder(FORWARD) as recorder:
            tandem.ops.gla(**inputs, save_states=True)
            inputs["k"].requires_grad_()
            with torch.no_grad():
                tandem.ops.gla(**inputs, save_states=True)
            tandem.ops.gla(**inputs)
        self.assertEqual([states for *_, states in recorder.results], [None] * 3)

    def test_packed_sequences_are_refused(self):
        inputs = self.draw(B=1)
        offsets = torch.tensor([0, 300], device=self.device)
        with self.assertRaisesRegex(ValueError, r"\[gla_forward\] saved_states cannot go with cu_seqlens"):
            tandem.ops.gla(**{**inputs, "q": inputs["q"].requires_grad_()}, cu_seqlens=offsets, save_states=True)

    def test_transforms(self):
        inputs = self.draw()
        v = inputs.pop("v")
        plain = lambda v: tandem.ops.gla(v=v, **inputs)[0].float().square().mean()  # noqa: E731
        saving = lambda v: tandem.ops.gla(v=v, **inputs, save_states=True)[0].float().square().mean()  # noqa: E731
        compiled = torch.compile(saving, fullgraph=True, backend="aot_eager")
        expected = gradients_of([v], plain)
        self.assert_same([torch.func.grad(saving)(v)], expected)
        self.assert_same(gradients_of([v], compiled), expected)
        batch = torch.stack([v, 2 * v])
        self.assert_same([torch.vmap(torch.func.grad(saving))(batch)], [torch.vmap(torch.func.grad(plain))(batch)])

    def test_tangents_beside_them(self):
        inputs = self.draw()
        v, state = inputs.pop("v"), inputs.pop("initial_state")
        inputs["q"].requires_grad_()
        run = lambda v, state: tandem.ops.gla(v=v, initial_state=state, **inputs, save_states=True)[0]  # noqa: E731
        got, expected = torch.func.jvp(run, (v, state), (v, state))[1], run(v, state)
        self.assertLess(relative_rms(got, expected.double()), TOLERANCE[self.dtype])


class Compile(BackwardCase):
    def test_opcheck(self):
        q, k, v, g = draw(HQ=2)
        state, d_o, offsets = torch.randn(1, 4, 16, 24), torch.randn(1, 70, 4, 24), torch.tensor([0, 30, 70])
        for arguments in (
            (q, k, v, g, None, None, None, None, d_o, None, True, True, True, True, False),
            (q, k, v, g, 0.5, state, None, state.mT[:, None].contiguous(), d_o, state, True, True, True, True, True),
            (q, k, v, g[0, 0], None, None, None, None, d_o, None, False, False, False, True, False),
            (q, k, v, None, None, state.repeat(2, 1, 1, 1), offsets, None, d_o, None, False, True, False, False, True),
        ):
            torch.library.opcheck(OP, arguments)

    def compare(self, backend):
        def step(q, k, v, g, state):
            o, final = tandem.ops.gla(
                torch.nn.functional.silu(q), k, v, g, initial_state=state, output_final_state=True
            )
            return o.square().sum() + final.sum()

        compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
        for T in (70, 100):
            inputs = (*draw(T=T, HQ=2), torch.randn(1, 4, 16, 24))
            self.assert_close(gradients_of(inputs, compiled), gradients_of(inputs, step))

    def test_aot_eager(self):
        self.compare("aot_eager")

    @unittest.skipUnless(
        shutil.which("c++") or shutil.which("g++") or shutil.which("gcc"), "no C++ compiler here for torch's inductor"
    )
    def test_inductor(self):
        self.compare("inductor")

    def test_some_gradients_only(self):
        q, k, v, g = draw()
        loss = lambda v: tandem.ops.gla(q, k, v, g)[0].square().sum()  # noqa: E731
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        self.assert_close(gradients_of([v], compiled), gradients_of([v], loss))


class Refusals(BackwardCase):
    def test_they_name_op_and_argument(self):
        q, k, v, g = draw()
        arguments = [q, k, v, g, None, None, None, None, v, None, True, True, True, True, True]
        states = torch.zeros(1, 1, 4, 24, 16)
        for position, value, text in (
            (8, v[:, :69], "[gla_backward] d_o must have shape [B,T,H,V] = [1,70,4,24], got [1,69,4,24]"),
            (8, v.bfloat16(), "[gla_backward] d_o must have dtype fp32, got bf16"),
            (7, states.mT, "[gla_backward] saved_states must have shape [B,T/128,H,V,K] = [1,1,4,24,16], got [1"),
            (7, states.bfloat16(), "[gla_backward] saved_states must have dtype fp32, got bf16"),
            (9, torch.zeros(1, 4, 24, 16), "[gla_backward] d_final_state must have shape [B,H,K,V] = [1,4,16,24]"),
            (0, q.long(), "[gla_backward] q must have dtype bf16, fp16, fp32 or fp64, got Long"),
        ):
            wrong = [*arguments]
            wrong[position] = value
            with self.assertRaises((RuntimeError, ValueError)) as caught:
                OP(*wrong)
            error = error_of(caught.exception)
            self.assertIsInstance(error, ValueError)
            self.assertIn(text, str(error))


if __name__ == "__main__":
    unittest.main()

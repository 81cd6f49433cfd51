"""Calls past torch's dispatcher: which take that way, that it gives the same, and what is seen of them."""

import unittest

import tandem
import torch
from tandem._registration import OPS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

B, T, H, K, V = 2, 70, 2, 16, 24


class Subclass(torch.Tensor):
    pass


class SeesCalls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Nothing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype)


def inputs():
    """Of gla_forward, in its order."""
    log_decay = -torch.rand(B, T, H)
    values = [draw(B, T, H, K), draw(B, T, H, K), draw(B, T, H, V), log_decay, None, torch.randn(B, H, K, V), True]
    return [*values, None, False]


def packed():
    values = [draw(1, T, H, K), draw(1, T, H, K), draw(1, T, H, V), None, 0.5, None, False]
    return [*values, torch.tensor([0, 20, 20, T], dtype=torch.int32), False]


class Direct(unittest.TestCase):
    def assert_same(self, results, expected):
        for result, other in zip(results, expected, strict=True):
            self.assertEqual(result is None, other is None)
            if result is not None:
                self.assertEqual((result.dtype, result.stride()), (other.dtype, other.stride()))
                self.assertTrue(torch.equal(result, other))

    def test_plain_tensors_go_directly(self):
        without_state = inputs()
        without_state[5] = None  # no input is like the final state
        with_states = [*inputs()[:-1], True]
        for arguments in (inputs(), without_state, packed(), with_states):
            results = OPS["gla_forward"].run_directly(*arguments)
            self.assertIsNot(results, NotImplemented)
            self.assert_same(results, OPS["gla_forward"].raw(*arguments))

    def test_gradients_go_directly(self):
        q, k, v, log_decay, scale, state, _, offsets, _ = inputs()
        for states in (None, state.mT[:, None].bfloat16().contiguous()):
            given = (q, k, v, log_decay, scale, state, offsets, states, draw(B, T, H, V), None)
            arguments = (*given, True, False, True, True, True)
            results = OPS["gla_backward"].run_directly(*arguments)
            self.assertIsNot(results, NotImplemented)
            self.assert_same(results, OPS["gla_backward"].raw(*arguments))

    def test_what_is_to_be_differentiated_is_left_alone(self):
        arguments = inputs()
        arguments[1].requires_grad_()
        self.assertIsNone(OPS["gla_forward"].run_directly(*arguments))
        with torch.no_grad():
            self.assertIsNotNone(OPS["gla_forward"].run_directly(*arguments))
        for what, place, value in (
            ("a decay to be widened", 3, arguments[3].bfloat16()),
            ("a decay without strides", 3, arguments[3].to_sparse()),
            ("a scale to be refused", 4, torch.tensor(0.5, requires_grad=True)),
            ("more than the backward takes on a GPU", 2, draw(B, T, H, 513)),
        ):
            with self.subTest(what):
                given = [*arguments[:place], value, *arguments[place + 1 :]]
                self.assertIs(OPS["gla_forward"].run_directly(*given), NotImplemented)

    def test_a_step_that_is_to_be_refused(self):
        q, k, v, log_decay, _, state, *_ = inputs()
        q, k, v, log_decay = (x[:, 0].contiguous() for x in (q, k, v, log_decay))
        q.requires_grad_()
        self.assertIs(OPS["gla_step"].run_directly(q, k, v, log_decay, None, state), NotImplemented)
        with self.assertRaisesRegex(NotImplementedError, "has no gradient"):
            OPS["gla_step"](q, k, v, log_decay, None, state)

    def test_torch_keeps_what_is_saved(self):
        leaves = [x.requires_grad_() for x in inputs()[:4]]
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.clone()) or x, lambda x: x):
            o, _ = tandem.ops.gla(*leaves)
        self.assert_same(packed, leaves)
        first = torch.autograd.grad(o.sum(), leaves, retain_graph=True)
        self.assert_same(torch.autograd.grad(o.sum(), leaves), first)
        with self.assertRaisesRegex(RuntimeError, "a second time"):
            torch.autograd.grad(o.sum(), leaves)
        o, _ = tandem.ops.gla(*leaves)
        with torch.no_grad():
            leaves[2].zero_()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            torch.autograd.grad(o.sum(), leaves)

    def test_outputs_that_the_loss_does_not_use(self):
        leaves = [x.requires_grad_() for x in inputs()[:4]]
        o, state = tandem.ops.gla(*leaves, output_final_state=True)
        for output, other in ((o, state), (state, o)):
            whole = torch.autograd.grad(output.sum() + 0 * other.sum(), leaves[1:], retain_graph=True)
            self.assert_same(torch.autograd.grad(output.sum(), leaves[1:], retain_graph=True), whole)

    def test_memory_that_is_out(self):
        q, v = (draw(1, 1, 1, width).expand(1, 1 << 46, 1, width) for width in (K, V))
        for looks_on in (torch.no_grad(), SeesCalls()):
            with self.assertRaisesRegex(torch.OutOfMemoryError, r"^\[tandem\] torch failed to make a tensor"), looks_on:
                OPS["gla_forward"](q, q, v, None, None, None, False, None, False)

    def test_a_parameter_and_a_view_go_directly(self):
        arguments = inputs()
        arguments[0] = torch.nn.Parameter(arguments[0])
        arguments[2] = draw(T, B, H, 2 * V).transpose(0, 1)[..., :V]
        with torch.no_grad():
            results = OPS["gla_forward"].run_directly(*arguments)
        self.assertIsNot(results, NotImplemented)
        self.assertTrue(results[0].is_contiguous())
        self.assert_same(results, OPS["gla_forward"].raw(*[x.detach() if torch.is_tensor(x) else x for x in arguments]))

    def test_what_needs_the_dispatcher_takes_it(self):
        whole = torch.complex(torch.zeros(B, T, H), torch.rand(B, T, H))
        cases = {
            "a subclass": (0, draw(B, T, H, K).as_subclass(Subclass)),
            "strides to be copied": (1, draw(B, T, K, H).transpose(2, 3)),
            "signs flipped lazily": (3, whole.conj().imag),
            "a scale that is no float": (4, 1),
            "int64 offsets": (7, torch.tensor([0, T])),
            "fp64": (2, draw(B, T, H, V, dtype=torch.float64)),
        }
        for what, (place, value) in cases.items():
            arguments = inputs()
            arguments[place] = value
            with self.subTest(what):
                self.assertIs(OPS["gla_forward"].run_directly(*arguments), NotImplemented)

    def test_signs_that_are_flipped_lazily(self):
        arguments = inputs()
        log_decay = torch.complex(torch.zeros(B, T, H), torch.rand(B, T, H)).conj().imag
        self.assertTrue(log_decay.is_neg())
        arguments[3] = log_decay
        results = OPS["gla_forward"](*arguments)
        arguments[3] = log_decay.resolve_neg()
        self.assert_same(results, OPS["gla_forward"](*arguments))

    def test_refusals_are_the_same(self):
        for place, value in (
            (1, draw(B, T, H, K + 1)),
            (3, torch.zeros(B, T)),
            (0, draw(B, T, H, K, dtype=torch.half)),
        ):
            arguments = inputs()
            arguments[place] = value
            errors = []
            for watched in (False, True):
                with self.assertRaises(ValueError) as caught, SeesCalls() if watched else torch.no_grad():
                    OPS["gla_forward"](*arguments)
                errors.append(str(caught.exception))
            self.assertEqual(*errors)

    def test_who_looks_on_sees_the_op(self):
        with SeesCalls() as mode:
            OPS["gla_forward"](*inputs())
        self.assertIn("tandem.gla_forward.default", mode.seen)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            OPS["gla_forward"](*inputs())
        self.assertIn("tandem::gla_forward", {event.name for event in profile.events()})
        arguments = inputs()
        for seen in (Nothing(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])):
            with seen:
                self.assertIs(OPS["gla_forward"].run_directly(*arguments), NotImplemented)

        def mapped(q):
            self.assertIs(OPS["gla_forward"].run_directly(*arguments), NotImplemented)
            return q

        torch.vmap(mapped)(draw(2, K))

    def test_inference_mode(self):
        with torch.inference_mode():
            q, k, v, log_decay, *_ = inputs()
            o, _ = tandem.ops.gla(q, k, v, log_decay)
        self.assertTrue(o.is_inference())

    def test_outputs_are_torch_s_own_memory(self):
        q, k, v, log_decay, *_ = inputs()
        o, _ = tandem.ops.gla(q, k, v, log_decay)
        self.assertTrue(o.untyped_storage().resizable())


if __name__ == "__main__":
    unittest.main()

"""Tests of what bench/peers runs, on CPU tensors: each peer's terms, calls side by side."""

import dataclasses
import importlib.util
import json
import math
import types
import unittest
import unittest.mock

import torch
from test_peers import small  # first: it puts the checkout on sys.path
from test_peers_inputs import quadratic, token_by_token

from bench.peers import cases, inputs, provider, reference, side_by_side


def fake_fla(case, tell=lambda what: None):
    """As fla's functions are made: one autograd.Function that takes more than tensors and returns (o, None)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, g, g_gamma, scale):
            tell("forward")
            decay = g if g is not None else g_gamma
            ctx.save_for_backward(q, k, v, decay)
            ctx.constant, ctx.scale = g is None, scale
            return Function.define(ctx, q, k, v, decay).to(v.dtype), None

        @staticmethod
        def define(ctx, q, k, v, decay):
            named = {} if decay is None else {"log_decay": decay}
            return quadratic(dataclasses.replace(case, scale=ctx.scale), {"q": q, "k": k, "v": v, **named})

        @staticmethod
        def backward(ctx, do, dht):
            assert dht is None
            tell("backward")
            *qkv, decay = (x if x is None else x.detach().requires_grad_() for x in ctx.saved_tensors)
            of = qkv if ctx.constant else [*qkv, decay]
            with torch.enable_grad():
                found = torch.autograd.grad(Function.define(ctx, *qkv, decay), of, do.double())
            return (*found, *[None] * (6 - len(found)))

    def call(q, k, v, g=None, g_gamma=None, scale=None, cu_seqlens=None):
        return Function.apply(q, k, v, g, g_gamma, scale)

    return call


class Peers(unittest.TestCase):
    """Each peer's terms translated as its own documentation defines them: its kernel replaced by that definition."""

    def check(self, name, case, call, limit):
        peer = provider.discover("gla")[name]
        peer._call = call
        self.assertEqual(peer.refusal(case, "bf16"), "")
        tensors = inputs.make(case, "bf16", 5, "cpu")
        outputs = peer.prepare(case, "bf16", tensors, peer.settings[0])()
        self.assertEqual(outputs["dv" if case.direction == "backward" else "o"].shape, tensors["v"].shape)
        heads = reference.sample_heads(case)
        self.assertLess(reference.relative_rms(outputs, reference.define(case, tensors, heads), heads), limit)

    def test_fla(self):
        def simple_gla(q, k, v, g=None, g_gamma=None, scale=None, cu_seqlens=None):
            self.assertEqual(
                cu_seqlens is None or cu_seqlens.tolist(), case.cu_seqlens is None or list(case.cu_seqlens)
            )
            decay = {} if g is None and g_gamma is None else {"log_decay": g if g is not None else g_gamma}
            return quadratic(dataclasses.replace(case, scale=scale), {"q": q, "k": k, "v": v, **decay}), None

        for case in (
            small(),
            small(decay_kind="constant"),
            small(decay_kind="none"),
            small(axes={"B": 1}, cu_seqlens=(0, 9, 70)),
        ):
            self.check("fla", case, simple_gla, 1e-12)
        self.assertIn("grouped", provider.discover("gla")["fla"].refusal(small(axes={"HQ": 2}), "bf16"))

    def test_a_step(self):
        """fla's and Tandem's call, by a recurrence of one token that shares no code with the reference."""
        case = small(axes={"T": 1}, directions=("step",), direction="step")
        tensors = inputs.make(case, "bf16", 5, "cpu")
        heads = reference.sample_heads(case)
        expected = reference.define(case, tensors, heads)

        def token(q, k, v, g, state):
            state = state.double() * g.double().exp()[..., None, None] + torch.einsum(
                "bhk,bhv->bhkv", k.double(), v.double()
            )
            return case.softmax_scale * torch.einsum("bhk,bhkv->bhv", q.double(), state), state

        def recurrent(q, k, v, g, scale, initial_state, output_final_state):
            o, state = token(q[:, 0], k[:, 0], v[:, 0], g[:, 0], initial_state)
            return o[:, None], state

        def in_place(q, k, v, log_decay, state, scale):
            o, new = token(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], state)
            state.copy_(new)
            return o[:, None]

        fla, ours = (provider.discover("gla")[name] for name in ("fla_recurrent", "tandem"))
        fla._call, ours._step, ours._library = recurrent, in_place, None
        for peer in (fla, ours):
            self.assertEqual((peer.refusal(case, "bf16"), "step" in peer.directions), ("", True))
            call = peer.prepare(case, "bf16", tensors, "")
            self.assertLess(reference.relative_rms(call(), expected, heads), 1e-6)
        self.assertGreater(reference.relative_rms(call(), expected, heads), 0.1)  # the second token
        call.restart()
        self.assertLess(reference.relative_rms(call(), expected, heads), 1e-6)
        self.assertIn("fp32 only", fla.refusal(dataclasses.replace(case, state_dtype="bf16"), "bf16"))

    def test_gradients_of_fla(self):
        """fla's gradients by its autograd.Function, here on the definition, in both directions."""
        for direction in ("backward", "forward_backward"):
            for changed in (
                {},
                {"decay_kind": "constant"},
                {"decay_kind": "none"},
                {"axes": {"B": 1}, "cu_seqlens": (0, 9, 70)},
            ):
                case = small(direction=direction, **changed)
                with torch.no_grad():  # as the program runs
                    self.check("fla", case, fake_fla(case), 3e-3)
                    self.check("fla_fused", case, fake_fla(case), 3e-3)

    def test_a_backward_alone_runs_no_forward(self):
        case, ran = small(direction="backward"), []
        peer = provider.discover("gla")["fla"]
        peer._call = fake_fla(case, ran.append)
        tensors = inputs.make(case, "bf16", 5, "cpu")
        call = peer.prepare(case, "bf16", tensors, "")
        self.assertEqual(ran, ["forward"])
        once, again = call(), call()
        self.assertEqual(ran, ["forward", "backward", "backward"])
        self.assertTrue(all(torch.equal(once[name], again[name]) for name in once))  # nothing accumulates

    def test_gradients_are_new_in_every_call(self):
        case, ran = small(direction="forward_backward"), []
        peer = provider.discover("gla")["fla"]
        peer._call = fake_fla(case, ran.append)
        tensors = inputs.make(case, "bf16", 5, "cpu")
        call = peer.prepare(case, "bf16", tensors, "")
        once, again = call(), call()
        self.assertEqual(ran, ["forward", "backward"] * 2)
        self.assertEqual(list(once), ["o", "dq", "dk", "dv", "d_log_decay"])
        for name in once:
            self.assertTrue(torch.equal(once[name], again[name]))
            self.assertNotEqual(once[name].data_ptr(), again[name].data_ptr())
            self.assertIsNone(once[name].grad_fn)  # or what the forward saved would stay
        self.assertFalse(any(x.requires_grad for x in tensors.values()))

    def test_gradients_of_tandem(self):
        def op(q, k, v, log_decay, scale, cu_seqlens, save_states):
            return fake_fla(case)(q, k, v, log_decay, scale=scale)

        def backward(q, k, v, log_decay, scale, initial_state, cu_seqlens, saved_states, d_o, d_final_state, *wants):
            self.assertEqual([initial_state, saved_states, d_final_state], [None] * 3)
            self.assertEqual(wants, (True, True, True, True, False))
            found = token_by_token(case, {"q": q, "k": k, "v": v, "log_decay": log_decay, "d_o": d_o})
            return *(found[name] for name in ("dq", "dk", "dv", "d_log_decay")), None

        peer = provider.discover("gla")["tandem"]
        for direction in ("backward", "forward_backward"):
            case = small(direction=direction)
            self.assertIn(f"a {direction} is called through", peer.refusal(case, "bf16"))
        peer._op, peer._backward = op, backward
        for direction in ("backward", "forward_backward"):
            case = small(direction=direction)
            self.assertEqual((peer.refusal(case, "bf16"), peer.variant(case, "")), ("", "library's choice"))
            tensors = inputs.make(case, "bf16", 5, "cpu")
            heads = reference.sample_heads(case)
            outputs = peer.prepare(case, "bf16", tensors, "")()
            errors = reference.errors(outputs, reference.define(case, tensors, heads), heads)
            self.assertLess(max(errors.values()), 3e-3)

    @unittest.skipUnless(importlib.util.find_spec("tandem"), "the package is not installed")
    def test_gradients_of_the_package(self):
        peer = provider.discover("gla")["tandem"]
        peer.load()
        packed = {"axes": {"B": 1}, "cu_seqlens": (0, 9, 9, 70)}
        for direction in ("backward", "forward_backward"):
            for changed in ({}, {"decay_kind": "constant"}, {"decay_kind": "none"}, packed, {"saved_states": "yes"}):
                case = small(direction=direction, **changed)
                self.assertEqual(peer.refusal(case, "fp16"), "")
                tensors = inputs.make(case, "fp16", 5, "cpu")
                heads = reference.sample_heads(case)
                outputs = peer.prepare(case, "fp16", tensors, "")()
                self.assertEqual(set(outputs) - {"o"}, set(case.wants.values()))
                errors = reference.errors(outputs, reference.define(case, tensors, heads), heads)
                for name, error in errors.items():
                    self.assertLess(error, side_by_side.limit(peer, "fp16", name))

    def test_mamba2(self):
        def ssd(x, dt, A, B, C, chunk_size, seq_idx=None):  # h = exp(dt A) h + dt x B^T, y = h C
            self.assertEqual(chunk_size, 256)
            if case.cu_seqlens is not None:
                self.assertEqual(seq_idx.tolist(), [[0] * 9 + [2] * 61])
            tensors = {"q": C, "k": B, "v": x.double() * dt[..., None], "log_decay": dt * A}
            return quadratic(dataclasses.replace(case, scale=1.0), tensors)

        packed = small(axes={"B": 1}, cu_seqlens=(0, 9, 9, 70))
        for case in (small(axes={"HQ": 2}), small(distribution="normal_bench", scale=-0.5), packed):
            self.check("mamba2", case, ssd, 3e-3)  # x is rounded to bf16
        self.assertTrue(provider.discover("gla")["mamba2"].refusal(small(decay_kind="none"), "bf16"))
        self.assertIn(
            "some sequence",
            provider.discover("gla")["mamba2"].refusal(dataclasses.replace(packed, cu_seqlens=(0, 9)), "bf16"),
        )

    def test_dense_batches_only(self):
        for name in ("unfused", "tfla", "sdpa_cudnn"):
            self.assertEqual(
                provider.discover("gla")[name].refusal(small(axes={"B": 1}, cu_seqlens=(0, 70)), "bf16"),
                "dense batches only",
            )

    def test_tfla(self):
        def mlstm(q, k, v, i, f, normalize, chunk_size, autocast_kernel_dtype):  # C = sigmoid(f) C + sigmoid(i) k v^T
            self.assertFalse(normalize)
            k = k.double() * torch.sigmoid(i.double())[..., None]
            decay = torch.nn.functional.logsigmoid(f.double())
            tensors = {name: x.transpose(1, 2) for name, x in (("q", q), ("k", k), ("v", v), ("log_decay", decay))}
            return quadratic(dataclasses.replace(case, scale=None), tensors).transpose(1, 2)

        for distribution in ("normal", "normal_bench", "strong"):
            case = small(distribution=distribution)
            self.check("tfla", case, mlstm, 1e-5)

    def test_sdpa_is_no_gla(self):
        self.assertFalse(provider.discover("gla")["sdpa_cudnn"].same_function)


class FakeTimer:
    """In place of the CUDA graph: calls once, reports made-up times; `order` tells who was asked when."""

    order = []

    def __init__(self, calls):
        self.outputs = [call() for call in calls]
        self.name = getattr(calls[0], "who", "?")

    def replay(self, warm_up, replays):
        FakeTimer.order.append(self.name)
        return [10.0] * replays

    def restart(self):
        pass

    def close(self):
        self.outputs = []


def fake(name_, **methods):
    def prepare(self, case, dtype, tensors, setting):
        def call():
            return {"o": quadratic(case, tensors)}

        call.who = name_
        return call

    return type(name_, (provider.Provider,), {"name": name_, "prepare": prepare, **methods})()


class SideBySide(unittest.TestCase):
    def compare(self, *providers, tune=False, case=None):
        FakeTimer.order = []
        options = types.SimpleNamespace(seed=1, tune=tune, rounds=3, repeats=4)
        state = types.SimpleNamespace(
            device_state=lambda index: {"driver": "1", "sm_clock_mhz": 1980, "power_w": 500, "throttle_reasons": "0x0"}
        )
        said = []
        together = side_by_side.SideBySide(
            {one.name: one for one in providers}, state, torch.device("cpu"), 10, options, said.append
        )
        together.make_timer = FakeTimer
        together.ceilings = {"copy_tbps": 4.0, "bf16_tflops": 700.0}
        return {row["provider"]: row for row in together.run(case or small(), "bf16")}, said

    def test_rounds_take_turns(self):
        rows, _ = self.compare(fake("a"), fake("b"))
        self.assertEqual(FakeTimer.order, ["a", "b", "a", "b", "a", "b", "a", "b"])  # the first two while preparing
        self.assertEqual(rows["a"]["median_us"], 10.0)
        self.assertLess(rows["a"]["error"]["value"], 1e-12)
        self.assertEqual(rows["a"]["sm_clock_mhz"], 1980)
        self.assertGreater(rows["a"]["floor_us"], 0)
        self.assertGreaterEqual(rows["a"]["first_call_s"], 0)

    def test_failures_are_rows_and_the_others_go_on(self):
        def crash(self, case, dtype, tensors, setting):
            raise RuntimeError("ptxas died:\n  register file full")

        def wrong(self, case, dtype, tensors, setting):
            return lambda: {"o": 1.1 * quadratic(case, tensors)}

        def drifts(self, case, dtype, tensors, setting):  # right at first, then not
            self.calls = getattr(self, "calls", 0) + 1
            factor = 1.0 if self.calls == 1 else math.nan
            return lambda: {"o": factor * quadratic(case, tensors)}

        rows, said = self.compare(
            fake("crashes", prepare=crash),
            fake("wrong", prepare=wrong),
            fake("refuses", refusal=lambda self, case, dtype: "too small"),
            fake("good"),
            fake("drifts", prepare=drifts),
        )
        self.assertEqual(rows["crashes"]["failure"], "RuntimeError: ptxas died")
        self.assertIn("wrong result before timing: relative RMS error 0.1", rows["wrong"]["failure"])
        self.assertEqual(rows["refuses"]["failure"], "refused: too small")
        self.assertIn("wrong result after timing", rows["drifts"]["failure"])
        self.assertIsNone(rows["drifts"]["error"]["value"])
        self.assertNotIn("median_us", rows["wrong"])
        self.assertIn("median_us", rows["good"])
        self.assertTrue(any("ptxas died" in text for text in said))
        json.dumps(list(rows.values()), allow_nan=False)

    def test_tuning_keeps_the_fastest_setting(self):
        class Timer(FakeTimer):
            def replay(self, warm_up, replays):
                return [{"slow": 30.0, "fast": 10.0}[self.name]] * replays

        def prepare(self, case, dtype, tensors, setting):
            def call():
                return {"o": quadratic(case, tensors)}

            call.who = setting
            return call

        original, globals()["FakeTimer"] = FakeTimer, Timer
        try:
            rows, _ = self.compare(fake("a", prepare=prepare, settings=("slow", "fast")), tune=True)
            untuned, _ = self.compare(fake("a", prepare=prepare, settings=("slow", "fast")))
        finally:
            globals()["FakeTimer"] = original
        self.assertEqual((rows["a"]["variant"], rows["a"]["median_us"]), ("fast", 10.0))
        self.assertEqual((untuned["a"]["variant"], untuned["a"]["median_us"]), ("slow", 30.0))

    def test_only_providers_of_the_direction_take_part(self):
        rows, _ = self.compare(fake("good"), fake("other", directions=("backward",)))
        self.assertEqual(list(rows), ["good"])
        self.assertEqual(rows["good"]["direction"], "forward")

    def test_a_backward_that_refuses_is_a_row(self):
        case = small(direction="forward_backward")

        def refuses(what):
            if what == "backward":
                raise RuntimeError("Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results")

        found = provider.discover("gla")
        chunk, fused = found["fla"], found["fla_fused"]
        chunk._call, fused._call = fake_fla(case, refuses), fake_fla(case)
        rows, _ = self.compare(chunk, fused, case=case)
        self.assertRegex(rows["fla"]["failure"], "RuntimeError: Triton >= 3.4.0 .* incorrect results")
        self.assertNotIn("median_us", rows["fla"])
        self.assertIn("median_us", rows["fla_fused"])
        alone, _ = self.compare(chunk, case=dataclasses.replace(case, direction="backward"))
        self.assertIn("Triton", alone["fla"]["failure"])

    def test_each_gradient_has_its_limit(self):
        case = small(direction="backward", directions=("backward",))

        def off_by(factors):
            def prepare(self, case, dtype, tensors, setting):
                right = token_by_token(case, tensors)
                return lambda: {name: factors.get(name, 1) * right[name] for name in case.wants.values()}

            return prepare

        def judged(factors, **named):
            one = fake("a", prepare=off_by(factors), directions=("backward",), **named)
            return self.compare(one, case=case)[0]["a"]

        tight = {"limits": provider.discover("gla")["tandem"].limits}
        self.assertEqual(judged({"dq": 1.002, "d_log_decay": 1.005}, **tight)["error"]["value"], 0.005)
        self.assertNotIn("failure", judged({"dq": 1.002, "d_log_decay": 1.005}, **tight))
        self.assertIn("0.004 of dk against fp64, at most 0.003", judged({"dk": 1.004}, **tight)["failure"])
        self.assertIn("0.007 of d_log_decay", judged({"d_log_decay": 1.007}, **tight)["failure"])
        self.assertNotIn("failure", judged({"dk": 1.015, "d_log_decay": 1.03}))
        self.assertRegex(judged({"dk": 1.03, "dv": 1.04})["failure"], "0.03 of dk .*; 0.04 of dv ")
        self.assertIn("inf of dv", judged({"dv": math.nan})["failure"])

    def test_a_yardstick_has_no_error(self):
        rows, _ = self.compare(
            fake(
                "other",
                same_function=False,
                prepare=lambda self, case, dtype, tensors, setting: lambda: {"o": tensors["v"]},
            )
        )
        self.assertNotIn("error", rows["other"])
        self.assertIn("median_us", rows["other"])

    def test_cold_cache(self):
        case = small()
        bytes_ = cases.cost(case)[0]
        self.assertEqual(side_by_side.sets_for(case, 0), 2)
        self.assertEqual(side_by_side.sets_for(case, bytes_), 5)
        self.assertEqual(side_by_side.sets_for(case, bytes_ * 1000), 256)
        # What a backward reads again is there once.
        alone, both = (small(axes={"T": 700}, direction=one) for one in ("backward", "forward_backward"))
        self.assertEqual(side_by_side.sets_for(both, 10**8), side_by_side.sets_for(alone, 10**8))


if __name__ == "__main__":
    unittest.main()

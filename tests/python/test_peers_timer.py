"""Tests of how bench/peers times: captures and their failures, packed sequences, a run from the command line."""

import contextlib
import dataclasses
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch
from test_peers import small  # first: it puts the checkout on sys.path
from test_peers_inputs import token_by_token
from test_peers_runs import FakeTimer, fake_fla

from bench.peers import __main__ as program
from bench.peers import cases, inputs, library, provider, side_by_side, timer


class FakeCuda:
    """What GraphTimer uses of torch.cuda. wait() is a wait for the device; as in older torch, a
    capture that it ended leaves the capture's stream current and the allocator in its pool."""

    def __init__(self):
        self.mode, self.current, self.captures = 0, "first", 0
        self.capturing = self.spoilt = False
        self.pools = []  # that the allocator is in
        self.released = []

    def wait(self):
        if self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.capturing:
            self.spoilt = True
            raise RuntimeError("operation not permitted when stream is capturing")

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream):
        before, self.current, self.capturing = self.current, stream, True
        self.pools.append(pool)
        self.captures += 1
        try:
            yield
        finally:
            self.capturing = False
            if self.spoilt:
                self.spoilt = False
                raise RuntimeError("operation failed due to a previous error during capture")
            self.current = before
            self.pools.remove(pool)

    def set_mode(self, mode):
        self.mode = mode

    def end_pool(self, device, pool):
        if pool not in self.pools:
            raise RuntimeError("not recording to the pool")
        self.pools.remove(pool)

    @contextlib.contextmanager
    def in_place(self):
        queue = unittest.mock.MagicMock()  # a stream, and what is on it
        event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 0.5)
        fakes = {
            "Stream": lambda: queue, "current_stream": lambda: queue, "stream": self.stream,
            "CUDAGraph": unittest.mock.MagicMock, "graph": self.graph, "synchronize": lambda: None,
            "get_sync_debug_mode": lambda: self.mode, "set_sync_debug_mode": self.set_mode,
            "graph_pool_handle": lambda: (0, self.captures + 1), "current_device": lambda: 0,
            "Event": lambda enable_timing: event,
        }  # fmt: skip
        ends = {
            "_cuda_endAllocateToPool": self.end_pool,
            "_cuda_releasePool": lambda device, pool: self.released.append(pool),
        }
        replaced = unittest.mock.patch.multiple
        with replaced(torch.cuda, **fakes), replaced(torch._C, create=True, **ends):
            yield


class Timer(unittest.TestCase):
    def setUp(self):
        self.cuda = FakeCuda()
        patch = self.cuda.in_place()
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)

    def usable(self):
        """Whether the next peer can be timed as if nothing had been."""
        self.assertEqual((self.cuda.mode, self.cuda.current, self.cuda.pools), (0, "first", []))
        plain = timer.GraphTimer([lambda: {"o": 1}, lambda: {"o": 2}])
        self.assertEqual((plain.outputs, plain.replay(2, 3)), ([{"o": 1}, {"o": 2}], [250.0] * 3))
        self.assertEqual(self.cuda.pools, [])

    def test_a_call_that_waits_is_refused_before_any_capture(self):
        told = r"waits for the device .*test_peers.*\.py:\d+\).*500 us per call"
        with self.assertRaisesRegex(timer.CannotCapture, told):
            timer.GraphTimer([self.cuda.wait])
        self.assertEqual(self.cuda.captures, 0)
        self.usable()

    def test_a_call_that_stops_waiting_is_timed(self):
        waited = []

        def first_only():
            if not waited:
                self.cuda.wait()
            waited.append(1)
            return {}

        timer.GraphTimer([first_only])
        self.assertEqual((len(waited), self.cuda.captures), (3, 1))  # warm up, check, capture

    def test_a_failed_capture_is_cleaned_up_and_names_its_cause(self):
        def unseen():
            if self.cuda.capturing:
                self.cuda.wait()

        with self.assertRaisesRegex(timer.CannotCapture, "not permitted when") as caught:
            timer.GraphTimer([unseen])
        self.assertIn("CannotCapture: the capture", side_by_side.describe(caught.exception))
        self.assertEqual(self.cuda.released, [(0, 1)])
        self.usable()

    def test_an_error_of_python_in_a_capture_is_cleaned_up_by_torch(self):
        def raises():
            if self.cuda.capturing:
                raise ValueError("odd shape")

        with self.assertRaisesRegex(timer.CannotCapture, "ValueError: odd shape"):
            timer.GraphTimer([raises])
        self.assertEqual(self.cuda.released, [])  # torch released the pool itself: not twice
        self.usable()

    def test_any_other_error_stays_what_it_is(self):
        with self.assertRaisesRegex(ZeroDivisionError, "zero"):
            timer.GraphTimer([lambda: 1 / 0])
        self.usable()


class Packed(unittest.TestCase):
    """fla on sequences of several lengths: it asks the device for a number in every call."""

    def test_fla_reads_from_the_device_once(self):
        case = small(axes={"B": 1}, cu_seqlens=(0, 9, 70))
        tensors = inputs.make(case, "bf16", 5, "cpu")
        peer = provider.discover("gla")["fla"]
        chunks, reads, answers = torch.tensor([0, 1, 2]), [], []
        true_item = torch.Tensor.item

        def simple_gla(q, k, v, g, scale, cu_seqlens):
            answers.append((cu_seqlens, chunks[-1].item()))
            return v, None

        def item(tensor):
            reads.append(1)
            return true_item(tensor)

        peer._call = simple_gla
        with unittest.mock.patch.object(torch.Tensor, "item", item):
            for _ in range(3):  # as for several buffer sets
                peer.prepare(case, "bf16", {name: x.clone() for name, x in tensors.items()}, "")()
            self.assertEqual(chunks[0].item(), 0)  # outside the call nothing is remembered
        self.assertEqual((len(reads), [value for _, value in answers]), (2, [2, 2, 2]))
        self.assertTrue(all(offsets is answers[0][0] for offsets, _ in answers))
        other = dataclasses.replace(case, name="other", cu_seqlens=(0, 70))
        chunks.fill_(1)
        peer.prepare(other, "bf16", tensors, "")()
        self.assertEqual(answers[-1][1], 1)  # another case is asked for again

    def test_the_row_tells_of_it(self):
        packed = small(axes={"B": 1}, cu_seqlens=(0, 9, 70))
        found = provider.discover("gla")

        def note(name, case):
            return side_by_side.Entry(found[name], case, "bf16").row.get("note", "")

        self.assertIn("in every call", note("fla", packed))
        for name, case in (("fla", small()), ("fla_fused", packed), ("unfused", small())):
            self.assertEqual(note(name, case), "")
        self.assertIn("dt = -log_decay", note("mamba2", packed))


class Timed(FakeTimer):
    """Puts the start of a step back, as the timer does."""

    def __init__(self, calls):
        self.calls = calls
        super().__init__(calls)

    def restart(self):
        for call in self.calls:
            getattr(call, "restart", lambda: None)()
        self.outputs = [call() for call in self.calls]


class Program(unittest.TestCase):
    """python -m bench.peers gla, the GPU and the kernels replaced."""

    def rows(self, asked, *providers):
        """By case and provider."""
        ceilings = {"copy_tbps": 4.0, "bf16_tflops": 700.0}
        built = types.SimpleNamespace(
            commit=lambda: "abc", device_state=lambda index: {}, ceilings=lambda index: ceilings
        )
        properties = types.SimpleNamespace(L2_cache_size=0)
        self.addCleanup(torch.set_grad_enabled, True)
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                (provider, "discover", lambda op: {one.name: one for one in providers}),
                (program, "require_gpu", lambda: torch.device("cpu")),
                (library, "Library", lambda name: built),
                (torch.cuda, "get_device_properties", lambda device: properties),
                (torch.cuda, "get_device_name", lambda device: "a GPU"),
                (torch.cuda, "empty_cache", lambda: None),
                (side_by_side.SideBySide, "make_timer", Timed),
            ):
                stack.enter_context(unittest.mock.patch.object(target, name, value))
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            code = program.main(["gla", *asked.split(), "--json", str(folder / "gla.json")])
            rows = json.loads((folder / "gla.json").read_text())["rows"]
        self.assertEqual(code, 0, rows)
        return {(row["case"], row["provider"]): row for row in rows}

    def test_rows_of_a_step(self):
        def token(q, k, v, g, state):
            q, k, v = (x.float().unsqueeze(-2) for x in (q, k, v))
            state = state * g.exp()[..., None, None] + k.mT * v
            return (q @ state).squeeze(-2), state

        class Ours(provider.Provider):
            name, directions = "tandem", ("forward", "step")

            def prepare(self, case, dtype, tensors, setting):
                def op(q, k, v, log_decay, state, scale):
                    o, new = token(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], state)
                    state.copy_(new)
                    return case.softmax_scale * o[:, None]

                return step_call(op, case, tensors)

        def recurrent(q, k, v, g, scale, initial_state, output_final_state):
            o, state = token(q[:, 0], k[:, 0], v[:, 0], g[:, 0], initial_state)
            return scale * o[:, None], state

        found = provider.discover("gla")
        step_call = sys.modules[type(found["tandem"]).__module__].step_call
        peer = found["fla_recurrent"]
        peer._call, peer.load, peer.versions = recurrent, lambda: None, dict
        asked = "--direction step --dtype bf16 --case decode_b1h32*,step_v64_state_bf16"
        told = self.rows(asked, Ours(), peer)
        self.assertEqual({row["direction"] for row in told.values()}, {"step"})
        for name in ("tandem", "fla_recurrent"):
            row = told["decode_b1h32_d128", name]
            self.assertEqual(row["median_us"], 10.0)
            self.assertEqual(row["bytes"], 2 * 32 * 512 + 4 * 32 + 2 * 32 * 128 * 128 * 4)
            self.assertLess(row["error"]["value"], 5e-3)
        self.assertIn("fp32 only", told["step_v64_state_bf16", "fla_recurrent"]["failure"])
        self.assertIn("median_us", told["step_v64_state_bf16", "tandem"])

    def test_rows_with_gradients(self):
        name = "states_none_t130"
        (case,) = cases.select(cases.load("gla"), name)
        found = provider.discover("gla")
        ours, peer, forward_only = (found[one] for one in ("tandem", "fla", "mamba2"))
        simple_gla = fake_fla(case)
        ours._op = lambda q, k, v, g, scale, **_: simple_gla(q, k, v, g, scale=case.softmax_scale)

        def backward(*arguments):
            q, k, v, g, d_o = (arguments[at] for at in (0, 1, 2, 3, 8))
            got = token_by_token(case, {"q": q, "k": k, "v": v, "log_decay": g, "d_o": d_o})
            return [got[one] for one in ("dq", "dk", "dv", "d_log_decay")]

        ours._backward, peer._call = backward, simple_gla
        for one in (ours, peer, forward_only):
            one.load, one.versions = lambda: None, dict
        tokens = 2 * 130 * 3
        forward, alone = tokens * (8 * 64 + 4), tokens * (14 * 64 + 8)
        for direction, bytes_ in (("backward", alone), ("forward_backward", forward + alone)):
            told = self.rows(f"--direction {direction} --dtype bf16 --case {name}", ours, peer, forward_only)
            self.assertEqual(list(told), [(name, "tandem"), (name, "fla")])
            for row in told.values():
                self.assertNotIn("failure", row)
                self.assertEqual((row["direction"], row["median_us"], row["bytes"]), (direction, 10.0, bytes_))
                self.assertLess(row["error"]["value"], 3e-3)
            variants = {row["provider"]: row["variant"] for row in told.values()}
            self.assertEqual(variants, {"tandem": "library's choice", "fla": "chunk_simple_gla"})


if __name__ == "__main__":
    unittest.main()

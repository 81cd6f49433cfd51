"""tandem.nn on a Hopper GPU: what test_nn.py does on a CPU, in bf16; CUDA graphs; beside transformers' models. fla's
layers: test_nn_fla.py."""

import contextlib
import copy
import unittest

import test_nn
import test_nn_mamba2
import test_nn_transformers
import torch
from reference import relative_rms
from test_cuda import WHY
from torch.utils._triton import has_triton


class OnGpu:
    """Before a class of tests for the CPU: the same on a GPU."""

    device, dtype, limit = "cuda", torch.bfloat16, 2e-2


@unittest.skipIf(WHY, WHY)
class Layers(OnGpu, test_nn.Layers):
    def test_as_on_a_cpu(self):
        for name, layer, _ in self.each():
            on_cpu = copy.deepcopy(layer).cpu().float()
            x = torch.randn(2, 300, 64, device="cuda", dtype=torch.bfloat16)
            if getattr(layer, "rotary", None) is not None:
                x = x[:, :128]
            weights = torch.randn_like(x)
            results = []
            for one, x_there, w in ((layer, x, weights), (on_cpu, x.cpu().float(), weights.cpu().float())):
                y = one(x_there)
                results.append((y, *torch.autograd.grad((y * w).sum(), list(one.parameters()))))
            names = ["y", *(key for key, _ in layer.named_parameters())]
            for key, got, expected in zip(names, *results, strict=True):
                limit = self.limit if key == "y" else 5 * self.limit
                self.assertLess(relative_rms(got.cpu(), expected.double()), limit, f"{name} {key}")

    def test_nothing_waits_for_the_gpu(self):
        mask = torch.ones(3, 40, dtype=torch.long, device="cuda")
        mask[1, :9] = 0
        for _, layer, cache in self.each():
            with no_waiting():
                layer(self.x, attention_mask=mask).square().sum().backward()
                with torch.no_grad():
                    layer(self.x, attention_mask=mask, cache=cache)
                    layer(self.x[:, :1], cache=cache)


@unittest.skipIf(WHY, WHY)
class Generation(OnGpu, test_nn.Generation):
    def test_a_step_is_one_cuda_graph(self):
        for name, layer, cache in self.each():
            with torch.no_grad():
                expected = [layer(part, cache=cache) for part in self.x.split([37, 1, 1, 1], 1)][1:]
                cache.reset()
                layer(self.x[:, :37], cache=cache)
                token, got = self.x[:, 37:38].clone(), []
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = layer(token, cache=cache)
                for part in self.x[:, 37:].split(1, 1):
                    token.copy_(part)
                    graph.replay()
                    got.append(out.clone())
            self.assertTrue(torch.equal(torch.cat(got, 1), torch.cat(expected, 1)), name)


@unittest.skipIf(WHY, WHY)
class Torch(OnGpu, test_nn.Torch):
    @unittest.skipUnless(has_triton(), "no Triton here")
    def test_inductor(self):
        for name, layer, _ in self.each("GLA with convolutions", "Mamba-2", "HGRN"):
            torch._dynamo.reset()
            parameters = list(layer.parameters())
            results = []
            for call in (torch.compile(layer, fullgraph=True), layer):
                y = call(self.x, residual=self.x)
                results.append((y, *torch.autograd.grad(y.float().square().sum(), parameters)))
            for got, expected in zip(*results, strict=True):
                self.assert_near(got, expected, name, times=5)


@unittest.skipIf(WHY or test_nn_mamba2.transformers is None, WHY or "transformers is not installed")
class Transformers(unittest.TestCase):
    def each(self):
        """(name, transformers' model on the CPU, ours), with the same parameters."""
        torch.manual_seed(0)
        for tests in (test_nn_transformers, test_nn_mamba2):
            for name in tests.CONFIGS:
                yield name, *tests.pair(name)

    def test_bf16_is_as_near_as_theirs(self):
        ids = torch.randint(1, 97, (3, 40))
        for name, theirs, ours in self.each():
            with self.subTest(name), torch.no_grad():
                expected = theirs(ids).logits.double()
                got, rounded = ours.cuda().bfloat16()(ids.cuda()), theirs.cuda().bfloat16()(ids.cuda()).logits
                self.assertLess(relative_rms(got.cpu(), expected), 1.2 * relative_rms(rounded.cpu(), expected))

    def test_tokens_one_by_one(self):
        mask = torch.ones(3, 40, dtype=torch.long, device="cuda")
        mask[0, :7] = mask[1, :31] = 0
        ids = torch.randint(1, 97, (3, 40), device="cuda")
        for name, _, ours in self.each():
            with self.subTest(name), torch.no_grad():
                ours = ours.cuda().bfloat16()
                got = ours.greedy(ids, mask, 12)
                tokens = torch.cat((ids, got.argmax(-1)), 1)[:, :-1]
                at_once = ours(tokens, attention_mask=torch.nn.functional.pad(mask, (0, 11), value=1))[:, -12:]
                self.assertLess(relative_rms(got, at_once.double()), 3e-2)


@contextlib.contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    unittest.main()

"""tandem.nn by itself: each layer fused and apart, packed, padded, cached, and as a citizen of torch. On the CPU;
test_nn_transformers.py and test_nn_fla.py compare the layers with other people's."""

import copy
import unittest

import tandem
import torch
from reference import relative_rms
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


def layers():
    """(name, layer): every token mixing, of width 64."""
    rotary = tandem.nn.RotaryEmbedding(16, 128)
    part_of_a_head = tandem.nn.RotaryEmbedding(8, 128)
    yield "attention", tandem.nn.Attention(64, 4, 2, 16, rotary=rotary, qk_norm=True, bias=True, window=9)
    yield "attention of half rotated heads", tandem.nn.Attention(64, 4, rotary=part_of_a_head, output_bias=True)
    yield "attention without positions", tandem.nn.Attention(64, 4, 1, 24)
    yield "GLA", tandem.nn.GatedLinearAttention(64, 4, 2, expand_k=0.5, feature_map="silu")
    yield "GLA with convolutions", tandem.nn.GatedLinearAttention(64, 4, feature_map="sigmoid", conv_size=4)
    yield "retention", tandem.nn.MultiScaleRetention(64, 4, 2, rotary=rotary)
    yield (
        "retention with convolutions",
        tandem.nn.MultiScaleRetention(64, 4, 2, rotary=rotary, conv_size=3, conv_bias=True),
    )
    yield "lightning attention", tandem.nn.LightningAttention(64, 4, layer_idx=2, num_layers=8)
    yield "Mamba-2", tandem.nn.Mamba2(64, 4, 16, state_size=24, n_groups=2, bias=True)
    yield "HGRN", tandem.nn.HGRN(64, 2)
    yield "HGRN with convolutions", tandem.nn.HGRN(64, conv_size=2, conv_bias=True)


class NnCase(unittest.TestCase):
    device, dtype, limit = "cpu", torch.float32, 1e-5

    def setUp(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring
        torch._dynamo.reset()
        self.x = torch.randn(3, 40, 64, device=self.device, dtype=self.dtype)

    def each(self, *names):
        """(name, layer, its cache of 3 rows) of all, or of these, with parameters that differ from their neighbours."""
        for name, layer in layers():
            if names and name not in names:
                continue
            for parameter in layer.parameters():
                nn.init.normal_(parameter, mean=0.5 if parameter.dim() == 1 else 0, std=0.2)
            layer = layer.to(self.device, self.dtype)
            is_attention = isinstance(layer, tandem.nn.Attention)
            yield name, layer, layer.new_cache(3, 64) if is_attention else layer.new_cache(3)

    def assert_near(self, got, expected, name="", times=1):
        self.assertEqual((got.shape, got.dtype), (expected.shape, expected.dtype), name)
        self.assertLess(relative_rms(got, expected.double()), times * self.limit, name)


class Layers(NnCase):
    def test_norm_and_residual_are_those_around_the_layer(self):
        norm = tandem.nn.RMSNorm(64, 1e-3).to(self.device, self.dtype)
        nn.init.normal_(norm.weight)
        mlp = tandem.nn.GatedMLP(64, 96, "gelu_tanh").to(self.device, self.dtype)
        for name, layer in [("MLP", mlp), *((name, layer) for name, layer, _ in self.each())]:
            parameters = [*norm.parameters(), *layer.parameters()]
            weight, results = torch.randn_like(self.x), []
            for fused in (True, False):
                x = self.x.clone().requires_grad_()
                y = layer(x, norm=norm, residual=x) if fused else x + layer(norm(x))
                results.append((y, *torch.autograd.grad((y * weight).sum(), [x, *parameters])))
            for i, (got, expected) in enumerate(zip(*results, strict=True)):
                self.assert_near(got, expected, f"{name} {i}", times=5)

    def test_packed_sequences(self):
        packed, offsets = self.x.flatten(0, 1)[None], torch.tensor([0, 33, 33, 50, 120], device=self.device)
        norm = tandem.nn.RMSNorm(64).to(self.device, self.dtype)
        for name, layer, _ in self.each():
            for options in ({}, {"norm": norm}):
                got = layer(packed, cu_seqlens=offsets.int(), **options)
                alone = [layer(part, **options) for part in packed.split([33, 17, 70], 1)]
                self.assert_near(got, torch.cat(alone, 1), name)

    def test_padding(self):
        """Rows with padding are as alone, whatever the padding is."""
        mask = torch.zeros(3, 50, dtype=torch.long, device=self.device)
        places = (slice(10, 40), slice(0, 33), slice(25, 30))  # of the 40 tokens: the mask has 10 columns more
        for row, place in zip(mask[:, 10:], places, strict=True):
            row[place] = 1
        padding = tandem.nn.Padding.of(mask, 40)
        filled = self.x.masked_fill(mask[:, 10:, None] == 0, float("nan"))
        for name, layer, _ in self.each():
            expected = [layer(self.x[i : i + 1, place]) for i, place in enumerate(places)]
            for x, given in ((self.x, mask), (self.x, padding), (filled, mask)):
                got = layer(x, attention_mask=given)
                for i, place in enumerate(places):
                    self.assert_near(got[i : i + 1, place], expected[i], name)
            out = layer.out_proj if hasattr(layer, "out_proj") else layer.o_proj
            (wanted,) = torch.autograd.grad(sum(y.square().sum() for y in expected), out.weight)
            loss = (layer(self.x, attention_mask=mask)[mask[:, 10:] == 1]).square().sum()
            self.assert_near(torch.autograd.grad(loss, out.weight)[0], wanted, name)

    def test_nothing(self):
        for name, layer, _ in self.each():
            for shape in ((0, 5, 64), (2, 0, 64)):
                y = layer(torch.zeros(shape, device=self.device, dtype=self.dtype))
                self.assertEqual(y.shape, shape, name)

    def test_decays(self):
        retention = tandem.nn.MultiScaleRetention(64, 2, rotary=tandem.nn.RotaryEmbedding(32, 8))
        self.assertTrue(torch.allclose(retention.decay.log_decay.exp(), 1 - torch.tensor([2.0**-5, 2.0**-6])))
        lightning = tandem.nn.LightningAttention(64, 2, layer_idx=2, num_layers=5)
        slopes = torch.tensor([2.0**-4, 2.0**-8]) * (1 - 2 / (4 + 1e-5) + 1e-5)
        self.assertTrue(torch.allclose(lightning.decay.log_decay, -slopes))

    def test_linear_attention_begins_as_in_the_papers(self):
        layer = tandem.nn.GatedLinearAttention(256, 4)
        bound = 2**-2.5 * (6 / 512) ** 0.5  # xavier's, times its gain
        self.assertLess(layer.q_proj.weight.abs().max(), bound)
        self.assertGreater(layer.q_proj.weight.abs().max(), 0.99 * bound)
        self.assertEqual(layer.gk_proj.bias.abs().max(), 0)
        layer.q_proj.reset_parameters()
        self.assertLess(layer.q_proj.weight.abs().max(), bound)

    def test_mamba2_begins_as_in_the_paper(self):
        layer = tandem.nn.Mamba2(64, 1000, 1, state_size=16, dt_range=(0.01, 1.0))
        for values, low, high in (
            (nn.functional.softplus(layer.dt_bias), 0.01, 1),
            (layer.A_log.exp(), 1, 16),
            (layer.conv1d.weight, -0.5, 0.5),
            (layer.in_proj.weight, -(64**-0.5), 64**-0.5),
        ):
            self.assertLess(abs(values.min() - low), 0.05 * abs(high))
            self.assertLess(abs(values.max() - high), 0.05 * abs(high))
            self.assertTrue(low <= values.min() and values.max() <= high + 1e-6)
        self.assertLess(abs(nn.functional.softplus(layer.dt_bias).log10().mean() + 1), 0.1)
        self.assertTrue(torch.equal(layer.D, torch.ones(1000)))
        late = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
        late.reset_parameters()
        self.assertLess(abs(late.A_log.exp().max() - 16), 0.5)

    def test_a_lower_bound_is_one_of_the_forget_gate(self):
        layer = tandem.nn.HGRN(64)
        nn.init.constant_(layer.f_proj.weight, -100)
        x = self.x.float().cpu().abs()  # so that all is forgotten, but for the bound
        bound = torch.rand(64)
        with torch.no_grad():
            state = torch.zeros(3, 64)
            for t in range(40):
                i = nn.functional.silu(layer.i_proj(x[:, t]))
                state = bound * state + (1 - bound) * i
            gate = nn.functional.silu(layer.g_proj(x[:, -1]))
            expected = layer.o_proj(layer.g_norm(state) * gate)
            got = layer(x, lower_bound=bound)[:, -1]
        self.assertLess(relative_rms(got, expected.double()), 1e-5)


class Generation(NnCase):
    def test_tokens_by_parts_are_as_at_once(self):
        norm = tandem.nn.RMSNorm(64).to(self.device, self.dtype)
        for name, layer, cache in self.each():
            for options in ({}, {"norm": norm}):
                with torch.no_grad():
                    parts = [layer(part, cache=cache, **options) for part in self.x.split([20, 1, 16, 1, 1, 1], 1)]
                    self.assert_near(torch.cat(parts, 1), layer(self.x, **options), name)
                self.assertEqual(cache.lengths.tolist(), [40] * 3)
                cache.reset()

    def test_padding_on_the_left(self):
        mask = torch.ones(3, 40, dtype=torch.long, device=self.device)
        mask[0, :7] = mask[2, :29] = 0
        for name, layer, cache in self.each():
            with torch.no_grad():
                sizes = [30, 1, 1, 8]
                first = layer(self.x[:, :30], cache=cache, attention_mask=mask[:, :30])
                got = [first, *(layer(part, cache=cache) for part in self.x[:, 30:].split(sizes[1:], 1))]
                expected = layer(self.x, attention_mask=mask)
            self.assert_near(torch.cat(got, 1)[mask == 1], expected[mask == 1], name)
            self.assertEqual(cache.lengths.tolist(), [33, 40, 11], name)

    def test_padding_in_a_later_part(self):
        mask = torch.ones(3, 20, dtype=torch.long, device=self.device)
        mask[1, :13] = 0
        for name, layer, cache in self.each():
            with torch.no_grad():
                layer(self.x[:, :20], cache=cache)
                got = layer(self.x[:, 20:], cache=cache, attention_mask=mask)
                row = torch.cat((self.x[1:2, :20], self.x[1:2, 33:]), 1)
                self.assert_near(got[1:2, 13:], layer(row)[:, 20:], name)
                self.assert_near(got[::2], layer(self.x[::2])[:, 20:], name)

    def test_a_cache_stays_where_it_is(self):
        for name, layer, cache in self.each():
            places = {key: value.data_ptr() for key, value in vars(cache).items() if isinstance(value, torch.Tensor)}
            with torch.no_grad():
                for part in self.x.split([20, 19, 1], 1):
                    layer(part, cache=cache)
            self.assertEqual(places, {key: vars(cache)[key].data_ptr() for key in places}, name)

    def test_one_graph_of_all_steps(self):
        for name, layer, cache in self.each("attention", "GLA", "retention", "Mamba-2", "HGRN with convolutions"):
            torch._dynamo.reset()
            with torch.no_grad():
                expected = [layer(part, cache=cache) for part in self.x.split([37, 1, 1, 1], 1)][1:]
                cache.reset()
                layer(self.x[:, :37], cache=cache)
                step = torch.compile(lambda x: layer(x, cache=cache), fullgraph=True, backend="aot_eager")  # noqa: B023
                got = [step(self.x[:, 37:38])]
                with torch._dynamo.config.patch(error_on_recompile=True):
                    got += [step(part) for part in self.x[:, 38:].split(1, 1)]
            self.assert_near(torch.cat(got, 1), torch.cat(expected, 1), name)


class Torch(NnCase):
    def test_one_graph_with_gradients(self):
        mask = torch.ones(3, 40, dtype=torch.long, device=self.device)
        mask[1, 9:] = 0
        norm = tandem.nn.RMSNorm(64).to(self.device, self.dtype)
        for name, layer, _ in self.each("attention", "GLA", "retention", "Mamba-2", "HGRN with convolutions"):
            torch._dynamo.reset()
            parameters = [*norm.parameters(), *layer.parameters()]

            def loss(x, mask):
                return layer(x.sin(), norm=norm, residual=x, attention_mask=mask).square().sum()  # noqa: B023

            compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
            for given in (None, mask):
                got = torch.autograd.grad(compiled(self.x, given), parameters)
                for a, b in zip(got, torch.autograd.grad(loss(self.x, given), parameters), strict=True):
                    self.assert_near(a, b, name)

    def test_activation_checkpointing(self):
        for name, layer, _ in self.each():
            parameters = list(layer.parameters())
            expected = torch.autograd.grad(layer(self.x, residual=self.x).square().sum(), parameters)
            y = checkpoint(layer, self.x, residual=self.x, use_reentrant=False)
            for a, b in zip(torch.autograd.grad(y.square().sum(), parameters), expected, strict=True):
                self.assertTrue(torch.equal(a, b), name)

    def test_fully_sharded(self):
        """Of one rank: whether parameters are there when a layer reads them, its own and its norm's."""
        backend = "gloo" if self.device == "cpu" else "nccl"
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        mesh = init_device_mesh(self.device, (1,))
        attention = tandem.nn.Attention(64, 4, rotary=tandem.nn.RotaryEmbedding(16, 64), qk_norm=True)
        block = tandem.nn.TransformerBlock(attention, tandem.nn.GatedMLP(64, 96), 64).to(self.device, self.dtype)
        for name, whole in [("block", block), *((name, layer) for name, layer, _ in self.each())]:
            sharded = copy.deepcopy(whole)
            for module in (sharded.self_attn, sharded.mlp, sharded) if whole is block else (sharded,):
                fully_shard(module, mesh=mesh)
            for layer in (whole, sharded):
                layer(self.x).square().sum().backward()
            for (key, expected), got in zip(whole.named_parameters(), sharded.parameters(), strict=True):
                self.assertTrue(torch.equal(got.grad.full_tensor(), expected.grad), f"{name} {key}")

    def test_autocast_keeps_a_wide_residual(self):
        norm = tandem.nn.RMSNorm(64).to(self.device)
        for name, layer, _ in self.each():
            layer, x = layer.float(), self.x.float()
            on_cpu = [copy.deepcopy(module).cpu() for module in (layer, norm)]  # a GPU has no ops of fp32
            expected = on_cpu[0](x.cpu(), norm=on_cpu[1]).to(self.device)
            with torch.autocast(self.device, torch.bfloat16):
                got, with_residual = layer(x, norm=norm), layer(x, norm=norm, residual=1000 * x)
            self.assertEqual((got.dtype, with_residual.dtype), (torch.bfloat16, torch.float32), name)
            self.assertLess(relative_rms(got, expected.double()), 2e-2, name)
            self.assertTrue(torch.equal(with_residual, 1000 * x + got), name)

    def test_constants_follow_the_layer_and_stay_fp32(self):
        rotary = tandem.nn.RotaryEmbedding(16, 128, theta=500.0, factor=0.5)
        with torch.device("meta"):
            late = tandem.nn.RotaryEmbedding(16, 128, theta=500.0, factor=0.5)
            layer = tandem.nn.MultiScaleRetention(64, 4, rotary=late)
        layer = layer.bfloat16().to_empty(device=self.device)
        expected = tandem.nn.MultiScaleRetention(64, 4, rotary=rotary)
        self.assertTrue(torch.equal(layer.decay.log_decay.cpu(), expected.decay.log_decay))
        for got, table in ((late.cos, rotary.cos), (late.sin, rotary.sin)):
            self.assertTrue(torch.equal(got.cpu(), table) or relative_rms(got.cpu(), table.double()) < 1e-6)
        self.assertEqual(rotary.cos.shape, (128, 8))
        self.assertAlmostEqual(rotary.sin[3, 1].item(), 0.5 * torch.tensor(3 * 500 ** (-2 / 16)).sin().item(), places=6)

    def test_copies(self):
        for name, layer, _ in self.each():
            self.assertTrue(torch.equal(copy.deepcopy(layer)(self.x), layer(self.x)), name)

    def test_refusals(self):
        rotary = tandem.nn.RotaryEmbedding(16, 32)
        attention = tandem.nn.Attention(64, 4, rotary=rotary).to(self.device, self.dtype)
        short = self.x[:, :20]
        mask, offsets = torch.ones(3, 20, device=self.device), torch.tensor([0, 20], device=self.device)
        for error, text, call in (
            (ValueError, "attention_mask must have shape [B,S]", lambda: attention(short, attention_mask=mask[:, :9])),
            (ValueError, "got [20, 1, 3, 20]", lambda: attention(short, attention_mask=mask.expand(20, 1, 3, 20))),
            (ValueError, "cu_seqlens must be alone", lambda: attention(short, attention_mask=mask, cu_seqlens=offsets)),
            (ValueError, "has 32 positions, got 40 tokens", lambda: attention(self.x)),
            (ValueError, "has 32 positions, got 33 tokens", lambda: attention.new_cache(1, 33)),
            (NotImplementedError, "under torch.no_grad()", lambda: attention(short, cache=attention.new_cache(3, 32))),
            (ValueError, "num_kv_heads must divide num_heads = 4, got 3", lambda: tandem.nn.Attention(64, 4, 3)),
            (ValueError, "window must be at least 1", lambda: tandem.nn.Attention(64, 4, window=0)),
            (
                ValueError,
                "num_kv_heads must divide num_heads = 4, got 3",
                lambda: tandem.nn.GatedLinearAttention(64, 4, 3),
            ),
            (
                ValueError,
                "num_kv_heads must divide expand_k * d = 62, got 4",
                lambda: tandem.nn.GatedLinearAttention(62, 4),
            ),
            (ValueError, "n_groups must divide num_heads = 4, got 3", lambda: tandem.nn.Mamba2(64, 4, n_groups=3)),
            (
                ValueError,
                "feature_map must be one of None, silu, sigmoid, got relu",
                lambda: tandem.nn.GatedLinearAttention(64, 4, feature_map="relu"),
            ),
        ):
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        cache = attention.new_cache(3, 32)
        with torch.no_grad():
            attention(short, cache=cache)
            with self.assertRaisesRegex(ValueError, "there is room for 32 tokens of a row, got 40"):
                attention(short, cache=cache)
            cache.reset()
            attention(short, cache=cache)
            retention = tandem.nn.MultiScaleRetention(64, 4, rotary=rotary).to(self.device, self.dtype)
            states = retention.new_cache(3)
            retention(short, cache=states)
            with self.assertRaisesRegex(ValueError, "there is room for 32 tokens of a row, got 40"):
                retention(short, cache=states)


if __name__ == "__main__":
    unittest.main()

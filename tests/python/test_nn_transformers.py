"""tandem.nn beside transformers' own classes: state dicts, logits, gradients, greedy tokens. On the CPU, with small
random models."""

import unittest

import tandem
import torch
from reference import relative_rms
from torch import nn

try:
    import transformers
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
except ImportError:
    transformers = None

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # far from uniform logits
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama with biases": ("LlamaConfig", {"attention_bias": True, "hidden_act": "gelu", "head_dim": 24}),
    "mistral": ("MistralConfig", {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
}


class Model(nn.Module):
    """A causal language model of TransformerBlocks, its parameters named as transformers' are."""

    def __init__(self, config, rotary_of):
        super().__init__()
        source = rotary_of.model.rotary_emb
        head_dim = 2 * source.inv_freq.numel()
        options = {"frequencies": source.inv_freq, "factor": source.attention_scaling}
        rotary = tandem.nn.RotaryEmbedding(head_dim, config.max_position_embeddings, **options)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.model.layers = nn.ModuleList(tandem.nn.TransformerBlock.of_config(config, i, rotary) for i in layers)
        self.model.norm = tandem.nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = tandem.nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, ids, caches=None, **options):
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cache=None if caches is None else caches[i], **options)
        return self.lm_head(self.model.norm(x))

    @torch.no_grad()
    def greedy(self, ids, attention_mask, tokens):
        """The logits of the tokens that follow, [B,tokens,vocabulary]."""
        caches = [layer.new_cache(ids.shape[0], ids.shape[1] + tokens) for layer in self.model.layers]
        logits = [self(ids, caches, attention_mask=attention_mask)[:, -1]]
        for _ in range(tokens - 1):
            logits.append(self(logits[-1].argmax(-1)[:, None], caches)[:, 0])
        return torch.stack(logits, 1)


def pair(name):
    """transformers' model and ours, with the same parameters."""
    config, options = CONFIGS[name]
    config = getattr(transformers, config)(**SIZES, **options)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in theirs.parameters():  # norms and biases begin with ones and zeros
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    ours = Model(config, theirs)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@unittest.skipIf(transformers is None, "transformers is not installed")
class Transformers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring
        self.ids = torch.randint(1, SIZES["vocab_size"], (3, 20))

    def test_state_dicts_load_strictly_both_ways(self):
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                for parameter in ours.parameters():
                    nn.init.normal_(parameter)
                theirs.load_state_dict(ours.state_dict(), strict=True)
                for key, parameter in theirs.named_parameters():
                    self.assertTrue(torch.equal(parameter, ours.get_parameter(key)), key)

    def test_parameters_begin_as_theirs(self):
        config = transformers.LlamaConfig(**SIZES | {"initializer_range": 0.02, "hidden_size": 256})
        theirs = transformers.AutoModelForCausalLM.from_config(config).model.layers[0]
        ours = tandem.nn.TransformerBlock.of_config(config, 0, tandem.nn.RotaryEmbedding(64, 128))
        for name, parameter in theirs.named_parameters():
            got = ours.get_parameter(name)
            self.assertLess(abs(got.std() - parameter.std()), 1e-3, name)
            self.assertLess(abs(got.mean() - parameter.mean()), 1e-3, name)

    def test_logits_and_gradients(self):
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                expected, got = theirs(self.ids).logits, ours(self.ids)
                self.assertLess(relative_rms(got, expected.double()), 1e-5)
                weights = torch.randn_like(expected)
                for logits in (expected, got):
                    (logits * weights).sum().backward()
                for key, parameter in theirs.named_parameters():
                    self.assertLess(relative_rms(ours.get_parameter(key).grad, parameter.grad.double()), 2e-5, key)

    def test_bf16_is_as_near_as_theirs(self):
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                with torch.no_grad():
                    expected = theirs(self.ids).logits.double()
                    got, rounded = ours.bfloat16()(self.ids), theirs.bfloat16()(self.ids).logits
                self.assertLess(relative_rms(got, expected), 1.2 * relative_rms(rounded, expected))

    def test_padding(self):
        left, right = torch.ones(2, 3, 20, dtype=torch.long)
        left[0, :4] = left[1, :11] = right[0, 13:] = right[2, 1:] = 0
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                for mask in (left, right):
                    expected = theirs(self.ids, attention_mask=mask).logits
                    got = ours(self.ids, attention_mask=mask)
                    self.assertLess(relative_rms(got[mask == 1], expected[mask == 1].double()), 2e-5)

    def test_greedy_tokens(self):
        mask = torch.ones(3, 20, dtype=torch.long)
        mask[0, :4] = mask[1, :11] = 0
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                options = {"do_sample": False, "max_new_tokens": 12, "attention_mask": mask}
                expected = theirs.generate(self.ids, **options, return_dict_in_generate=True, output_logits=True)
                got = ours.greedy(self.ids, mask, 12)
                self.assertEqual(got.argmax(-1).tolist(), expected.sequences[:, 20:].tolist())
                self.assertLess(relative_rms(got, torch.stack(expected.logits, 1).double()), 2e-5)

    def test_positions_of_tokens(self):
        theirs, ours = pair("qwen3")
        positions = torch.arange(20).flip(0)[None] + 3 * torch.arange(3)[:, None]
        expected = theirs(self.ids, position_ids=positions).logits
        self.assertLess(relative_rms(ours(self.ids, position_ids=positions), expected.double()), 2e-5)

    def test_configurations_that_it_has_not(self):
        rotary = tandem.nn.RotaryEmbedding(16, 128)
        for config, text in (
            (transformers.LlamaConfig(**SIZES, mlp_bias=True), "has no MLP with biases"),
            (transformers.LlamaConfig(**SIZES, hidden_act="tanh"), "nor activation tanh"),
            (transformers.GemmaConfig(**SIZES), "model_type must be one of llama, mistral, qwen2, qwen3, got gemma"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                tandem.nn.TransformerBlock.of_config(config, 0, rotary)


@unittest.skipIf(transformers is None, "transformers is not installed")
class MiniMax(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring
        config = transformers.MiniMaxConfig(
            **SIZES, head_dim=16, block_size=32, layer_types=["linear_attention", "full_attention"]
        )
        self.theirs = MiniMaxLightningAttention(config, 0)
        options = {"head_dim": 16, "layer_idx": 0, "num_layers": 2, "block_size": 32}
        self.ours = tandem.nn.LightningAttention(64, 4, **options)
        nn.init.normal_(self.theirs.norm.weight)
        self.x = torch.randn(2, 70, 64)

    def test_state_dicts_load_strictly_both_ways(self):
        self.theirs.load_state_dict(self.ours.state_dict(), strict=True)
        for name, value in self.ours.state_dict().items():
            torch.testing.assert_close(self.theirs.state_dict()[name], value)
        slopes = MiniMaxLightningAttention.get_slope_rate(self.theirs)
        torch.testing.assert_close(self.ours.state_dict()["slope_rate"], slopes)
        inside = nn.ModuleList([self.ours])
        inside.load_state_dict({f"0.{name}": value for name, value in self.theirs.state_dict().items()}, strict=True)

    def test_outputs_and_gradients(self):
        self.ours.load_state_dict(self.theirs.state_dict(), strict=True)
        expected, got = self.theirs(self.x, None, None)[0], self.ours(self.x)
        self.assertLess(relative_rms(got, expected.double()), 1e-5)
        for o in (expected, got):
            o.square().sum().backward()
        for name, parameter in self.theirs.named_parameters():
            self.assertLess(relative_rms(self.ours.get_parameter(name).grad, parameter.grad.double()), 1e-4, name)

    def test_padding_on_the_left(self):
        self.ours.load_state_dict(self.theirs.state_dict(), strict=True)
        mask = torch.ones(2, 70, dtype=torch.long)
        mask[1, :33] = 0
        expected, got = self.theirs(self.x, None, mask)[0], self.ours(self.x, attention_mask=mask)
        self.assertLess(relative_rms(got[mask == 1], expected[mask == 1].double()), 1e-5)


if __name__ == "__main__":
    unittest.main()

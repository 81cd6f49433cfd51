"""tandem.nn.Mamba2 beside transformers' own model: state dicts, logits, gradients, greedy tokens. On the CPU, with
small random models."""

import inspect
import unittest

import tandem
import torch
from reference import relative_rms
from torch import nn

try:
    import transformers
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
except ImportError:
    transformers = None
    GROUPS = 1
else:  # of which each has its norm, as in mamba_ssm; older versions of transformers norm them all together
    GROUPS = 2 if "group_size" in inspect.signature(MambaRMSNormGated).parameters else 1

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 24,
    "n_groups": GROUPS,
    "num_hidden_layers": 2,
    "chunk_size": 16,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS = {
    "mamba2": {},
    "of one group and three taps": {"n_groups": 1, "conv_kernel": 3, "use_conv_bias": False},
    "with biases and limits": {"use_bias": True, "time_step_limit": (0.3, 0.9), "layer_norm_epsilon": 0.1},
}


class Model(nn.Module):
    """A causal language model of Mamba2 layers, its parameters named as transformers' are."""

    def __init__(self, config):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.backbone.layers = nn.ModuleList()
        for _ in range(config.num_hidden_layers):
            layer = nn.Module()
            layer.norm = tandem.nn.RMSNorm(config.hidden_size, config.layer_norm_epsilon)
            layer.mixer = tandem.nn.Mamba2.of_config(config)
            self.backbone.layers.append(layer)
        self.backbone.norm_f = tandem.nn.RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.lm_head = tandem.nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, ids, caches=None, attention_mask=None):
        x = self.backbone.embeddings(ids)
        for i, layer in enumerate(self.backbone.layers):
            cache = None if caches is None else caches[i]
            x = layer.mixer(x, norm=layer.norm, residual=x, attention_mask=attention_mask, cache=cache)
        return self.lm_head(self.backbone.norm_f(x))

    @torch.no_grad()
    def greedy(self, ids, attention_mask, tokens):
        """The logits of the tokens that follow, [B,tokens,vocabulary]."""
        caches = [layer.mixer.new_cache(ids.shape[0]) for layer in self.backbone.layers]
        logits = [self(ids, caches, attention_mask)[:, -1]]
        for _ in range(tokens - 1):
            logits.append(self(logits[-1].argmax(-1)[:, None], caches)[:, 0])
        return torch.stack(logits, 1)


def pair(name):
    """transformers' model and ours, with the same parameters."""
    config = transformers.Mamba2Config(**SIZES | CONFIGS[name])
    theirs = transformers.Mamba2ForCausalLM(config).eval()
    for parameter in theirs.parameters():  # norms, biases and D begin with ones and zeros
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    ours = Model(config)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@unittest.skipIf(transformers is None, "transformers is not installed")
class Mamba2(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring
        self.ids = torch.randint(1, SIZES["vocab_size"], (3, 40))

    def test_state_dicts_load_strictly_both_ways(self):
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                for parameter in ours.parameters():
                    nn.init.normal_(parameter)
                theirs.load_state_dict(ours.state_dict(), strict=True)
                for key, parameter in theirs.named_parameters():
                    self.assertTrue(torch.equal(parameter, ours.get_parameter(key)), key)

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
                    self.assertLess(relative_rms(ours.get_parameter(key).grad, parameter.grad.double()), 1e-4, key)

    def test_bf16_is_as_near_as_theirs(self):
        for name in CONFIGS:
            with self.subTest(name):
                theirs, ours = pair(name)
                with torch.no_grad():
                    expected = theirs(self.ids).logits.double()
                    got, rounded = ours.bfloat16()(self.ids), theirs.bfloat16()(self.ids).logits
                self.assertLess(relative_rms(got, expected), 1.2 * relative_rms(rounded, expected))

    def test_padding(self):
        left, right = torch.ones(2, 3, 40, dtype=torch.long)
        left[0, :7] = left[1, :31] = right[0, 13:] = right[2, 1:] = 0
        # With a bias in_proj of their zeros is none, and reaches the first tokens through the convolution.
        for name in ("mamba2", "of one group and three taps"):
            with self.subTest(name):
                theirs, ours = pair(name)
                for mask in (left, right):
                    expected = theirs(self.ids, attention_mask=mask).logits
                    got = ours(self.ids, attention_mask=mask)
                    self.assertLess(relative_rms(got[mask == 1], expected[mask == 1].double()), 2e-5)

    def test_greedy_tokens(self):
        mask = torch.ones(3, 40, dtype=torch.long)
        mask[0, :7] = mask[1, :31] = 0
        for name in ("mamba2", "of one group and three taps"):  # without limits, which their single steps leave out
            with self.subTest(name):
                theirs, ours = pair(name)
                options = {"do_sample": False, "max_new_tokens": 12, "attention_mask": mask}
                expected = theirs.generate(self.ids, **options, return_dict_in_generate=True, output_logits=True)
                got = ours.greedy(self.ids, mask, 12)
                self.assertEqual(got.argmax(-1).tolist(), expected.sequences[:, 40:].tolist())
                self.assertLess(relative_rms(got, torch.stack(expected.logits, 1).double()), 2e-5)

    def test_configurations_that_it_has_not(self):
        config = transformers.Mamba2Config(**SIZES, hidden_act="gelu")
        with self.assertRaisesRegex(ValueError, "has no activation but silu, got gelu"):
            tandem.nn.Mamba2.of_config(config)


if __name__ == "__main__":
    unittest.main()

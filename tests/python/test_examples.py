"""examples/: they run on a CPU, learn, and Tandem learns what the plain recurrence learns."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEASURED = ROOT / "bench/results/nvidia-h200/training/gla_lm.json"


def run(script, *arguments):
    # Torch and Tandem each have a pool of threads, which should not spin while the other one's work.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, ROOT / "examples" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


class InFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    @classmethod
    def train(cls, *arguments):
        """The results of tiny runs of examples/train_gla_lm.py."""
        out = cls.folder / "run.json"
        done = run("train_gla_lm.py", "--tiny", "--device", "cpu", "--json", out, *arguments)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return json.loads(out.read_text())


class TrainGlaLm(InFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = cls.train("--seeds", "0", "0", "1")["runs"]

    def test_learns(self):
        run = self.runs[0]
        self.assertEqual((run["op"], len(run["losses"])), ("tandem", 60))
        # A model that knows nothing has log(256) = 5.5, one that knows how often each byte comes about 3.4.
        self.assertGreater(run["losses"][0], 5)
        self.assertLess(sum(run["losses"][-10:]) / 10, 3.3)
        self.assertLess(run["validation_loss"], 3.4)
        self.assertGreater(run["tokens_per_second"], 0)

    def test_another_seed_is_another_run(self):
        first, again, other = self.runs
        self.assertEqual(first["losses"], again["losses"])
        self.assertNotEqual(first["losses"], other["losses"])


class EveryOp(InFolder):
    """What --all writes, and what becomes of it in docs/training.md."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results = cls.train("--all", "--steps", "8")

    def setUp(self):
        self.document = self.folder / "training.md"
        self.document.write_text("before\n<!-- training:begin -->\nold\n<!-- training:end -->\nafter\n")

    def plot(self, *arguments):
        return run("plot_gla_lm.py", "--docs", self.folder, *arguments, self.folder / "run.json")

    def test_every_op_that_is_here_with_three_seeds(self):
        runs = {(one["op"], one["seed"]) for one in self.results["runs"]}
        self.assertEqual(runs, {(op, seed) for op in ("tandem", "recurrence") for seed in range(3)})
        self.assertEqual(self.results["missing"], {"fla": "it needs a GPU"})
        speed = [(row["op"], row["tokens"]) for row in self.results["speed"]]
        self.assertEqual(speed, [("tandem", 64), ("tandem", 128)])
        self.assertTrue({"device", "commit", "date", "command", "versions", "text"} <= self.results.keys())

    def test_tandem_learns_as_the_recurrence_does(self):
        losses = {(one["op"], one["seed"]): one["losses"] for one in self.results["runs"]}
        for seed in range(3):
            for a, b in zip(losses["tandem", seed], losses["recurrence", seed], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib here")
    def test_the_picture_and_the_numbers(self):
        self.assertEqual(self.plot("--check").returncode, 1)
        done = self.plot()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.plot("--check").returncode, 0)
        text = self.document.read_text()
        self.assertTrue(text.startswith("before\n<!-- training:begin -->\n"))
        self.assertTrue(text.endswith("<!-- training:end -->\nafter\n"))
        for one in self.results["runs"]:
            self.assertIn(f"{one['validation_loss']:.4f}", text)
        self.assertIn("the spread of the 3 seeds", text)
        picture = (self.folder / "training.svg").read_text()
        self.assertIn("prefers-color-scheme: dark", picture)


class OnRanks(InFolder):
    """torchrun, with gloo: as on one process, and again from a checkpoint."""

    @staticmethod
    def command(ranks, *arguments):
        script = ROOT / "examples/train_gla_lm.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), script]
        return [*launch, "--tiny", "--device", "cpu", *arguments]

    def on_ranks(self, ranks, *arguments):
        out = self.folder / "ranks.json"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = self.command(ranks, "--steps", "8", "--json", out, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(out.read_text())["runs"][0]

    def check(self, run):
        """One process's numbers are rounded to four digits."""
        one = self.train("--steps", "8")["runs"][0]
        self.assertEqual(len(run["losses"]), 8)
        for a, b in zip(run["losses"], one["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=1e-3)
        self.assertAlmostEqual(run["validation_loss"], one["validation_loss"], delta=1e-3)

    def test_fsdp_along_time_goes_on_from_a_checkpoint_to_the_same_bits(self):
        options = ("--parallel", "fsdp", "--context", "2", "--checkpoints", self.folder / "checkpoints")
        whole = self.on_ranks(2, *options, "--every", "5")
        self.check(whole)
        rest = self.on_ranks(2, *options, "--resume")
        self.assertEqual(rest["first_step"], 5)
        self.assertEqual(rest["losses"], whole["losses"][5:])
        self.assertEqual(rest["validation_loss"], whole["validation_loss"])

    @unittest.skipUnless(os.environ.get("TANDEM_TEST_ALL"), "with TANDEM_TEST_ALL only: four processes")
    def test_ddp_by_batch_and_time(self):
        self.check(self.on_ranks(4, "--context", "2"))

    def test_a_killed_rank_ends_the_run(self):
        with subprocess.Popen(
            self.command(2, "--context", "2", "--steps", "1000000"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            lines = iter(running.stdout.readline, "")
            next(line for line in lines if line.startswith("step    0"))
            children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
            output = "".join(lines)
        self.assertNotEqual(running.returncode, 0)
        self.assertIn("SIGKILL", output)


class Decode(InFolder):
    def test_every_mixing_is_timed(self):
        out, picture = self.folder / "decode.json", self.folder / "decode.svg"
        plot = ("--plot", picture) if importlib.util.find_spec("matplotlib") else ()
        done = run("decode.py", "--tiny", "--device", "cpu", "--json", out, *plot)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads(out.read_text())["rows"]
        mixings = ("attention", "gla", "mamba2", "hgrn")
        expected = [(mixing, prompt) for mixing in mixings for prompt in (32, 128)]
        self.assertEqual([(row["mixing"], row["prompt"]) for row in rows], expected)
        self.assertTrue(all(row["token_milliseconds"] > 0 and row["prompt_milliseconds"] > 0 for row in rows))
        if plot:
            self.assertTrue(all(f"<!-- {mixing} -->" in picture.read_text() for mixing in mixings))

    def test_tokens_are_those_of_the_text_as_a_whole(self):
        sys.path.insert(0, str(ROOT / "examples"))
        self.addCleanup(sys.path.remove, str(ROOT / "examples"))
        example = importlib.import_module("decode")
        torch.manual_seed(0)
        prompt = torch.randint(256, (2, 20))
        for mixing in example.MIXINGS:
            model = example.LanguageModel(example.TINY, mixing)
            got, _, _ = example.decode(model, prompt, 8)
            text = torch.cat((prompt, got), 1)
            with torch.no_grad():
                expected = torch.cat([model(text[:, : 20 + t]) for t in range(8)], 1)
            self.assertEqual(got.tolist(), expected.tolist(), mixing)


class TrainingSpeed(InFolder):
    def test_all_layers_train_alike(self):
        out = self.folder / "speed.json"
        done = run("training_speed.py", "--tiny", "--device", "cpu", "--profile", "--json", out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        tandem, compiled = json.loads(out.read_text())["rows"]
        self.assertEqual((tandem["layers"], compiled["layers"]), ("tandem", "compile"))
        for a, b in zip(tandem["losses"], compiled["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=1e-3)
        self.assertLess(tandem["losses"][-1], tandem["losses"][0] - 0.05)
        self.assertGreater(tandem["tokens_per_second"], 0)
        profile = tandem["profile"]
        self.assertTrue(all(time > 0 for time in profile["groups"].values()), profile)
        # Operations follow each other and overlap nowhere: their own times are those in which one runs.
        self.assertAlmostEqual(sum(profile["groups"].values()) / profile["busy_milliseconds"], 1, delta=0.1)
        self.assertLess(profile["busy_milliseconds"], profile["profiled_milliseconds"])
        self.assertGreater(profile["kernels"], 0)
        # One of them again, in time and not: the other's row stays.
        again = ("--tiny", "--device", "cpu", "--layers", "tandem", "--json", out)
        self.assertEqual(run("training_speed.py", *again, "--commit", "abc").returncode, 0)
        late = run("training_speed.py", *again, "--patience", "0.01")
        self.assertEqual(late.returncode, 1, late.stderr)
        self.assertIn("tandem is left out: not ready", late.stdout)
        rows = json.loads(out.read_text())["rows"]
        self.assertEqual([(row["layers"], row["size"]) for row in rows], [("tandem", "tiny"), ("compile", "tiny")])
        self.assertEqual((rows[0]["commit"], rows[1]), ("abc", compiled))
        page = self.folder / "speed.md"
        page.write_text("before\n<!-- speed:begin -->\n<!-- speed:end -->\nafter\n")
        self.assertEqual(run("training_speed.py", "--json", out, "--render", page).returncode, 0)
        self.assertIn(f"| tiny | tandem | {rows[0]['tokens_per_second']:,} | 1.00 |", page.read_text())
        self.assertTrue(page.read_text().endswith("<!-- speed:end -->\nafter\n"))
        # Measured again without a profile, tandem has none.
        self.assertNotIn("profile", rows[0])
        groups = compiled["profile"]["groups"]
        head, _, *lines = page.read_text().split("\n\n")[1].splitlines()
        self.assertEqual(head, "| milliseconds of a step | cpu: tiny compile |")
        self.assertEqual(len(lines), len(groups) + 4)
        products, step = groups["matrix products"], compiled["profile"]["milliseconds"]
        self.assertIn(f"| matrix products | {products:.1f} ({100 * products / step:.0f} %) |", lines)
        self.assertIn(f"| the step | {step:.1f} |", lines)

    def test_kernels_have_groups(self):
        sys.path.insert(0, str(ROOT / "examples"))
        self.addCleanup(sys.path.remove, str(ROOT / "examples"))
        example = importlib.import_module("step_profile")
        ours, torchs = "void tandem::cuda::", "void at::native::"
        kernels = {
            "recurrence": [
                ours
                + "gla::(anonymous namespace)::gla_segment_entries_kernel(tandem::cuda::gla::SegmentEntriesParams)",
                ours + "gla::gla_walk_kernel<tandem::cuda::gla::WalkConfig<__nv_bfloat16, 128> >(WalkParams)",
                "chunk_bwd_kernel_dqkwg",
                "chunk_local_cumsum_scalar_kernel",
            ],
            "convolutions": [
                ours + "causal_conv1d::causal_conv1d_backward_kernel<float, 4>(Params)",
                "causal_conv1d_fwd_kernel",
                "triton_poi_fused_constant_pad_nd_convolution_transpose_3",
            ],
            "matrix products": [
                ours + "projection::projection_weight_kernel<__nv_bfloat16, 256>(Params)",
                ours + "gated_output::gated_output_forward_kernel<__nv_bfloat16, 256>(Params)",
                ours + "gemm_swiglu::gemm_swiglu_forward_kernel<__nv_bfloat16, 256>(Params)",
                "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nt_align8>(Params)",
                "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(Params)",
            ],
            "norms and element-wise": [
                ours
                + "projection::projection_gradient_kernel<__nv_bfloat16>(tandem::cuda::projection::GradientParams)",
                ours + "gated_output::(anonymous namespace)::team_gate_gradient_kernel<__nv_bfloat16, 32>(Params)",
                ours + "gemm::(anonymous namespace)::gemm_convert_kernel<float, __nv_bfloat16>(Params)",
                ours + "(anonymous namespace)::normalize_kernel<Shape>(NormalizeParams)",
                torchs
                + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >()",
                "layer_norm_gated_bwd_kernel",
                "triton_red_fused__fused_rms_norm_0",
                "Memset (Device)",
            ],
            "loss and embedding": [
                "triton_red_fused__log_softmax__to_copy_nll_loss_forward_1",
                torchs + "(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>()",
                torchs + "(anonymous namespace)::sum_and_scatter<c10::BFloat16, long>(long*)",
            ],
            "optimizer": [
                torchs + "(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4> >()",
            ],
            "everything else": ["spin_kernel(long)"],
        }
        for group, names in kernels.items():
            for name in names:
                self.assertEqual(example.group_of(name), group, name)
        self.assertEqual(set(kernels), {*dict(example.GROUPS), example.OTHER})

    def test_a_kernel_takes_what_lies_behind_those_before_it(self):
        sys.path.insert(0, str(ROOT / "examples"))
        self.addCleanup(sys.path.remove, str(ROOT / "examples"))
        own_times = importlib.import_module("step_profile").own_times
        self.assertEqual(own_times([(4, 6), (0, 2), (1, 3), (4.5, 5)]), [2, 2, 1, 0])
        self.assertEqual(own_times([]), [])


class Documented(unittest.TestCase):
    @unittest.skipUnless(MEASURED.exists(), "not measured yet")
    def test_docs_training_md_is_what_was_measured(self):
        done = run("plot_gla_lm.py", "--check", MEASURED)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()

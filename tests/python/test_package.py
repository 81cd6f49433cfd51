"""The installed package: one file for every torch, nothing of torch's C++ ABI in it, examples that run."""

import doctest
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import tandem
import torch

from cases import ROOT

FOLDER = pathlib.Path(tandem.__file__).parent
EXTENSION = FOLDER / "libtandem_torch.so"
LIBRARY = FOLDER / "libtandem_portable.so"
PROGRAM = FOLDER.parent / "tandem_program/tandem"

# Graphs that users have exported name these: an order or a name may not change.
SCHEMAS = (
    "gla_forward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens, bool output_saved_states) -> (Tensor, Tensor?, Tensor?)",
    "gla_state_forward(Tensor k, Tensor v, Tensor? log_decay, Tensor? cu_seqlens) -> (Tensor, Tensor)",
    "gla_step(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor(a!) state) -> Tensor",
    "gla_backward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor? saved_states, Tensor d_o, Tensor? d_final_state, bool wants_dq, bool wants_dk, "
    "bool wants_dv, bool wants_d_log_decay, bool wants_d_initial_state) "
    "-> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
    "gla_state_backward(Tensor q, Tensor d_o, Tensor? log_decay, float? scale, Tensor? cu_seqlens) -> (Tensor, Tensor)",
    "gated_scan_forward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens, bool output_states) -> (Tensor, Tensor?, Tensor?)",
    "gated_scan_backward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, Tensor? states, bool wants_dx, bool wants_d_decay, "
    "bool wants_d_gate, bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?)",
    "gated_scan_decay(Tensor decay, float? is_log) -> (Tensor, Tensor)",
    "gated_scan_carry(Tensor(a!) out, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor before, Tensor carry) "
    "-> ()",
    "gated_scan_carry_backward(Tensor d_out, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor before) "
    "-> (Tensor, Tensor)",
    "linear_scan_forward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens, bool output_x, bool output_states) "
    "-> (Tensor, Tensor?, Tensor?, Tensor?)",
    "linear_scan_backward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, Tensor? x, Tensor? states, "
    "bool wants_du, bool wants_d_weight, bool wants_d_decay, bool wants_d_gate, bool wants_d_initial_state) "
    "-> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
    "attention_forward(Tensor q, Tensor k, Tensor v, float? scale, float? causal, float? window_left, "
    "float? window_right, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? lengths_k, bool output_log_sum_exp) "
    "-> (Tensor, Tensor?)",
    "attention_backward(Tensor q, Tensor k, Tensor v, float? scale, float? causal, float? window_left, "
    "float? window_right, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? lengths_k, Tensor o, "
    "Tensor log_sum_exp, Tensor d_o, Tensor? d_log_sum_exp, bool wants_dq, bool wants_dk, bool wants_dv) "
    "-> (Tensor?, Tensor?, Tensor?)",
    "attention_weights_forward(Tensor q, Tensor k, float? scale, float? causal) -> Tensor",
    "attention_weights_backward(Tensor q, Tensor k, float? scale, float? causal, Tensor w, Tensor d_w, bool wants_dq, "
    "bool wants_dk) -> (Tensor?, Tensor?)",
    "causal_conv1d_forward(Tensor x, Tensor weight, Tensor? bias, float? silu, Tensor? initial_state, "
    "Tensor? cu_seqlens, bool output_final_state) -> (Tensor, Tensor?)",
    "causal_conv1d_backward(Tensor x, Tensor weight, Tensor? bias, float? silu, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, bool wants_dx, bool wants_d_weight, bool wants_d_bias, "
    "bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?)",
    "causal_conv1d_step(Tensor x, Tensor weight, Tensor? bias, float? silu, Tensor(a!) state) -> Tensor",
    # What is no tensor is in the two lists, by its place in the tables of src/ops/projection.cpp.
    "projection_forward(Tensor x, "
    + ", ".join(f"Tensor{'?' if i else ''} weight{i}, Tensor? bias{i}" for i in range(8))
    + ", int[] given, float[] numbers) -> (Tensor"
    + ", Tensor?" * 23
    + ")",
    "projection_backward(Tensor x, "
    + ", ".join(
        f"Tensor{'?' if i else ''} weight{i}, "
        + ", ".join(f"Tensor? {name}{i}" for name in ("bias", "d_out", "slope", "out", "inverse_norm"))
        for i in range(8)
    )
    + ", int[] given, float[] numbers) -> ("
    + ", ".join(["Tensor?"] * 17)
    + ")",
    "rms_norm_gemm_forward(Tensor x, Tensor norm_weight, Tensor? rstd, Tensor? rope_cos, Tensor? rope_sin, "
    "Tensor? rope_positions, Tensor? cu_seqlens, "
    + ", ".join(f"Tensor{'?' if i else ''} weight{i}, Tensor? bias{i}, Tensor? head_norm_weight{i}" for i in range(8))
    + ", int[] given, float[] numbers) -> (Tensor"
    + ", Tensor?" * 24
    + ")",
    "rms_norm_gemm_backward(Tensor x, Tensor norm_weight, Tensor rstd, Tensor? rope_cos, Tensor? rope_sin, "
    "Tensor? rope_positions, Tensor? cu_seqlens, "
    + ", ".join(
        f"Tensor{'?' if i else ''} weight{i}, "
        + ", ".join(f"Tensor? {name}{i}" for name in ("bias", "head_norm_weight", "pre_norm", "head_rstd", "d_out"))
        for i in range(8)
    )
    + ", int[] given, float[] numbers) -> ("
    + ", ".join(["Tensor?"] * 26)
    + ")",
    "gemm_swiglu_forward(Tensor x, Tensor gate_weight, Tensor up_weight, float? activation, Tensor? norm_weight, "
    "float? eps, Tensor? rstd, bool output_gate_slope, bool output_up_slope, bool output_kept_rstd) "
    "-> (Tensor, Tensor?, Tensor?, Tensor?)",
    "gemm_swiglu_backward(Tensor x, Tensor gate_weight, Tensor up_weight, Tensor? norm_weight, Tensor? rstd, "
    "Tensor gate_slope, Tensor up_slope, Tensor d_out, bool wants_dx, bool wants_d_gate_weight, "
    "bool wants_d_up_weight, bool wants_d_norm_weight) -> (Tensor?, Tensor?, Tensor?, Tensor?)",
    "gated_output_forward(Tensor o, Tensor? gate, float? gate_activation, Tensor? group_norm_weight, "
    "float? group_width, float? group_eps, float? norm_behind_gate, Tensor weight, Tensor? bias, Tensor? residual, "
    "float? norm, Tensor? norm_weight, Tensor? norm_bias, float? eps, bool output_sum, bool output_mean, "
    "bool output_rstd, bool output_gated, bool output_group_rstd) "
    "-> (Tensor, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
    "gated_output_backward(Tensor o, Tensor? gate, float? gate_activation, Tensor? group_norm_weight, "
    "float? group_width, float? norm_behind_gate, Tensor? group_rstd, Tensor? gated, Tensor weight, Tensor? bias, "
    "float? norm, Tensor? norm_weight, Tensor? norm_bias, Tensor? sum, Tensor? mean, Tensor? rstd, Tensor? d_out, "
    "Tensor? d_sum, bool wants_d_o, bool wants_d_gate, bool wants_d_residual, bool wants_d_weight, "
    "bool wants_d_bias, bool wants_d_group_norm_weight, bool wants_d_norm_weight, bool wants_d_norm_bias) "
    "-> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
)


def undefined_symbols():
    """Name -> version ("" for none) of what the extension takes from other libraries."""
    if not shutil.which("nm"):
        raise unittest.SkipTest("no nm (binutils) here")
    lines = subprocess.run(["nm", "-D", "--undefined-only", EXTENSION], check=True, capture_output=True, text=True)
    return dict(line.split()[-1].partition("@")[::2] for line in lines.stdout.splitlines())


def needed_and_run_path(binary):
    """The libraries that a binary needs, and the folders where it looks for them first."""
    if not shutil.which("readelf"):
        raise unittest.SkipTest("no readelf (binutils) here")
    dynamic = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic)
    return re.findall(r"NEEDED.*\[(.*)\]", dynamic), found[0].split(":") if found else []


def torch_cxx_symbols(names):
    """Symbols of torch's C++ ABI: mangled names that mention at::, c10:: or torch::."""
    return [name for name in names if name.startswith("_Z") and re.search(r"(?<!\d)(2at|3c10|5torch|5caffe)", name)]


class Package(unittest.TestCase):
    def test_is_the_installed_wheel(self):
        self.assertFalse(FOLDER.is_relative_to(ROOT / "python"), f"{FOLDER} is the source tree")
        self.assertTrue((FOLDER / "py.typed").is_file())
        project = (ROOT / "CMakeLists.txt").read_text()
        self.assertIn(f"project(tandem VERSION {tandem.__version__} ", project)

    def test_has_no_names_but_its_own(self):
        names = {name for name in vars(tandem) if not name.startswith("_")}
        self.assertEqual(names, set(tandem.__all__))

    def test_wheel_is_for_any_python_of_this_platform(self):
        wheel = importlib.metadata.distribution("tandem-kernels").read_text("WHEEL")
        self.assertRegex(wheel, r"(?m)^Tag: py3-none-\w*linux\w*$")
        self.assertIn("Root-Is-Purelib: false", wheel)

    def test_has_the_licenses_of_what_it_holds(self):
        files = importlib.metadata.distribution("tandem-kernels").files
        self.assertLessEqual({"LICENSE", "NOTICE.md"}, {file.name for file in files if "licenses" in file.parts})

    def test_stays_small(self):
        self.assertLess(LIBRARY.stat().st_size, 48 << 20)  # as compressed by nvcc
        # The kernels are in the library alone.
        self.assertLess(EXTENSION.stat().st_size, 4 << 20)
        if PROGRAM.exists():
            self.assertLess(PROGRAM.stat().st_size, 16 << 20)

    def test_schemas_are_as_published(self):
        for schema in SCHEMAS:
            op = getattr(torch.ops.tandem, schema.partition("(")[0]).default
            self.assertEqual(str(op._schema), "tandem::" + schema)
        names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("tandem::")}
        self.assertEqual(names, {"tandem::" + schema.partition("(")[0] for schema in SCHEMAS})

    def test_the_check_of_symbols_finds_them(self):
        bad = ["_ZN2at4_ops5empty4callEv", "_ZN3c106detail14torchCheckFailEv", "_ZNK5torch6Tensor3dimEv"]
        fine = ["aoti_torch_get_dim", "_ZNSt6vectorIfE4pushEv", "_ZN6tandem11gla_forwardEv", "_Zn12at"]
        self.assertEqual(torch_cxx_symbols(bad + fine), bad)

    def test_no_cxx_symbols_of_torch(self):
        symbols = undefined_symbols()
        self.assertIn("torch_call_dispatcher", symbols)
        self.assertEqual(torch_cxx_symbols(symbols), [])

    def test_loads_without_torchs_cuda_libraries(self):
        stable = {name for name in undefined_symbols() if re.match(r"(aoti_)?torch_", name)}
        # Only this one of the C functions that name CUDA is in libtorch_cpu.
        self.assertEqual({name for name in stable if "cuda" in name}, {"aoti_torch_device_type_cuda"})

    def test_needs_no_library_of_cuda(self):
        for binary in (EXTENSION, LIBRARY):
            needed, _ = needed_and_run_path(binary)
            others = [name for name in needed if re.match(r"libcu|libnv|libc10|libdnnl|libtorch_cuda", name)]
            self.assertEqual(others, [])

    def test_finds_what_it_needs_in_its_own_folder_or_loaded_by_torch(self):
        needed, run_path = needed_and_run_path(EXTENSION)
        self.assertLessEqual({"libtorch_cpu.so", "libtandem_portable.so"}, set(needed))
        self.assertEqual(run_path, ["$ORIGIN"])
        self.assertEqual(needed_and_run_path(LIBRARY)[1], [])


@unittest.skipUnless(PROGRAM.exists(), "the package was built without the program")
class Program(unittest.TestCase):
    def run_program(self, *arguments, how=("-c", "import tandem_program; tandem_program.main()")):
        done = subprocess.run([sys.executable, *how, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_is_the_one_of_this_version(self):
        code, out, error = self.run_program("--version", how=("-m", "tandem"))
        self.assertEqual((code, error), (0, ""))
        self.assertTrue(out.startswith(f"tandem {tandem.__version__} "), out)

    def test_checks_a_case_and_passes_on_its_exit_status(self):
        code, out, error = self.run_program("check", "gated_scan", "--case", "t64_d7", "--backend", "cpu")
        self.assertEqual(code, 0, out + error)
        self.assertRegex(out, r"\b0 failed")
        self.assertEqual(self.run_program("check", "no_op")[0], 2)

    def test_starts_without_torch(self):
        code = "import sys, tandem_program; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.stdout, "False\n", done.stderr)

    def test_is_installed_as_a_command(self):
        scripts = importlib.metadata.distribution("tandem-kernels").entry_points.select(group="console_scripts")
        self.assertEqual([(one.name, one.value) for one in scripts], [("tandem", "tandem_program:main")])

    def test_says_what_to_install_where_it_was_left_out(self):
        code = "import pathlib, tandem_program as p; p._PROGRAM = pathlib.Path('/no/tandem'); p.main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("libcli11-dev", done.stderr)


def load_tests(loader, tests, pattern):
    """Adds the examples in the docstrings."""
    for name in [name for name in sys.modules if name == "tandem" or name.startswith("tandem.")]:
        try:
            tests.addTests(doctest.DocTestSuite(sys.modules[name]))
        except ValueError:  # no docstrings
            pass
    return tests


if __name__ == "__main__":
    unittest.main()

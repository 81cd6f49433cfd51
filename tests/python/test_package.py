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

# Graphs that users have exported name these: an order or a name may not change.
SCHEMAS = (
    "gla_forward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)",
    "gla_state_forward(Tensor k, Tensor v, Tensor? log_decay, Tensor? cu_seqlens) -> (Tensor, Tensor)",
    "gla_step(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor(a!) state) -> Tensor",
    "gla_backward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor d_o, Tensor? d_final_state, bool wants_dq, bool wants_dk, bool wants_dv, "
    "bool wants_d_log_decay, bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
    "gla_state_backward(Tensor q, Tensor d_o, Tensor? log_decay, float? scale, Tensor? cu_seqlens) -> (Tensor, Tensor)",
    "gated_scan_forward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)",
    "gated_scan_backward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, bool wants_dx, bool wants_d_decay, bool wants_d_gate, "
    "bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?)",
    "linear_scan_forward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens, bool output_x, bool output_states) "
    "-> (Tensor, Tensor?, Tensor?, Tensor?)",
    "linear_scan_backward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, Tensor? x, Tensor? states, "
    "bool wants_du, bool wants_d_weight, bool wants_d_decay, bool wants_d_gate, bool wants_d_initial_state) "
    "-> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)",
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
    "rms_norm_gemm_forward(Tensor x, Tensor norm_weight, float? eps, Tensor? rstd, "
    + "".join(f"Tensor{'?' if i else ''} weight{i}, Tensor? bias{i}, bool fp32_out{i}, " for i in range(8))
    + "bool output_kept_rstd) -> (Tensor"
    + ", Tensor?" * 8
    + ")",
    "rms_norm_gemm_backward(Tensor x, Tensor norm_weight, Tensor rstd, "
    + "".join(f"Tensor{'?' if i else ''} weight{i}, Tensor? bias{i}, Tensor? d_out{i}, " for i in range(8))
    + "bool wants_dx, bool wants_d_norm_weight, "
    + ", ".join(f"bool wants_d_weight{i}, bool wants_d_bias{i}" for i in range(8))
    + ") -> ("
    + ", ".join(["Tensor?"] * 18)
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


def torch_cxx_symbols(names):
    """Symbols of torch's C++ ABI: mangled names that mention at::, c10:: or torch::."""
    return [name for name in names if name.startswith("_Z") and re.search(r"(?<!\d)(2at|3c10|5torch|5caffe)", name)]


class Package(unittest.TestCase):
    def test_is_the_installed_wheel(self):
        self.assertFalse(FOLDER.is_relative_to(ROOT / "python"), f"{FOLDER} is the source tree")
        self.assertTrue((FOLDER / "py.typed").is_file())
        project = (ROOT / "CMakeLists.txt").read_text()
        self.assertIn(f"project(tandem VERSION {tandem.__version__} ", project)

    def test_wheel_is_for_any_python_of_this_platform(self):
        wheel = importlib.metadata.distribution("tandem").read_text("WHEEL")
        self.assertRegex(wheel, r"(?m)^Tag: py3-none-\w*linux\w*$")
        self.assertIn("Root-Is-Purelib: false", wheel)

    def test_stays_small(self):
        self.assertLess(EXTENSION.stat().st_size, 112 << 20)  # a quarter of it when zipped

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

    def test_needs_no_library_of_cuda_and_has_no_run_path(self):
        if not shutil.which("readelf"):
            self.skipTest("no readelf (binutils) here")
        dynamic = subprocess.run(["readelf", "-d", EXTENSION], check=True, capture_output=True, text=True).stdout
        self.assertNotRegex(dynamic, r"RPATH|RUNPATH")
        needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
        self.assertIn("libtorch_cpu.so", needed)
        self.assertEqual([name for name in needed if re.match(r"libcu|libnv|libc10|libdnnl|libtorch_cuda", name)], [])


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

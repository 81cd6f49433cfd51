"""Tests of the checks under scripts/: each passes what is right and fails what is wrong."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def write(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# As nvcc 13.0 wrote them.
CLEAN_LOG = """\
ptxas info    : 9 bytes gmem
ptxas info    : Compiling entry function '_Z18gla_forward_kernelPfyy' for 'sm_90a'
ptxas info    : Function properties for _Z18gla_forward_kernelPfyy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compile time = 2.033 ms
"""
SPILLING_LOG = CLEAN_LOG.replace(
    "0 bytes stack frame, 0 bytes spill stores, 0", "48 bytes stack frame, 64 bytes spill stores, 80"
)
SERIALISED_LINE = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function '_Z18gla_forward_kernelPfyy'\n"
)
DIVERGENT_LINE = (
    "ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized due to program "
    "dependence on compiler-inserted WG.AR in divergent path in the function '_Z18gla_forward_kernelPfyyi'\n"
)
IGNORED_LINE = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register "
    "requirements.\n"
)
INJECTED_LINE = (
    "ptxas info    : (C7519) warpgroup.arrive is injected in around line 62 by compiler to allow use of registers in "
    "GMMA\n"
)

SASS = """\
Fatbin elf code:
================
arch = sm_90a
\t\tFunction : _ZN6tandem18gla_forward_kernelINS_6ConfigEEEvv
\t.headerflags\t@"EF_CUDA_SM90"
        /*0010*/                   {first} ;
\t\tFunction : _ZN6tandem11fill_kernelEv
        /*0010*/                   STG.E desc[UR4][R2.64], R5 ;
"""
HGMMA = "HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT, gsb0"


class CheckKernels(unittest.TestCase):
    check = script("check_kernels")

    def problems(self, log):
        return self.check.ptxas_problems(log)[0]

    def test_clean_log_passes(self):
        self.assertEqual(self.check.ptxas_problems(CLEAN_LOG), ([], ["_Z18gla_forward_kernelPfyy"]))
        self.assertEqual(self.problems(CLEAN_LOG + INJECTED_LINE), [])

    def test_spill_fails(self):
        self.assertIn("spills 64 bytes of stores, 80 of loads", self.problems(SPILLING_LOG)[0])
        warning = (
            "ptxas warning : Registers are spilled to local memory in function '_Z1kv', 340 bytes spill stores, "
            "340 bytes spill loads\n"
        )
        self.assertEqual(len(self.problems(CLEAN_LOG + warning)), 1)

    def test_serialised_wgmma_and_ignored_setmaxnreg_fail(self):
        self.assertIn("C7510", self.problems(CLEAN_LOG + SERIALISED_LINE)[0])
        self.assertIn("C7520", self.problems(CLEAN_LOG + DIVERGENT_LINE)[0])
        self.assertIn("C7508", self.problems(CLEAN_LOG + IGNORED_LINE)[0])

    def test_log_without_usage_fails(self):
        self.assertTrue(self.problems(""))
        self.assertTrue(self.problems(CLEAN_LOG.replace("Function properties", "")))

    def test_objects_need_their_logs(self):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {"a.cu.o": "", "a.cu.o.ptxas.log": CLEAN_LOG, "b.cu.o": ""})
            a, b = pathlib.Path(folder, "a.cu.o"), pathlib.Path(folder, "b.cu.o")
            self.assertEqual(self.check.check_ptxas([a])[0], [])
            self.assertIn("no b.cu.o.ptxas.log", self.check.check_ptxas([a, b])[0][0])
        self.assertEqual(self.check.check_ptxas([])[0], ["no kernel found"])

    def test_matrix_kernel_needs_hgmma(self):
        problems, found = self.check.sass_problems(SASS.format(first=HGMMA), ["gla_forward_kernel"])
        self.assertEqual((problems, len(found)), ([], 1))
        problems, found = self.check.sass_problems(SASS.format(first="FFMA R1, R2, R3, R4"), ["gla_forward_kernel"])
        self.assertEqual((len(problems), len(found)), (1, 1))

    def test_a_clamp_has_two_predicates(self):
        wrong = "VIMNMX.RELU R0, P0, P0, R0, 0x4, PT"
        for right in ("VIMNMX.RELU R0, R0, 0x4, PT", wrong.replace("P0, P0", "P0, P1")):
            self.assertEqual(self.check.sass_problems(SASS.format(first=right), [])[0], [])
        self.assertIn(wrong, self.check.sass_problems(SASS.format(first=wrong), [])[0][0])

    def test_an_arrival_waits_for_loads(self):
        load, use, arrive = "LDSM.16.M88.4 R8, [R4]", "FADD R8, R8, R9", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR8], RZ"

        def arrivals(*instructions):
            """(instruction, scoreboard that it sets, scoreboards that it waits for)"""
            text = ""
            for i, (one, sets, waits) in enumerate(instructions):
                encoding = (sets << 5 | 7 << 8 | waits << 11) << 41
                text += f"        /*{16 * i:04x}*/                   {one} ;   /* 0x0000000000007000 */\n"
                text += f"                                             /* 0x{encoding:016x} */\n"
            return self.check.open_loads(text)

        self.assertEqual(arrivals((load, 1, 0), (use, 7, 2), (arrive, 7, 0)), [])
        self.assertEqual(len(arrivals((load, 1, 0), (arrive, 7, 0), (use, 7, 2))), 1)
        self.assertEqual(len(arrivals((load, 1, 0), (use, 7, 4), (arrive, 7, 0))), 1)
        self.assertEqual(arrivals((load, 1, 0), ("MEMBAR.ALL.CTA", 7, 0), (arrive, 7, 0)), [])
        # One without a scoreboard has come when a later one has.
        self.assertEqual(arrivals((load, 7, 0), (load, 2, 0), (use, 7, 4), (arrive, 7, 0)), [])
        self.assertEqual(len(arrivals((load, 7, 0), (arrive, 7, 0))), 1)

    def test_operands_of_a_product_under_way_stay(self):
        product = "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR20].tnspB, R24, gsb0"

        def writes(*instructions):
            text = "".join(
                f"        /*{16 * i:04x}*/                   {one} ;\n" for i, one in enumerate(instructions)
            )
            return self.check.operand_hazards(text)

        wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
        self.assertEqual(writes(product, wait, "LDS.64 R56, [R86]"), [])
        self.assertEqual(writes(product, "LDS.64 R60, [R86]", "STS.64 [R3], R56", "@P0 FADD R55, R56, R57"), [])
        self.assertEqual(writes(product, "LDS.64 R56, [R86]"), ["0010: LDS.64 R56, [R86]"])
        self.assertEqual(len(writes(product, "LDS.64 R54, [R86]", "LDS.128 R54, [R86]", "@!P1 FADD R59, R1, R2")), 2)
        # One group may still be under way.
        self.assertEqual(
            len(
                writes(product, product.replace("R56", "R60"), wait.replace("0x0", "0x1"), "MOV R56, R1", "MOV R60, R1")
            ),
            1,
        )
        # More may be under way than there are.
        two = [product, product.replace("R56", "R60"), wait.replace("0x0", "0x3")]
        self.assertEqual(len(writes(*two, "MOV R56, R1", "MOV R60, R1")), 2)
        # A product with both operands in shared memory.
        self.assertEqual(writes(HGMMA, "MOV R24, R1"), [])

    def test_marker_is_the_whole_name(self):
        self.assertEqual(self.check.sass_problems(SASS.format(first=HGMMA), ["forward_kernel"]), ([], []))


class CheckLayers(unittest.TestCase):
    check = script("check_layers")

    def violations(self, files):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, files)
            return list(self.check.violations(pathlib.Path(folder)))

    def test_right_includes_pass(self):
        files = {
            "include/tandem/ops/x.h": '#include <vector>\n#include "tandem/tensor.h"\n',
            "src/cuda/x/forward.cuh": '#include <cuda_runtime.h>\n#include <cute/tensor.hpp>\n#include "ops/x.h"\n',
            "src/cpu/x.cpp": '#include <oneapi/dnnl/dnnl.hpp>\n#include "ops/x.h"\n',
            "tests/cpp/test_x.cpp": '#include "cuda/x/variants.h"\n#include "cpu/matmul.h"\n',
        }
        self.assertEqual(self.violations(files), [])

    def test_wrong_includes_fail(self):
        for name, include in [
            ("include/tandem/x.h", "<cuda_runtime.h>"),
            ("include/tandem/x.h", '"core/check.h"'),
            ("include/tandem/x.h", "<fmt/core.h>"),
            ("src/ops/x.cpp", "<cute/tensor.hpp>"),
            ("src/ops/x.cpp", '"cpu/matmul.h"'),
            ("src/cpu/x.cpp", '"cuda/parts/tma.cuh"'),
            ("src/cuda/x/variants.cpp", '"cpu/matmul.h"'),
            ("src/core/x.h", '"ops/gla.h"'),
            ("src/core/x.h", "<torch/csrc/stable/tensor.h>"),
            ("cli/x.cpp", "<cublasLt.h>"),
            ("src/cuda/x/forward.cuh", '"../lab/trick.cuh"'),
            ("src/cpu/x.cpp", '"tests/reference/gla.h"'),
        ]:
            with self.subTest(f"{name} includes {include}"):
                self.assertTrue(self.violations({name: f"#include {include}\n"}))

    def test_empty_tree_fails(self):
        self.assertTrue(self.violations({"README.md": ""}))


class Format(unittest.TestCase):
    def check(self, files):
        """What `scripts/format --check` says of a repository with these files, and its exit status."""
        with tempfile.TemporaryDirectory() as folder:
            write(folder, files)
            for name in ("scripts/format", "scripts/python_tools", "pyproject.toml", ".clang-format"):
                (pathlib.Path(folder) / name).parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, pathlib.Path(folder) / name)
            (pathlib.Path(folder) / ".venv").symlink_to(ROOT / ".venv")
            command = [pathlib.Path(folder) / "scripts/format", "--check"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 77:
                self.skipTest(done.stdout.strip())
            return done.stdout, done.returncode

    def test_formatted_files_pass(self):
        files = {"src/a.cpp": "int a = 1;\n", "bench/a.py": "a = 1\n", "scripts/a": "#!/usr/bin/env python3\na = 1\n"}
        self.assertEqual(self.check(files), ("", 0))

    def test_others_fail(self):
        for name, text in (
            ("src/a.cpp", "int  a = 1;\n"),
            ("bench/a.py", "a  = 1\n"),
            ("bench/a.py", "import os\n"),
            ("tests/python/a.py", f"a = 1  # {'long ' * 30}\n"),
            ("scripts/a", "#!/usr/bin/env python3\na = 'b'\n"),
        ):
            with self.subTest(name, text=text):
                said, status = self.check({"src/b.cpp": "int b = 1;\n", "bench/b.py": "b = 1\n", name: text})
                self.assertEqual((status, said.splitlines()[0]), (1, "not formatted (make format):"))
                self.assertIn(name, said)


class Lint(unittest.TestCase):
    lint = script("lint")

    def run_on(self, files):
        """The exit status, and what was printed, for a build folder of these files."""
        with tempfile.TemporaryDirectory() as folder:
            write(folder, files)
            commands = [
                {"directory": folder, "file": f"{folder}/{name}", "command": f"c++ -I{folder}/src -c {folder}/{name}"}
                for name in files
                if name.endswith(".cpp")
            ]
            write(folder, {"compile_commands.json": json.dumps(commands)})
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = self.lint.main([folder])
            return status, output.getvalue()

    def setUp(self):
        if self.lint.find_tool() is None:
            self.skipTest("no clang-tidy 14")

    def test_right_files_pass(self):
        status, output = self.run_on({"src/core/a.cpp": "int twice(int x) { return 2 * x; }\n"})
        self.assertEqual((status, output.count("[1/1]")), (0, 1))

    def test_the_programs_folders_are_linted_and_what_is_generated_is_not(self):
        bad = "int* nothing() { return 0; }\n"
        self.assertEqual(self.run_on({"cli/calls/a.cpp": bad})[0], 1)
        files = {"cli/a.cpp": "int one() { return 1; }\n", "build/cpu/cli/generated/b.cpp": bad}
        self.assertEqual(self.run_on(files)[0], 0)

    def test_a_finding_fails_and_is_told_once(self):
        includes = '#include "core/nothing.h"\n'
        status, output = self.run_on(
            {
                "src/core/nothing.h": "inline int* nothing() { return 0; }\n",
                "src/ops/a.cpp": includes,
                "src/cpu/b.cpp": includes,
            }
        )
        self.assertEqual((status, output.count("modernize-use-nullptr")), (1, 1))

    def test_a_file_that_does_not_compile_fails(self):
        status, output = self.run_on({"cli/a.cpp": '#include "missing.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("missing.h", output)

    def test_nothing_to_lint_fails(self):
        self.assertEqual(self.run_on({"bench/cuda/a.cpp": "int* nothing() { return 0; }\n"})[0], 1)


class CheckPaths(unittest.TestCase):
    check = script("check_paths")

    def violations(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {name: text})
            return list(self.check.violations(pathlib.Path(folder)))

    def test_paths_of_the_checkout_and_of_systems_pass(self):
        for text in [
            "docs/work/x.md",
            "https://example.org/home/x",
            "/usr/bin/env",
            "#!/bin/bash",
            "/rooted",
            "~/tandem",
            "a/tmp/b",
        ]:
            with self.subTest(text):
                self.assertEqual(self.violations("README.md", text), [])

    def test_private_paths_fail(self):
        folders = ["root", "home/someone", "tmp/clean/tandem", "work/main", "Users/someone", "var/tmp"]
        for path in [f"/{folder}/x.json" for folder in folders] + ["/" + "root", "/" + "tmp"]:
            for name in ["README.md", "bench/results/gpu/gla.json", "cli/main.cpp", "docs/ops/gla.log.md"]:
                for text in [f"--json {path}", f'"{path}"', f"`x={path}`", f"--json={path}`"]:
                    with self.subTest(f"{name}: {text}"):
                        self.assertTrue(self.violations(name, f"a\n{text}\n"))

    def test_an_empty_tree_fails(self):
        self.assertTrue(self.violations(".git", ""))


class CheckDocs(unittest.TestCase):
    check = script("check_docs")
    RUN = "| 20260101-1 | " + 180 * "x" + " |\n"
    RIGHT = {
        "README.md": 119 * "a\n" + "[page](docs/ops/x.md#how-it-works)\n",
        "docs/ops/x.md": "## How it works\n" + 138 * "b\n" + "| " + 300 * "c" + " |\n",
        "docs/ops/x.log.md": 500 * "d\n"
        + "[there](x.md), [here](#an-end), [web](https://example.org)\n# An end\n`[i](j)`\n",
        "docs/results.md": 300 * "e" + "\n" + RUN,
    }

    def violations(self, **changed):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {**self.RIGHT, **{name.replace("__", "/") + ".md": text for name, text in changed.items()}})
            return list(self.check.violations(pathlib.Path(folder)))

    def test_right_documents_pass(self):
        self.assertEqual(self.violations(), [])

    def test_wrong_documents_fail(self):
        for what, changed in {
            "a long README": {"README": 121 * "a\n"},
            "a long page": {"docs__ops__x": "## How it works\n" + 140 * "b\n"},
            "a wide page": {"docs__ops__y": 121 * "b"},
            "a wide journal": {"docs__ops__x.log": 121 * "b"},
            "a wide README": {"README": 121 * "b"},
            "a link to no file": {"docs__a": "[x](ops/z.md)"},
            "a link to no heading": {"docs__a": "[x](ops/x.md#what-it-is)"},
            "an image that is not there": {"docs__a": "![x](x.svg)"},
            "a run of two lines' width": {"docs__results": self.RUN.replace("x", "xx")},
        }.items():
            with self.subTest(what):
                self.assertEqual(len(self.violations(**changed)), 1)

    def test_no_readme_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertTrue(list(self.check.violations(pathlib.Path(folder))))


class Figures(unittest.TestCase):
    TABLE = """\
<!-- speed:begin -->
<!-- speed:end -->
<!-- results:begin -->
| op | shape | forward (us) | / floor | fastest peer | forward + backward (us) | / floor | fastest peer |
|---|---|---:|---:|---|---:|---:|---|
| gla | B4 | 72.7 | 1.16 | fla 2.37x | 312 | 1.80 | mamba2 0.50x |
| gla, one token | B64 | 68.9 | 1.09 | fla 1.19x | - | - | - |
| projection | M8 | 10.0 | 1.00 | unfused 1.04x | 20.0 | 1.00 | unfused 0.98x |
<!-- results:end -->
"""
    ROW = {"provider": "tandem", "op": "gla", "direction": "forward_backward", "dtype": "bf16"}

    def run_figures(self, folder, *arguments):
        command = [ROOT / "scripts/figures", *arguments, folder]
        return subprocess.run(command, capture_output=True, text=True)

    def test_what_is_measured_is_said(self):
        rows = [{**self.ROW, "error": {"metric": "rel_rms", "value": value}} for value in (0.0012, 0.0034, 0.002)]
        rows += [{**self.ROW, "provider": "fla", "error": {"metric": "rel_rms", "value": 1}}]
        rates = {"tandem": 110, "fla": 100}
        speed = [{"op": op, "tokens": 64, "tokens_per_second": rate} for op, rate in rates.items()]
        larger = [
            {"size": "7B", "layers": layers, "tokens_per_second": rate} for layers, rate in {**rates, "x": 1}.items()
        ]
        files = {
            "README.md": self.TABLE,
            "docs/numerics.md": "<!-- errors:begin -->\nold\n<!-- errors:end -->\nmore\n",
            "bench/results/nvidia-h200/gla.json": json.dumps({"rows": rows}),
            "bench/results/nvidia-h200/training/gla_lm.json": json.dumps({"speed": speed}),
            "bench/results/nvidia-h200/training/speed.json": json.dumps({"rows": larger}),
        }
        with tempfile.TemporaryDirectory() as folder:
            write(folder, files)
            self.assertEqual(self.run_figures(folder, "--check").returncode, 1)
            done = self.run_figures(folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.run_figures(folder, "--check").returncode, 0)
            readme, numerics, chart = (
                pathlib.Path(folder, name).read_text() for name in ("README.md", "docs/numerics.md", "docs/front.svg")
            )
        words = " ".join(readme.split())
        self.assertIn("gla 0.50 to 2.37 (fla, mamba2); projection 0.98 to 1.04 (unfused).", words)
        self.assertIn("language model: 1.10, 1.10 with 7B parameters (fla;", words)
        self.assertTrue(readme.endswith(self.TABLE.partition("<!-- speed:end -->")[2]))
        self.assertIn("| gla | forward + backward | 3.4e-03 |  |", numerics)
        self.assertTrue(numerics.endswith("<!-- errors:end -->\nmore\n"))
        self.assertEqual(chart.count("<rect"), 5)
        self.assertEqual(chart.count('class="slower"'), 2)
        self.assertIn("gla one token", chart)
        self.assertIn("prefers-color-scheme: dark", chart)

    def test_a_table_without_peers_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {"README.md": self.TABLE.replace("fastest peer", "peer"), "docs/numerics.md": ""})
            done = self.run_figures(folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no table with a peer", done.stderr)


class Version(unittest.TestCase):
    def test_is_the_same_everywhere(self):
        version = re.search(r"project\(tandem VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        changes = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertEqual(changes[0], version)
        self.assertIn(f"\nversion: {version}\n", (ROOT / "CITATION.cff").read_text())


class CheckReport(unittest.TestCase):
    check = script("check_report")
    DOWN, UP = ["descending", ["2 MB", "40 (1.50x) in 1", "-"]], ["ascending", ["1", "3", "-"]]
    WRONG_PAGE = """<title>x</title><body style="background: white"><div style="height: 30000px; width: 800px"></div>
<table class="sorted"><thead><tr><th class="number">a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>
</body>"""

    def test_columns_that_sort_pass(self):
        names = {"numeric": False, "clicks": [["ascending", ["b", "a"]], ["descending", ["a"]]]}
        numbers = {"numeric": True, "clicks": [self.DOWN, self.UP]}
        self.assertEqual(list(self.check.unsorted_columns([numbers, names])), [])

    def test_columns_that_do_not_sort_fail(self):
        for clicks in (
            [self.UP, self.DOWN],
            [self.DOWN, [None, ["1", "3"]]],
            [["descending", ["1", "3"]], self.UP],
            [["descending", ["2 kB", "1 MB"]], self.UP],
            [["descending", ["90 (1.2x)", "40 (1.5x)"]], self.UP],
            [self.DOWN, ["ascending", ["-", "1", "3"]]],
        ):
            found = list(self.check.unsorted_columns([{"numeric": True, "clicks": clicks}]))
            self.assertTrue(found and all(text.startswith("column 1: ") for text in found), clicks)

    @unittest.skipUnless(check.find_browser(), "no Chromium")
    def test_a_wrong_page_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {"page.html": self.WRONG_PAGE})
            page = pathlib.Path(folder) / "page.html"
            found = " ".join(self.check.problems(self.check.find_browser(), page, pathlib.Path(folder)))
        for text in ("is ffffff, in the dark ffffff", "pages, not 1 to 12", "px wide in a window", "column 1: sorted"):
            self.assertIn(text, found)


class Minutes(unittest.TestCase):
    minutes = script("minutes")

    def test_built_files_count_once_by_kind(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, ".ninja_log")
            lines = [
                (0, 60000, 9, "src/CMakeFiles/tandem_objects.dir/cuda/gla/forward_bf16.cu.o", "a"),
                (0, 2000, 20, "src/CMakeFiles/tandem_objects.dir/cuda/gla/step_bf16.cu.o", "b"),
                (0, 3000, 20, "src/CMakeFiles/tandem_objects.dir/cuda/gla/variants.cpp.o", "c"),
                (5, 1005, 20, "tests/tandem_tests", "d"),
                (5, 1005, 20, "tests/tandem_tests_list.cmake", "d"),
            ]
            rows = ["\t".join([str(a), str(b), str(s * 10**9), *rest]) for a, b, s, *rest in lines]
            log.write_text("# ninja log v5\n" + "\n".join(rows) + "\n")
            self.assertEqual(
                dict(self.minutes.build_seconds(log, 10)),
                {"library, CUDA": 2.0, "library, C++": 3.0, "tests, C++": 1.0},
            )

    def test_tests_are_summed_by_label(self):
        shown = [
            {"name": "a", "properties": [{"name": "LABELS", "value": ["cpu"]}]},
            {"name": "b", "properties": [{"name": "LABELS", "value": ["cpu"]}, {"name": "TIMEOUT", "value": 9}]},
            {"name": "c", "properties": [{"name": "LABELS", "value": ["python", "gpu"]}]},
            {"name": "d"},
        ]
        labels = self.minutes.test_labels(json.dumps({"tests": shown}))
        cases = [f'<testcase name="{name}" time="{time}"/>' for name, time in zip("abcd", (1.5, 2, 4, 8), strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ctest.xml")
            path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            seconds, tests = self.minutes.test_seconds(path, labels)
        self.assertEqual(dict(seconds), {"cpu": 3.5, "python": 4.0, "without a label": 8.0})
        self.assertEqual(tests["cpu"], 2)


class AutoCuda(unittest.TestCase):
    """TANDEM_CUDA=auto of the Python package, with an nvcc that is none."""

    def configure(self, files, **environment):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {"bin/nvcc": "#!/bin/sh\necho Cuda compilation tools, release 12.8, V12.8.0\n", **files})
            pathlib.Path(folder, "bin/nvcc").chmod(0o755)
            shutil.copytree(ROOT / "scripts", pathlib.Path(folder, "scripts"))
            include = f"cmake_minimum_required(VERSION 3.24)\ninclude({ROOT}/cmake/auto_cuda.cmake)\n"
            write(folder, {"use.cmake": include})
            command = ["cmake", f"-DPROJECT_SOURCE_DIR={folder}", "-P", f"{folder}/use.cmake"]
            paths = {"CUDACXX": f"{folder}/bin/nvcc", "CUTLASS_PATH": f"{folder}/cutlass"}
            done = subprocess.run(command, env={**os.environ, **paths, **environment}, capture_output=True, text=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_both_are_there(self):
        code, said = self.configure({"cutlass/include/cute/tensor.hpp": ""})
        self.assertEqual(code, 0, said)
        self.assertIn("tandem: with CUDA", said)

    def test_nvcc_alone_is_an_error_that_says_what_to_do(self):
        code, said = self.configure({})
        self.assertNotEqual(code, 0)
        for remedy in ("CUTLASS_PATH", "scripts/bootstrap", "TANDEM_CUDA=off"):
            self.assertIn(remedy, said)

    def test_left_out_on_request(self):
        code, said = self.configure({}, TANDEM_CUDA="off")
        self.assertEqual(code, 0, said)
        self.assertIn("without CUDA: TANDEM_CUDA=off", said)


class SkipReasons(unittest.TestCase):
    def test_reasons_are_counted(self):
        skipped = '<testcase status="notrun"><skipped message="x"/><system-out>{}</system-out></testcase>'
        cases = [skipped.format("[ RUN ]\n/a/test_gla.cpp:12: Skipped\nno GPU\n\n[  SKIPPED ] A.b (0 ms)")] * 2
        cases += [skipped.format("skipped: no clang-format\n"), skipped.format("quiet")]
        cases += ['<testcase status="run"><system-out>skipped: not this one</system-out></testcase>']
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ctest.xml")
            path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            self.assertEqual(
                dict(script("run_ctest").skip_reasons(path)), {"no GPU": 2, "no clang-format": 1, "no reason given": 1}
            )


class RandomChecks(unittest.TestCase):
    PROGRAM = """\
#!/usr/bin/env python3
import json, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
for case, value in ("a", 0.001), ("a", 0.002), ("b", 0.003 + 0.001 * {failing}):
    bad = value > 0.003
    print(json.dumps({{"op": "gla", "direction": "forward", "case": case, "dtype": "bf16", "variant": "v",
        "outcome": "failed" if bad else "passed", "detail": "", "seed": seed, "cases": {{"of": case}},
        "errors": [{{"output": "out2", "value": value, "limit": 0.003, "worst_head": 0, "head_limit": 1}}]}}))
print("cut of", end="")
sys.exit(1 if {failing} else {status})
"""

    def run_with(self, failing=False, status=0):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "tandem"
            program.write_text(self.PROGRAM.format(failing=failing, status=status))
            program.chmod(0o755)
            command = [ROOT / "scripts/random_checks", "--jobs", "2", "--seed", "5", "--program", program]
            return subprocess.run(command, capture_output=True, text=True)

    def test_sums_up_all_processes(self):
        done = self.run_with()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 cases, 6 checks, 0 failed", done.stdout)
        self.assertIn("| gla | forward | 4 | 6 | 0 | out | 3.0e-03 of 3.0e-03 |", done.stdout)

    def test_failures_are_told_with_what_repeats_them(self):
        done = self.run_with(failing=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("| gla | forward | 4 | 6 | 2 | out | 4.0e-03 of 3.0e-03 |", done.stdout)
        self.assertIn("again: tandem check gla --cases FILE --seed 6", done.stdout)
        self.assertIn('{"of": "b"}', done.stdout)

    def test_a_process_that_breaks_off_fails(self):
        done = self.run_with(status=3)
        self.assertEqual(done.returncode, 1)
        self.assertIn("seed 5 ended with 3", done.stderr)


if __name__ == "__main__":
    unittest.main()

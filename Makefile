# The front door. Every target sets up what is missing first (scripts/bootstrap says what it installs).
#   TANDEM_CUDA=off make test     leaves CUDA out even where nvcc is found
#   make test PYTHON=0            leaves the Python package out
export PYTHON
.DEFAULT_GOAL := help
# The modules of tests/python that read no cases: a wheel is built without the tandem program, which expands them.
package_tests := test_direct test_package test_recipes test_torch test_transforms
.PHONY: help demo test nightly bench gpu-test wheel docs format lint

help:
	@echo "make demo      build, run gla on a real text and check the result against the fp64 definition"
	@echo "make test      build and run every test that this machine can run"
	@echo "make nightly   make test with every case through Python, all under the sanitizers, the wheel from source: an hour"
	@echo "make bench     measure the ops on this machine's GPU, or its CPU, and render the results"
	@echo "make gpu-test  only the tests that need a GPU, and compute-sanitizer over the kernels"
	@echo "make wheel     build the wheel of the Python package in dist/, and test it"
	@echo "make docs      the documentation as a site, build/docs/html, which needs no network to be read"
	@echo "make format    clang-format over the sources, ruff over the Python files"
	@echo "make lint      clang-tidy over the library's host sources and the program's"

demo:
	@scripts/bootstrap demo
	@scripts/build tandem_program
	@build/$$(cat build/preset)/bin/tandem demo --text README.md --dir build/demo

test:
	@scripts/minutes start
	@scripts/minutes "install what is missing" scripts/bootstrap test
	@scripts/minutes "install what is missing" scripts/bootstrap_python
	@scripts/minutes "build" scripts/build
	@scripts/minutes "test" scripts/run_ctest; status=$$?; scripts/minutes; exit $$status

# Beside what make test runs: every case through Python, random cases of the day, ten minutes of fuzzing, the whole tree
# under the sanitizers, the wheel as pip builds it.
nightly:
	@scripts/bootstrap test
	@scripts/bootstrap_python wheel
	@scripts/build
	@TANDEM_TEST_ALL=1 scripts/run_ctest
	@build/$$(cat build/preset)/bin/tandem check --random 5 --seed "$$(date +%Y%m%d)"
	@TANDEM_FUZZ_SECONDS=$${TANDEM_FUZZ_SECONDS:-600} build/$$(cat build/preset)/tests/tandem_asan_tests --gtest_filter='Fuzz.*'
	@scripts/check_asan
	@scripts/wheel build/wheel
	@scripts/test_python build/wheel --jobs "$$(nproc)" $(package_tests)

gpu-test:
	@scripts/bootstrap test
	@scripts/build
	@scripts/run_ctest -L '^(gpu|sanitizer)$$'

bench:
	@scripts/bootstrap
	@scripts/build
	@scripts/bench

wheel:
	@scripts/bootstrap wheel
	@scripts/bootstrap_python wheel
	@scripts/wheel build/wheel
	@scripts/test_python build/wheel --jobs "$$(nproc)" $(package_tests)

docs:
	@scripts/bootstrap wheel
	@scripts/bootstrap_python docs
	@[ -d build/wheel/tandem ] || scripts/wheel build/wheel
	@scripts/docs build/wheel

format:
	@scripts/format

lint:
	@scripts/lint

// tandem demo: gla on a real text, end to end: tensors from its bytes, a file, a run per backend,
// the check.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/calls/measure.h"
#include "cli/calls/run_file.h"
#include "cli/calls/units.h"
#include "cli/commands.h"
#include "cli/files/files.h"
#include "cli/tensors/safetensors.h"

namespace tandem::tools {
namespace {

struct DemoOptions {
  std::string text;
  std::string folder;
};

constexpr std::int64_t kHeads = 4, kDim = 64, kWidth = 64;

/// Projects the 256 byte values, [256, out]: a random embedding through a random projection, both
/// fixed by a seed, as an untrained model of bytes would have them.
std::vector<float> project_bytes(const std::string& name, std::int64_t out) {
  const RandomStream embedding(1, "embedding"), projection(1, name);
  std::vector<float> table(256 * out);
  for (std::int64_t byte = 0; byte < 256; ++byte) {
    for (std::int64_t j = 0; j < out; ++j) {
      float sum = 0;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        sum += embedding.normal(byte * kWidth + i) * projection.normal(i * out + j);
      }
      table[byte * out + j] = sum / std::sqrt(static_cast<float>(kWidth));
    }
  }
  return table;
}

void write_input(const std::string& text_path, const std::string& path) {
  const std::string text = read_text(text_path);
  const auto T = static_cast<std::int64_t>(text.size());
  TensorSet set;
  const auto add = [&](const char* name, DType dtype, const Dims& shape, const auto& activation) {
    const std::int64_t width = T == 0 ? 1 : shape.product() / T;
    const std::vector<float> table = project_bytes(name, width);
    const NamedTensor& tensor =
        add_tensor(set, name, dtype, shape, contiguous_strides(shape), false);
    std::byte* data = set.buffers[tensor.buffer].data() + tensor.offset;
    for_each_element(tensor, [&](std::int64_t offset, std::int64_t i) {
      const auto byte = static_cast<unsigned char>(text[i / width]);
      store(dtype, data, offset, activation(table[byte * width + i % width]));
    });
  };
  const auto as_is = [](float x) { return x; };
  for (const char* name : {"q", "k", "v"}) {
    add(name, DType::kBFloat16, {1, T, kHeads, kDim}, as_is);
  }
  add("log_decay", DType::kFloat32, {1, T, kHeads},
      [](float x) { return -std::log1p(std::exp(-(x + 2))); });  // log_sigmoid(x + 2)
  std::vector<NamedView> views;
  for (const NamedTensor& tensor : set.tensors) {
    views.push_back({tensor.name, view(tensor, set.buffers[tensor.buffer].data(), Device::cpu())});
  }
  write_safetensors(path, views);
}

void demo(const DemoOptions& options) {
  const Operation& operation = find_operation("gla");
  const std::string input = options.folder + "/input.safetensors";
  make_folder_of(input);
  write_input(options.text, input);
  fmt::print("{} -> {}\n", options.text, input);
  bool passed = true;
  std::vector<std::string> lines;
  for (const Device device : backends("")) {
    const std::string backend = backend_name(device);
    const std::string output = fmt::format("{}/output_{}.safetensors", options.folder, backend);
    fmt::print("tandem run gla --in {} --out {} --backend {} --set output_final_state=true\n",
               input, output, backend);
    const FileRun run =
        run_file(operation, input, output, device, {{"output_final_state", "true"}});
    const TensorSet& set = run.set;
    const auto errors = verify_file(operation, set, output);
    const Timing timing = time_call(operation, set, device, 20);
    const double floor = floor_us(operation.cost(set), ceilings(device));
    std::string worst;
    for (const OutputError& error : errors) {
      passed &= error.passed;
      worst += fmt::format("  {} {:.1e}", error.output, error.value);
    }
    lines.push_back(fmt::format("{:<4} {:<7} {:<24} {:>8} {:>8}{}", operation.name, backend,
                                operation.shape(set), time_text(timing.median_us), time_text(floor),
                                worst));
  }
  fmt::print("\n{:<4} {:<7} {:<24} {:>8} {:>8}  error against the fp64 definition (relative RMS)\n",
             "op", "backend", "shape", "time", "floor");
  for (const std::string& line : lines) fmt::print("{}\n", line);
  const std::string missing = cuda_missing_reason();
  if (!missing.empty()) fmt::print("gla  cuda    not run: {}\n", missing);
  if (passed) return;
  fmt::print(stderr, "tandem: the output is not what the definition says\n");
  throw Failed{};
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "demo",
      "gla on a real text: makes tensors from its bytes, runs every backend, checks, times");
  const auto options = std::make_shared<DemoOptions>();
  command->add_option("--text", options->text, "any file")->required()->check(CLI::ExistingFile);
  command->add_option("--dir", options->folder, "where the safetensors files go")->required();
  command->footer("Example: tandem demo --text README.md --dir build/demo");
  command->callback([options] { demo(*options); });
}

}  // namespace tandem::tools

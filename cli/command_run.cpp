// tandem run: one op on the tensors of a safetensors file.
#include <fmt/format.h>

#include <memory>

#include "cli/calls/backend.h"
#include "cli/calls/run_file.h"
#include "cli/commands.h"

namespace tandem::tools {
namespace {

struct RunOptions {
  std::string op, in, out;
  std::string direction = "forward";
  std::string backend = "cpu";
  std::vector<std::string> settings;
};

Settings parse_settings(const std::vector<std::string>& texts) {
  Settings settings;
  for (const std::string& text : texts) {
    const auto at = text.find('=');
    if (at == std::string::npos || at == 0) {
      throw CLI::ValidationError("--set", "must be name=value, got " + text);
    }
    if (!settings.emplace(text.substr(0, at), text.substr(at + 1)).second) {
      throw CLI::ValidationError("--set", text.substr(0, at) + " is given twice");
    }
  }
  return settings;
}

/// "gla forward: q, k, v [log_decay, ...] -> o, final_state", a line per call.
std::string tensors_of_calls() {
  std::string text = "Tensors [optional ones]:\n";
  for (const Operation& operation : operations()) {
    if (!operation.runs_files) continue;
    text += fmt::format(
        "  {}: {} [{}] -> {}\n", title(operation), fmt::join(operation.inputs(), ", "),
        fmt::join(operation.optional_inputs(), ", "), fmt::join(operation.outputs(), ", "));
  }
  return text;
}

void run(const RunOptions& options) {
  const Settings settings = parse_settings(options.settings);
  const Operation& operation = find_operation(options.op, options.direction);
  const Device device = backends(options.backend).front();
  const TensorSet set = run_file(operation, options.in, options.out, device, settings);
  fmt::print("{} on {}: {} -> {}\n", title(operation), backend_name(device), operation.shape(set),
             options.out);
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Run an op on the tensors of a safetensors file");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("op", options->op, "the op")->required()->check(known_op());
  command->add_option("--in", options->in, "inputs, named as the arguments of the C++ call")
      ->required();
  command->add_option("--out", options->out, "outputs, named likewise")->required();
  add_direction(*command, options->direction, "which of the op's calls")->capture_default_str();
  command->add_option("--backend", options->backend, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--set", options->settings,
                   "a scalar argument, name=value (gla: scale=0.1, output_final_state=true; "
                   "final_state is written by default when initial_state is given)")
      ->allow_extra_args(false);
  command->footer(tensors_of_calls() +
                  "Example: tandem run gla --in a.safetensors --out b.safetensors --set scale=0.1");
  command->callback([options] { run(*options); });
}

}  // namespace tandem::tools

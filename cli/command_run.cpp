// tandem run: one op on the tensors of a safetensors file.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
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

/// Joins names; of those that differ in their last digit, as a segment's do, one: "weight1..7".
std::string folded(const std::vector<std::string>& names) {
  std::vector<std::string> stems;
  std::map<std::string, std::pair<char, char>> digits;  // the first and last of a stem
  for (const std::string& name : names) {
    const bool numbered = std::isdigit(static_cast<unsigned char>(name.back())) != 0;
    const std::string stem = numbered ? name.substr(0, name.size() - 1) : name;
    if (std::ranges::find(stems, stem) == stems.end()) stems.push_back(stem);
    if (!numbered) continue;
    digits.try_emplace(stem, name.back(), name.back()).first->second.second = name.back();
  }
  for (std::string& stem : stems) {
    const auto at = digits.find(stem);
    if (at == digits.end()) continue;
    const auto [first, last] = at->second;
    stem += first == last ? std::string(1, first) : fmt::format("{}..{}", first, last);
  }
  return fmt::format("{}", fmt::join(stems, ", "));
}

/// Three lines per call: what it needs, what it may have, what it writes.
std::string tensors_of_calls() {
  std::string text = "Tensors of a call: inputs, optional ones (+), outputs (->):\n";
  for (const Operation& operation : operations()) {
    if (!operation.runs_files()) continue;
    text += fmt::format("  {}: {}\n", title(operation), folded(operation.inputs()));
    text += fmt::format("    + {}\n", folded(operation.optional_inputs()));
    text += fmt::format("    -> {}\n", folded(operation.outputs()));
  }
  return text;
}

/// Directions in which the op, or with "" some op, can be run on a file.
std::vector<std::string> directions_of_files(const std::string& op) {
  std::vector<std::string> directions = direction_names();
  std::erase_if(directions, [&](const std::string& direction) {
    return std::ranges::none_of(operations(), [&](const Operation& operation) {
      return (op.empty() || operation.name == op) && operation.direction == direction &&
             operation.runs_files();
    });
  });
  return directions;
}

void run(const RunOptions& options) {
  const Settings settings = parse_settings(options.settings);
  const std::vector<std::string> directions = directions_of_files(options.op);
  if (std::ranges::find(directions, options.direction) == directions.end()) {
    throw UsageError(fmt::format("--direction: {} has {}, got {}", options.op,
                                 fmt::join(directions, ", "), options.direction));
  }
  const Operation& operation = find_operation(options.op, options.direction);
  const Device device = backends(options.backend).front();
  const FileRun run = run_file(operation, options.in, options.out, device, settings);
  fmt::print("{} on {}: {} -> {}\n", title(operation), backend_name(device),
             operation.shape(run.set), options.out);
  for (const auto& [output, values, all] : run.not_finite) {
    fmt::print(stderr, "tandem: {} of {} values of {} are NaN or infinite\n", values, all, output);
  }
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Run an op on the tensors of a safetensors file");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("op", options->op, "the op")->required()->check(known_op());
  command->add_option("--in", options->in, "inputs, named as the arguments of the C++ call")
      ->required();
  command->add_option("--out", options->out, "outputs, named likewise")->required();
  command->add_option("--direction", options->direction, "which of the op's calls")
      ->check(CLI::IsMember(directions_of_files("")))
      ->capture_default_str();
  command->add_option("--backend", options->backend, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--set", options->settings,
                   "a number or choice of the call, name=value; may be given several times")
      ->allow_extra_args(false);
  command->footer(tensors_of_calls() +
                  "An optional output is made when --set output_<name>=true says so, or when the "
                  "input that it continues\nis given: final_state with initial_state.\n"
                  "Example: tandem run gla --in a.safetensors --out b.safetensors --set scale=0.1 "
                  "\\\n           --set output_final_state=true");
  command->callback([options] { run(*options); });
}

}  // namespace tandem::tools

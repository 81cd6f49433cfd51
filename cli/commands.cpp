#include "cli/commands.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "cli/calls/arguments.h"
#include "cli/calls/backend.h"
#include "cli/calls/operation.h"
#include "tandem/error.h"

namespace tandem::tools {

std::vector<std::string> g_arguments;

namespace {

/// why not left to CLI11: it takes -1 and numbers of any length for a uint64.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return "";
        return "must be an integer in [0,2^64), got " + text;
      },
      "");
}

}  // namespace

std::vector<Device> backends_of(const std::string& provider, const std::string& backend) {
  if (provider.empty() || provider == "tandem") return backends(backend);
  const std::string refusal = fmt::format("--provider {} runs on CUDA only", provider);
  if (backend == "cpu") throw UsageError(refusal + ", not with --backend cpu");
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) throw Unsupported(refusal + ": " + reason);
  return backends("cuda");
}

CLI::Validator known_op() {
  std::set<std::string> names;
  for (const Operation& operation : operations()) names.emplace(operation.name);
  return CLI::IsMember(names);
}

void CaseOptions::add_to(CLI::App& command) {
  command.add_option("op", op, "only this op (default: all)")->check(known_op());
  command
      .add_option("--direction", direction,
                  "only this direction (default: all that the cases name)")
      ->check(CLI::IsMember(direction_names()));
  command.add_option("--case", globs, "only cases whose name matches a glob of this list by comma");
  command.add_option("--tag", tag, "only cases with this tag")->check(CLI::IsMember(tag_names()));
  command.add_option("--cases", file, "a case table to use instead of the built-in one")
      ->check(CLI::ExistingFile);
  command.add_option("--backend", backend, "cpu or cuda (default: every one that works here)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--seed", seed, "of the random inputs")
      ->check(whole_number())
      ->capture_default_str();
  command.add_flag("--list", list, "print the cases that these options pick, and do nothing more");
}

std::vector<Selected> CaseOptions::select() const {
  std::set<std::string> names;
  for (const Operation& operation : operations()) names.emplace(operation.name);
  if (!file.empty() && op.empty() && names.size() > 1) {
    throw CLI::ValidationError("--cases", "name the op that the table is for");
  }
  std::vector<Selected> selected;
  for (const Operation& operation : operations()) {
    if (!op.empty() && op != operation.name) continue;
    for (Case& one : select_cases(load_cases(operation.name, file), globs, tag)) {
      for (const std::string& wanted : one.directions) find_operation(operation.name, wanted);
      if (!one.has_direction(operation.direction)) continue;
      if (!direction.empty() && direction != operation.direction) continue;
      selected.push_back({&operation, std::move(one)});
    }
  }
  if (selected.empty()) {
    std::string wanted = globs.empty() ? "" : " matches " + globs;
    if (!tag.empty()) wanted += " with tag " + tag;
    if (!direction.empty()) wanted += " in direction " + direction;
    throw CLI::ValidationError("--case", "no case" + wanted);
  }
  return selected;
}

}  // namespace tandem::tools

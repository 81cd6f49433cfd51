#include "commands.h"

#include <algorithm>

#include "operation.h"

namespace tandem::tools {

std::string g_command_line;

CLI::Validator known_op() {
  std::vector<std::string> names;
  for (const Operation& operation : operations()) names.emplace_back(operation.name);
  return CLI::IsMember(names);
}

void CaseOptions::add_to(CLI::App& command) {
  command.add_option("op", op, "only this op (default: all)")->check(known_op());
  command.add_option("--case", glob, "only cases whose name matches this glob");
  command.add_option("--tag", tag, "only cases with this tag")
      ->check(CLI::IsMember({"check", "bench", "large", "sanitizer", "later"}));
  command.add_option("--cases", file, "a case table to use instead of the built-in one")
      ->check(CLI::ExistingFile);
  command.add_option("--backend", backend, "cpu or cuda (default: every one that works here)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--seed", seed, "of the random inputs")->capture_default_str();
}

std::vector<std::pair<std::string, Case>> CaseOptions::select() const {
  std::vector<std::pair<std::string, Case>> selected;
  for (const Operation& operation : operations()) {
    if (!op.empty() && op != operation.name) continue;
    if (!file.empty() && op.empty() && operations().size() > 1) {
      throw CLI::ValidationError("--cases", "name the op that the table is for");
    }
    for (Case& one : select_cases(load_cases(operation.name, file), glob, tag)) {
      selected.emplace_back(operation.name, std::move(one));
    }
  }
  if (selected.empty()) {
    std::string wanted = glob.empty() ? "" : " matches " + glob;
    if (!tag.empty()) wanted += " with tag " + tag;
    throw CLI::ValidationError("--case", "no case" + wanted);
  }
  return selected;
}

}  // namespace tandem::tools

// The subcommands. Each adds itself to the app; its callback throws for what makes the program exit
// with 1, and CLI::ParseError for what is wrong with the command line (2).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"

namespace tandem::tools {

void add_info(CLI::App& app);
void add_cases(CLI::App& app);
void add_run(CLI::App& app);
void add_check(CLI::App& app);
void add_bench(CLI::App& app);
void add_profile(CLI::App& app);
void add_report(CLI::App& app);
void add_demo(CLI::App& app);

/// The program's arguments as typed, for results files (recorded_command.h).
extern std::vector<std::string> g_arguments;

/// Exception of a callback that has said all there is to say: exit with 1.
struct Failed {};

/// One case in one of its directions.
struct Selected {
  const Operation* operation;
  Case one;
};

/// Options that pick cases, shared by check, bench and profile.
struct CaseOptions {
  std::string op;
  std::string direction;
  std::string glob;
  std::string tag;
  std::string file;
  std::string backend;
  std::uint64_t seed = 1;

  void add_to(CLI::App& command);
  /// Returns the matching cases of every entry of operations(), or of `op` and `direction`, entry
  /// by entry. Throws CLI::ValidationError when none matches.
  std::vector<Selected> select() const;
};

/// Returns the devices of --backend for --provider: a baseline runs on CUDA only.
std::vector<Device> backends_of(const std::string& provider, const std::string& backend);

/// Accepts only the names of ops.
CLI::Validator known_op();

/// Adds --direction, which accepts only direction_names().
CLI::Option* add_direction(CLI::App& command, std::string& direction, const std::string& help);

}  // namespace tandem::tools

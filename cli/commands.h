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
void add_completion(CLI::App& app);

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
  std::string globs;
  std::string tag;
  std::string file;
  std::string backend;
  std::uint64_t seed = 1;
  bool list = false;

  void add_to(CLI::App& command);
  /// Whether the command line itself says which cases are wanted.
  bool names_cases() const { return !globs.empty() || !tag.empty() || !file.empty(); }
  /// Returns the matching cases of every entry of operations(), or of `op` and `direction`, entry
  /// by entry. Throws CLI::ValidationError when none matches.
  std::vector<Selected> select() const;
};

/// Prints a line per case, with what the commands select cases by.
void print_cases(const std::vector<Case>& cases);
/// The same, of selected cases, each with the directions in which it was selected.
void print_cases(const std::vector<Selected>& selected);

/// Returns the devices of --backend for --provider: a baseline runs on CUDA only.
std::vector<Device> backends_of(const std::string& provider, const std::string& backend);

/// Accepts only the names of ops.
CLI::Validator known_op();

}  // namespace tandem::tools

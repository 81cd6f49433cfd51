// The subcommands. Each adds itself to the app; its callback throws for what makes the program exit
// with 1, and CLI::ParseError for what is wrong with the command line (2).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"

namespace tandem::tools {

void add_info(CLI::App& app);
void add_run(CLI::App& app);
void add_check(CLI::App& app);
void add_bench(CLI::App& app);
void add_profile(CLI::App& app);
void add_report(CLI::App& app);
void add_demo(CLI::App& app);

/// The command line as typed, for results files.
extern std::string g_command_line;

/// Thrown by a callback that has said all there is to say: exit with 1.
struct Failed {};

/// Options that pick cases, shared by check and bench.
struct CaseOptions {
  std::string op;
  std::string glob;
  std::string tag;
  std::string file;
  std::string backend;
  std::uint64_t seed = 1;

  void add_to(CLI::App& command);
  /// Those of every op (or of `op`) that match; CLI::ValidationError when none does.
  std::vector<std::pair<std::string, Case>> select() const;
};

/// Accepts only the names of ops.
CLI::Validator known_op();

}  // namespace tandem::tools

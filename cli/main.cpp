// The tandem program. Exit codes: 0 done, 1 the work failed, 2 the command line is wrong.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>

#include "cli/build_info.h"
#include "cli/calls/arguments.h"
#include "cli/commands.h"

namespace {

/// Turns "help run" into "run --help"; refuses a command that there is not.
std::vector<std::string> as_parsed(const CLI::App& app, std::vector<std::string> words) {
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.resize(std::min<std::size_t>(words.size(), 1));
    words.emplace_back("--help");
  }
  if (words.empty() || words.front().starts_with('-')) return words;
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  commands.emplace_back("help");
  if (std::find(commands.begin(), commands.end(), words.front()) == commands.end()) {
    throw tandem::tools::UsageError(
        fmt::format("unknown command {} (commands: {})", words.front(), fmt::join(commands, ", ")));
  }
  return words;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): setting up the options fails in every run or in none.
int main(int argc, char** argv) {
  namespace tools = tandem::tools;
  CLI::App app("Tandem: fused layer kernels for Hopper GPUs, with a complete CPU backend.",
               "tandem");
  app.set_version_flag("-V,--version",
                       fmt::format("tandem {} ({})", tools::kVersion, tools::kCommit));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  tandem info\n"
      "  tandem cases gla --tag bench\n"
      "  tandem run gla --in a.safetensors --out b.safetensors --backend cpu\n"
      "  tandem check gla\n"
      "  tandem bench gla --case 'b4h32_*' --json bench/results/nvidia-h200/gla.json\n"
      "  tandem profile gla --case b4h32_t4096_d64\n"
      "  tandem report --out report.html\n"
      "  tandem help <command>\n"
      "Exit codes: 0 done, 1 failed, 2 wrong command line.");
  tools::add_info(app);
  tools::add_cases(app);
  tools::add_run(app);
  tools::add_check(app);
  tools::add_bench(app);
  tools::add_profile(app);
  tools::add_report(app);
  tools::add_demo(app);
  tools::add_completion(app);
  tools::g_arguments.assign(argv + 1, argv + argc);
  try {
    std::vector<std::string> words = as_parsed(app, tools::g_arguments);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(words);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const tools::UsageError& error) {
    fmt::print(stderr, "tandem: {}\n", error.what());
    return 2;
  } catch (const tools::Failed&) {
    return 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tandem: not enough memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "tandem: {}\n", error.what());
  }
  return 1;
}

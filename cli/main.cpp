// The tandem program. Exit codes: 0 done, 1 the work failed, 2 the command line is wrong.
#include <fmt/format.h>

#include <exception>
#include <new>

#include "cli/build_info.h"
#include "cli/commands.h"

// NOLINTNEXTLINE(bugprone-exception-escape): setting up the options fails in every run or in none.
int main(int argc, char** argv) {
  namespace tools = tandem::tools;
  CLI::App app("Tandem: fused layer kernels for Hopper GPUs, with a complete CPU backend.",
               "tandem");
  app.set_version_flag("--version", fmt::format("tandem {} ({})", tools::kVersion, tools::kCommit));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  tandem info\n"
      "  tandem cases gla --tag bench\n"
      "  tandem run gla --in a.safetensors --out b.safetensors --backend cpu\n"
      "  tandem check gla --quick\n"
      "  tandem bench gla --case 'b4h32_*' --json bench/results/nvidia-h200/gla.json\n"
      "  tandem profile gla --case b4h32_t4096_d64\n"
      "  tandem report --out report.html\n"
      "  tandem <command> --help\n"
      "Exit codes: 0 done, 1 failed, 2 wrong command line.");
  tools::add_info(app);
  tools::add_cases(app);
  tools::add_run(app);
  tools::add_check(app);
  tools::add_bench(app);
  tools::add_profile(app);
  tools::add_report(app);
  tools::add_demo(app);
  tools::g_arguments.assign(argv + 1, argv + argc);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const tools::Failed&) {
    return 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tandem: not enough memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "tandem: {}\n", error.what());
  }
  return 1;
}

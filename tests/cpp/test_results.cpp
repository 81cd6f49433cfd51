// What results files record: commands without private folders, and ids of runs that no other file
// of the folder uses.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/recorded_command.h"
#include "cli/report/results.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

class Results : public testing::Test {
 protected:
  Results() : folder_(fs::temp_directory_path() / ("tandem_results_" + std::to_string(getpid()))) {
    fs::create_directories(folder_ / "checkout/bench/results/gpu");
  }
  ~Results() override { fs::remove_all(folder_); }

  fs::path checkout() const { return folder_ / "checkout"; }
  fs::path file(const std::string& name) const { return checkout() / "bench/results/gpu" / name; }

  fs::path folder_;
};

TEST_F(Results, CommandsNameNoFolderOfTheMachine) {
  const std::string inside = file("gla.json"), outside = folder_ / "deep/a b.json";
  const auto recorded = [&](std::vector<std::string> arguments) {
    return recorded_command(arguments, checkout() / "bench");
  };
  const std::string relative = "bench/results/gpu/gla.json";
  EXPECT_EQ(recorded({"bench", "gla", "--json", inside}), "tandem bench gla --json " + relative);
  EXPECT_EQ(recorded({"--json=" + inside}), "tandem --json=" + relative);
  EXPECT_EQ(recorded({"--json", "results/gpu/gla.json"}), "tandem --json " + relative);
  EXPECT_EQ(recorded({"--json", "../bench/results/gpu/gla.json"}), "tandem --json " + relative);
  EXPECT_EQ(recorded({"--log=" + outside}), "tandem '--log=a b.json'");
  EXPECT_EQ(recorded({"--out", "../../x.html"}), "tandem --out x.html");
  EXPECT_EQ(recorded({"--dir", folder_.string() + "/"}),
            "tandem --dir " + folder_.filename().string());
}

TEST_F(Results, CommandsOutsideOfACheckoutKeepNamesOnly) {
  EXPECT_EQ(recorded_command({"--json", "deep/gla.json"}, folder_), "tandem --json gla.json");
}

TEST_F(Results, CommandsAreQuotedForAShell) {
  EXPECT_EQ(recorded_command({"--case", "b4h32_*", "--set", "scale=0.1", "", "it's"}, checkout()),
            "tandem --case 'b4h32_*' --set scale=0.1 '' 'it'\"'\"'s'");
}

TEST_F(Results, AnIdIsUsedByOneFileOfTheFolder) {
  ResultsRow row;
  row.op = "gla";
  ResultsFile first(file("gla.json"), "", {});
  first.add(row);
  std::ofstream(file("foreign.json")) << "[1, 2";
  ResultsFile second(file("gated_scan.json"), "", {});
  second.add(row);
  const ResultsFile third(file("gla.json"), "", {});
  EXPECT_TRUE(first.run_id().ends_with("-1")) << first.run_id();
  EXPECT_TRUE(second.run_id().ends_with("-2")) << second.run_id();
  EXPECT_TRUE(third.run_id().ends_with("-3")) << third.run_id();
}

}  // namespace
}  // namespace tandem::tools

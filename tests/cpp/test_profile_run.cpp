// Running ncu (a script in its place), the program's own report of it, and the log of iterations.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/profile/log.h"
#include "cli/profile/ncu_run.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class ProfileRun : public testing::Test {
 protected:
  ProfileRun()
      : folder_(fs::temp_directory_path() / ("tandem_profile_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~ProfileRun() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  /// A shell script that behaves as ncu: `measure` runs when it profiles, with the words before
  /// the program in $all and the report's path in $report; then `import` prints the page.
  std::string ncu(const std::string& measure, const std::string& import) const {
    const std::string file = write("ncu", R"sh(#!/bin/sh
all="$*"
case "$1" in
  --version) echo "NVIDIA (R) Nsight Compute Command Line Profiler"; echo "Version 2025.3.1.0 (build 1)"; exit;;
  --import)
)sh" + import + R"sh(
  exit;;
esac
while [ "$1" != -o ]; do shift; done
report=$2
shift 2
)sh" + measure + "\n");
    fs::permissions(file, fs::perms::owner_all);
    return file;
  }

  static std::string read(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

  fs::path folder_;
};

const char* const kPage = R"sh(  cat <<'CSV'
==PROF== noise
"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"
"","","byte","ns"
"0","void a_kernel<3>(int)","1,000","2,000"
"1","b_kernel(int)","24","1,000"
CSV)sh";

TEST_F(ProfileRun, CountersOfEveryLaunch) {
  const std::string fake = ncu("\"$@\" && : >$report && echo \"$all\" >" + path("words"), kPage);
  const NcuProfile profile =
      profile_program(fake, {"/bin/sh", "-c", ": >" + path("ran")}, path("kept.ncu-rep"));
  EXPECT_EQ(profile.problem, "");
  EXPECT_EQ(profile.version, "2025.3.1.0");
  ASSERT_EQ(profile.launches.size(), 2u);
  EXPECT_EQ(profile.launches[0].get("dram_read_bytes"), 1000.0);
  EXPECT_EQ(profile.launches[1].get("profiled_us"), 1.0);
  EXPECT_TRUE(fs::exists(path("ran")));
  EXPECT_TRUE(fs::exists(path("kept.ncu-rep")));
  const std::string words = read(path("words"));
  EXPECT_NE(words.find("--clock-control none"), std::string::npos) << "clocks are not ours to set";
  EXPECT_NE(words.find("dram__bytes_read.sum"), std::string::npos);
  EXPECT_NE(words.find("--profile-from-start off"), std::string::npos) << "one call alone counts";
}

TEST_F(ProfileRun, RefusalIsQuoted) {
  const std::string fake =
      ncu("echo '==PROF== Connected'; echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1",
          kPage);
  const NcuProfile profile = profile_program(fake, {"true"}, "");
  EXPECT_TRUE(profile.launches.empty());
  EXPECT_EQ(profile.problem, "ERR_NVGPUCTRPERM - no permission");
}

TEST_F(ProfileRun, OlderNcuIsAskedForLess) {
  const std::string fake =
      ncu("case \"$all\" in *launch__*) echo 'Failed to find metric launch__x';"
          " exit 1;; esac; : >$report",
          kPage);
  EXPECT_EQ(profile_program(fake, {"true"}, "").launches.size(), 2u);
}

TEST_F(ProfileRun, SilenceCrashAndNoProgram) {
  EXPECT_EQ(profile_program(ncu("echo so; exit 3", ""), {"true"}, "").problem,
            "ncu exited with 3: so");
  EXPECT_EQ(profile_program(ncu(": >$report", "  echo 'cannot read'"), {"true"}, "").problem,
            "ncu exited with 0: cannot read");
  EXPECT_NE(profile_program(path("nothing"), {"true"}, "").problem, "");
  EXPECT_EQ(find_ncu(path("nothing")), "");
  EXPECT_EQ(find_ncu(ncu("", "")), path("ncu"));
}

Profile profile_of(const std::string& name, double us) {
  Profile profile;
  profile.row.op = "gla";
  profile.row.direction = "forward";
  profile.row.case_name = name;
  profile.row.dtype = "bf16";
  profile.row.variant = "v";
  profile.row.timing = {us, us, us};
  profile.row.cost = {1000, 2000};
  profile.row.floor_us = 5;
  profile.total.values = {
      {"dram_read_bytes", 1024}, {"registers", 168}, {"tensor_pipe_pct", 12.345678}};
  profile.launches = 1;
  profile.reading = "latency-bound: so";
  return profile;
}

TEST_F(ProfileRun, IterationsCompareWithTheirOwnCase) {
  const std::string log = path("ops/gla.iterations.jsonl");
  ResultsRun run;
  run.commit = "abc1234";
  run.device_name = "GPU";
  const Json first = append_iteration(log, {"first \"one\"", run}, profile_of("a", 100));
  EXPECT_FALSE(first.contains("time_over_previous"));
  append_iteration(log, {"other case", run}, profile_of("b", 7));
  append_iteration(log, {"second", run}, profile_of("a", 80));
  const Json third = append_iteration(log, {"third", run}, profile_of("a", 90));
  EXPECT_EQ(third["time_over_previous"], 1.125);
  EXPECT_EQ(third["time_over_first"], 0.9);
  EXPECT_EQ(third["commit"], "abc1234");
  EXPECT_EQ(third["config"]["registers"], 168);
  EXPECT_EQ(third["counters"]["dram_read_bytes"], 1024);
  EXPECT_EQ(third["counters"]["tensor_pipe_pct"], 12.35);
  std::ifstream stream(log);
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) EXPECT_TRUE(Json::accept(line));
  EXPECT_EQ(lines, 4);
}

TEST_F(ProfileRun, BrokenLogIsNotAppendedTo) {
  const std::string log = write("log", "{}\n{oops\n");
  try {
    append_iteration(log, {"x", {}}, profile_of("a", 1));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()).find(log + ":2: not valid JSON: "), 0u) << error.what();
  }
  EXPECT_EQ(read(log), "{}\n{oops\n");
}

TEST_F(ProfileRun, ALineThatWasCutShortIsEnded) {
  const std::string log = write("log", "{}");
  append_iteration(log, {"x", {}}, profile_of("a", 1));
  EXPECT_EQ(read(log).find("{}\n{"), 0u);
}

TEST_F(ProfileRun, CountersGoToTheLatestRowOfTheVariant) {
  const std::string file = write("r.json", R"({"schema": 1,
 "runs": {"new": {"date": "2026-02-02"}, "old": {"date": "2026-01-01"}},
 "rows": [
  {"run": "new", "op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "tandem", "variant": "v"},
  {"run": "old", "op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "tandem", "variant": "v"},
  {"run": "new", "op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "fla", "variant": null}]})");
  ResultsRun run;
  run.timer = "ncu";
  ResultsFile results(file, "", run);
  EXPECT_FALSE(results.add_counters(profile_of("b", 1).row, Json::object()));
  const Profile profile = profile_of("a", 100);
  ASSERT_TRUE(results.add_counters(profile.row, counters_json(profile)));
  const Json json = Json::parse(read(file));
  const Json& counters = json["rows"][0]["counters"];
  EXPECT_EQ(counters["run"], results.run_id());
  EXPECT_EQ(counters["median_us"], 100);
  EXPECT_EQ(counters["dram_read_bytes"], 1024);
  EXPECT_EQ(counters["reading"], "latency-bound: so");
  EXPECT_EQ(json["runs"][results.run_id()]["timer"]["method"], "ncu");
  EXPECT_FALSE(json["rows"][1].contains("counters"));
  EXPECT_FALSE(json["rows"][2].contains("counters"));
}

TEST_F(ProfileRun, CountersOfTheLibrarysChoiceGoToARowThatNamesNone) {
  const std::string file = write("r.json", R"({"schema": 1,
 "runs": {"old": {"date": "2026-01-01"}, "new": {"date": "2026-02-02"}},
 "rows": [
  {"run": "old", "op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "tandem", "variant": "v"},
  {"run": "new", "op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "tandem", "variant": "library's choice"}]})");
  Profile profile = profile_of("a", 100);
  for (const bool chosen : {false, true}) {
    ResultsFile results(file, "", {});
    profile.row.chosen = chosen;
    ASSERT_TRUE(results.add_counters(profile.row, counters_json(profile)));
    const Json json = Json::parse(read(file));
    EXPECT_TRUE(json["rows"][0].contains("counters"));
    EXPECT_EQ(json["rows"][1].contains("counters"), chosen);
  }
}

/// Exit code and output of the program.
std::pair<int, std::string> tandem(const std::string& arguments) {
  FILE* pipe = popen((std::string(TANDEM_PROGRAM) + " " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  for (int c; (c = fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST_F(ProfileRun, WithoutCountersTheTimeIsReported) {
  const std::string call =
      "profile gla --direction forward --backend cpu --case t64_h1_d64 --dtype bf16 --replays 3 ";
  const auto [code, text] = tandem(call + "--log " + path("log") + " --note first");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("no counters, time only: "), std::string::npos) << text;
  EXPECT_NE(text.find("without a profiler: "), std::string::npos) << text;
  const Json line = Json::parse(read(path("log")));
  EXPECT_EQ(line["note"], "first");
  EXPECT_GT(line["median_us"], 0);
  EXPECT_TRUE(line["counters"].empty());
}

TEST_F(ProfileRun, LogNeedsANote) {
  EXPECT_EQ(tandem("profile gla --log " + path("log")).first, 2);
  EXPECT_EQ(tandem("profile gla --note x").first, 2);
  EXPECT_EQ(tandem("profile gla --case no_such_case").first, 2);
}

}  // namespace
}  // namespace tandem::tools

// The tandem program from outside: exit codes, messages, files.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/tensors/safetensors.h"
#include "tandem/device.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

struct Result {
  int exit_code;
  std::string output;  // standard output and error
};

class Cli : public testing::Test {
 protected:
  Cli() : folder_(fs::temp_directory_path() / ("tandem_cli_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Cli() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  static Result run(const std::string& arguments) {
    FILE* pipe = popen((std::string(TANDEM_PROGRAM) + " " + arguments + " 2>&1").c_str(), "r");
    Result result{-1, ""};
    std::array<char, 4096> part;
    while (const std::size_t got = fread(part.data(), 1, part.size(), pipe)) {
      result.output.append(part.data(), got);
    }
    const int status = pclose(pipe);
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    return result;
  }

  static void expect(const std::string& arguments, int exit_code, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << "\n" << result.output;
    EXPECT_NE(result.output.find(text), std::string::npos) << arguments << "\n" << result.output;
  }

  /// q, k, v of B1 T3 H1 and the widths given.
  std::string write_input(std::int64_t K, std::int64_t V, std::int64_t k_width) {
    std::vector<float> ones(3 * 64, 1);
    write_safetensors(
        path("in"),
        {{"q", TensorView::contiguous(ones.data(), DType::kFloat32, {1, 3, 1, K})},
         {"k", TensorView::contiguous(ones.data(), DType::kFloat32, {1, 3, 1, k_width})},
         {"v", TensorView::contiguous(ones.data(), DType::kFloat32, {1, 3, 1, V})}});
    return path("in");
  }

  fs::path folder_;
};

TEST_F(Cli, HelpIsEnough) {
  expect("--help", 0, "Examples:");
  for (const std::string command : {"info", "cases", "run", "check", "bench", "demo"}) {
    expect("--help", 0, "  " + command);
    expect(command + " --help", 0, "Usage: tandem " + command);
  }
  for (const std::string version : {"--version", "-V"}) expect(version, 0, "tandem 0.");
  expect("help", 0, "Examples:");
  expect("help run", 0, "Usage: tandem run");
}

TEST_F(Cli, WrongCommandLinesExitWith2) {
  expect("", 2, "subcommand is required");
  for (const std::string unknown : {"dance", "help dance"}) {
    expect(unknown, 2, "unknown command dance (commands: info, cases, run, check,");
  }
  expect("info --loud", 2, "--loud");
  expect("check --case 'no_such_*'", 2, "no case matches no_such_*");
  expect("check nothing", 2, "nothing");
  expect("check --direction sideways", 2, "--direction");
  expect("run gla --in a --out b --direction up", 2, "--direction");
  expect("check --tag fast", 2, "--tag");
  expect("check --backend tpu", 2, "--backend");
  for (const std::string seed : {"few", "-1", "99999999999999999999", "1.5", "' 1'"}) {
    for (const std::string command : {"check", "bench", "profile"}) {
      expect(command + " gla --case t63_h1_d64 --seed " + seed, 2,
             "--seed: must be an integer in [0,2^64), got ");
    }
  }
  for (const std::string command : {"bench", "profile"}) {
    expect(command + " --provider unfused --backend cpu", 2,
           "--provider unfused runs on CUDA only, not with --backend cpu");
    if (cuda_device_count() > 0) continue;
    expect(command + " --provider unfused", 1, "--provider unfused runs on CUDA only: ");
  }
  expect("bench --replays 0", 2, "--replays");
  expect("cases", 2, "op is required");
  expect("cases gla --tag fast", 2, "--tag");
  expect("cases gla --tag bench --case 'no_such_*'", 2, "no such case");
  expect("cases gla --file " + path("none"), 2, "--file");
  expect("bench --variant none --backend cpu", 2, "no such variant");
  expect("run gla", 2, "--in");
  expect("run conv --in a --out b", 2, "conv");
  expect("run gla --in a --out b --set scale", 2, "must be name=value, got scale");
}

TEST_F(Cli, InfoSaysWhatThereIs) {
  const Result result = run("info");
  EXPECT_EQ(result.exit_code, 0);
  for (const std::string text :
       {"commit ", "build: ", "ops: gla forward", "gla_forward.cpu.builtin"}) {
    EXPECT_NE(result.output.find(text), std::string::npos) << text;
  }
  if (cuda_device_count() > 0) return;
  EXPECT_NE(result.output.find("cuda: unavailable: " + cuda_unavailable_reason()),
            std::string::npos)
      << result.output;
}

TEST_F(Cli, RunWritesTheOutputs) {
  const std::string in = write_input(4, 2, 4);
  expect("run gla --in " + in + " --out " + path("out") + " --set scale=0.5", 0,
         "gla forward on cpu: B1 T3 H1 K4 V2");
  const SafetensorsFile file = read_safetensors(path("out"));
  ASSERT_EQ(file.tensors.size(), 1u);
  ASSERT_EQ(file.tensors[0].name, "o");
  const auto* o = reinterpret_cast<const float*>(file.tensors[0].data.data());
  for (int t = 0; t < 3; ++t) EXPECT_FLOAT_EQ(o[2 * t], 0.5f * 4 * static_cast<float>(t + 1));
  expect("run gla --in " + in + " --out " + path("out") + " --set output_final_state=true", 0, "");
  EXPECT_NE(read_safetensors(path("out")).find("final_state"), nullptr);
}

TEST_F(Cli, RunRefusesInOneLineAndWritesNothing) {
  const std::string out = " --out " + path("out");
  expect("run gla --in " + path("none") + out, 1,
         path("none") + ": cannot be opened: No such file or directory");
  std::ofstream(path("bad")) << "12345678901234567890";
  expect("run gla --in " + path("bad") + out, 1, path("bad") + ": header size");
  expect("run gla --in " + write_input(4, 2, 3) + out, 1,
         path("in") + ": [gla_forward] k must have shape [B,T,HQ,K] = [1,3,1,4], got [1,3,1,3]");
  const std::string in = write_input(4, 2, 4);
  for (const std::string value : {"much", "nan", "inf", "1e999", "1x"}) {
    expect("run gla --in " + in + out + " --set scale=" + value, 2,
           "tandem: --set scale: must be a finite number, got " + value);
  }
  expect("run gla --in " + in + out + " --set scale=", 2, "--set scale: must be a finite number");
  expect("run gla --in " + in + out + " --set speed=2", 2,
         "--set speed: gla forward has no such setting");
  expect("run gla --in " + in + out + " --set output_final_state=maybe", 2,
         "must be true or false");
  std::vector<float> one(1, 1);
  write_safetensors(path("odd"), {{"w", TensorView::contiguous(one.data(), DType::kFloat32, {1})}});
  expect("run gla --in " + path("odd") + out, 1, path("odd") + ": tensor w: is no input of gla");
  write_safetensors(path("few"), {{"q", TensorView::contiguous(one.data(), DType::kFloat32, {1})}});
  expect("run gla --in " + path("few") + out, 1, path("few") + ": tensor k: is missing");
  if (cuda_device_count() == 0) {
    expect("run gla --backend cuda --in " + in + out, 1, "--backend cuda: ");
  }
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_EQ(run("run gla --in " + path("none") + out).output.find('\n'),
            run("run gla --in " + path("none") + out).output.size() - 1);
}

TEST_F(Cli, RunWritesThroughLinksAndIntoPipes) {
  const std::string call = "run gla --in " + write_input(4, 2, 4) + " --out ";
  fs::create_symlink("target", path("link"));
  expect(call + path("link"), 0, "");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_NE(read_safetensors(path("target")).find("o"), nullptr);
  expect(call + "/dev/full", 1, "/dev/full: cannot be written: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(Cli, DeepJsonIsRefused) {
  std::ofstream(path("deep")) << std::string(100000, '[') << std::string(100000, ']');
  expect("check gla --cases " + path("deep"), 1, path("deep") + ": not valid JSON: nested deeper");
  expect("report " + path("deep") + " --out " + path("r"), 1, path("deep") + ": not valid JSON");
}

TEST_F(Cli, CasesAreListedAndWritten) {
  const Result listed = run("cases gla --tag bench --case 'varlen_equal_n32*'");
  EXPECT_EQ(listed.exit_code, 0);
  std::istringstream text(listed.output);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 2u) << listed.output;
  EXPECT_EQ(lines[0].find("name "), 0u);
  EXPECT_EQ(lines[1].find("varlen_equal_n32_h16_d128  forward"), 0u);
  EXPECT_NE(lines[1].find("  B1 T131072 H16 HQ16 K128 V128 N32  bench"), std::string::npos);

  const auto json = [](const std::string& options) {
    return nlohmann::json::parse(run("cases " + options + " --json").output);
  };
  const auto all = json("gla");
  EXPECT_EQ(all.size(), load_cases("gla").size());
  EXPECT_EQ(json("gla --tag huge").size(), select_cases(load_cases("gla"), "", "huge").size());
  std::ofstream(path("all.json")) << all;
  EXPECT_EQ(json("gla --file " + path("all.json")), all);
}

TEST_F(Cli, CheckCountsAndExits) {
  expect("check gla --backend cpu --case t63_h1_d64 --verbose", 0, " 0 failed, 0 skipped");
  std::ofstream(path("cases.json")) << R"([{"name": "x", "axes": {}}])";
  expect("check gla --cases " + path("cases.json"), 1,
         path("cases.json") + ": case x: axes.B: is missing");
}

TEST_F(Cli, DirectionsPickTheCall) {
  const std::string one = "gla --backend cpu --case t63_h1_d64";
  const std::string all = run("check --verbose " + one).output;
  const std::string forward = run("check --verbose --direction forward " + one).output;
  for (const char* text : {"passed  forward", "gla forward"}) {
    EXPECT_NE(all.find(text), std::string::npos) << all;
    EXPECT_NE(forward.find(text), std::string::npos) << forward;
  }
  for (const char* text : {"passed  state", "gla state"}) {
    EXPECT_NE(all.find(text), std::string::npos) << all;
    EXPECT_EQ(forward.find(text), std::string::npos) << forward;
  }
  const std::string both = one + " --dtype bf16 --replays 1 --direction forward_backward";
  expect("bench " + both, 0, "library's choice");
  expect("profile " + both, 0, "library's choice");
  expect("check --direction forward_backward " + one, 0, "cpu, library's choice");
  std::ofstream(path("cases.json")) << R"([{"name": "x", "axes": {"B": 1, "T": 1, "H": 1, "K": 8},
      "dtype": ["fp32"], "decay": {"kind": "none"}, "tags": ["check"]}])";
  expect("check gla --direction step --cases " + path("cases.json"), 2,
         "no case in direction step");
}

TEST_F(Cli, BenchMergesIntoTheResultsFile) {
  std::ofstream(path("cases.json"))
      << R"([{"name": "small", "axes": {"B": 1, "T": 128, "H": 2, "K": 16},
      "dtype": ["bf16", "fp16"], "decay": {"kind": "none"}, "tags": ["bench"]}])";
  const std::string command = "bench gla --backend cpu --replays 3 --cases " + path("cases.json") +
                              " --json " + path("results/gla.json");
  expect(command, 0, "small");
  expect(command + " --run mine --dtype bf16", 0, "small");
  expect(command + " --run mine", 0, "small");
  const auto json = nlohmann::json::parse(std::ifstream(path("results/gla.json")));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["runs"].size(), 2u);
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["runs"]["mine"]["timer"]["method"], "steady_clock");
  EXPECT_GT(json["runs"]["mine"]["ceilings"]["copy_tbps"], 0);
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["case"], "small");
  EXPECT_EQ(row["provider"], "tandem");
  EXPECT_EQ(row["direction"], "forward");
  EXPECT_GT(row["median_us"], 0);
  EXPECT_LT(row["error"]["value"], 3e-3);
  expect("bench gla --backend cpu --once --case fla_b8h8_t1024_d64 --dtype bf16", 0, "ran once");
  std::ofstream(path("spoilt.json")) << "{}";
  expect(command + " --json " + path("spoilt.json"), 2, "--json");
  expect("bench gla --backend cpu --replays 1 --cases " + path("cases.json") + " --json " +
             path("spoilt.json"),
         1, path("spoilt.json") + ": schema: must be 1");
  const Result folder = run("bench gla --backend cpu --json " + path("results"));
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_EQ(folder.output, "tandem: " + path("results") + ": cannot be opened: Is a directory\n")
      << "before anything is timed";
}

/// Runs the program on one thread while it lives: beside other programs, short calls on several
/// mostly wait for each other.
class OneThread {
 public:
  OneThread() {
    if (const char* value = std::getenv(kName)) before_ = value;
    ::setenv(kName, "1", 1);
  }
  ~OneThread() { before_ ? ::setenv(kName, before_->c_str(), 1) : ::unsetenv(kName); }

 private:
  static constexpr const char* kName = "OMP_NUM_THREADS";
  std::optional<std::string> before_;
};

TEST_F(Cli, BenchOfTheHostsShare) {
  const OneThread one_thread;
  const std::string command =
      "bench --host --backend cpu --replays 3 --json " + path("cpu/host/cpp.json");
  expect(command, 0, "a call's time is all of it");
  const auto json = nlohmann::json::parse(std::ifstream(path("cpu/host/cpp.json")));
  const auto& run = json["runs"].front();
  EXPECT_EQ(run["timer"]["method"], "steady clock around 100 calls");
  EXPECT_FALSE(run.contains("ceilings"));
  std::map<std::string, double> median;
  for (const auto& row : json["rows"]) {
    const std::string call =
        row["op"].get<std::string>() + " " + row["direction"].get<std::string>();
    median[call] = row["median_us"];
    EXPECT_TRUE(row["case"].get<std::string>().starts_with("host_")) << row;
    EXPECT_GT(row["plan_us"], 0) << row;
    EXPECT_LT(row["plan_us"], row["median_us"]) << row;
    EXPECT_LE(row["p10_us"], row["median_us"]) << row;
    EXPECT_LE(row["median_us"], row["p90_us"]) << row;
    EXPECT_FALSE(row.contains("floor_us")) << row;
  }
  EXPECT_EQ(json["rows"].size(), median.size()) << "each call once";
  for (const char* op : {"gla", "gated_scan", "linear_scan"}) {
    for (const char* direction : {"forward", "backward", "forward_backward"}) {
      EXPECT_EQ(median.count(std::string(op) + " " + direction), 1u) << op << " " << direction;
    }
  }
  // Per call, not of a round.
  expect("bench gla --case host_step_h4_d64 --backend cpu --json " + path("usual.json"), 0, "step");
  const auto usual = nlohmann::json::parse(std::ifstream(path("usual.json")));
  const double us = usual["rows"][0]["median_us"];
  EXPECT_LT(median["gla step"], 10 * us);
  EXPECT_GT(median["gla step"], us / 10);
  EXPECT_LT(median["gla step"], median["gla forward"]) << "a token of 64";
}

TEST_F(Cli, BenchOfTheHostsShareRefusesWhatIsOfTheGpu) {
  for (const std::string other : {"--once", "--no-unfused", "--provider unfused"}) {
    expect("bench --host " + other, 2, "excludes");
  }
  expect("bench gla --host --direction state", 2, "no case with tag host in direction state");
}

/// An op without matrix work has no TFLOP/s, not 0.00 of them; baselines are named.
TEST_F(Cli, BenchOfAnOpWithoutFlops) {
  const std::string one = " --case sweep_b1_t512 --direction forward --backend cpu --replays 1";
  const auto cells = [&](const std::string& op) {  // of the row: it begins with the op
    std::istringstream text(run("bench " + op + one).output);
    std::vector<std::string> words;
    for (std::string line; std::getline(text, line);) {
      if (line.rfind(op + " forward", 0) != 0) continue;
      std::istringstream row(line);
      for (std::string word; row >> word;) words.push_back(word);
    }
    return words;
  };
  EXPECT_EQ(cells("gated_scan").size() + 1, cells("linear_scan").size());
  expect("bench gated_scan --provider other", 2, "--provider");
  expect("profile gated_scan --provider other", 2, "--provider");
}

TEST_F(Cli, DemoOnAText) {
  std::ofstream(path("text")) << "The quick brown fox jumps over the lazy dog.\n";
  expect("demo --text " + path("text") + " --dir " + path("demo"), 0,
         "gla  cpu     B1 T45 H4 K64 V64");
  EXPECT_TRUE(fs::exists(path("demo/input.safetensors")));
  EXPECT_TRUE(fs::exists(path("demo/output_cpu.safetensors")));
  expect("demo --text " + path("none") + " --dir " + path("demo"), 2, "none");
}

}  // namespace
}  // namespace tandem::tools

// The tandem program from outside: exit codes, messages, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/files/files.h"
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
    return shell(std::string(TANDEM_PROGRAM) + " " + arguments);
  }

  static Result shell(const std::string& command) {
    FILE* pipe = popen((command + " 2>&1").c_str(), "r");
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
  for (const std::string command :
       {"info", "cases", "run", "check", "bench", "demo", "completion"}) {
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
  expect("info nothing", 2, "nothing");
  expect("completion tcsh", 2, "tcsh");
  expect("check --case 'no_such_*'", 2, "no case matches no_such_*");
  expect("check nothing", 2, "nothing");
  expect("check --direction sideways", 2, "--direction");
  expect("check --case 'no_such_*,nor_*'", 2, "no case matches no_such_*,nor_*");
  for (const std::string other : {"--tag check", "--all"}) {
    expect("check --quick " + other, 2, "excludes");
  }
  expect("check --json --verbose", 2, "excludes");
  for (const std::string direction : {"up", "forward_backward"}) {  // two calls have no one file
    expect("run gla --in a --out b --direction " + direction, 2, "--direction");
  }
  expect("run gated_scan --in a --out b --direction step", 2,
         "--direction: gated_scan has forward, backward, decay, carry, carry_backward, got step\n");
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
       {"commit ", "build: ", "  gla            forward backward forward_backward"}) {
    EXPECT_NE(result.output.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(result.output.find("gla_forward.cpu.builtin"), std::string::npos) << "not all of them";
  const std::string gla = run("info gla").output, all = run("info --variants").output;
  for (const std::string& text : {gla, all}) {
    EXPECT_NE(text.find("gla_forward.cpu.builtin\n"), std::string::npos) << text;
  }
  EXPECT_NE(all.find("gated_scan_forward.cpu\n"), std::string::npos) << all;
  EXPECT_EQ(gla.find("gated_scan"), std::string::npos) << gla;
  if (cuda_device_count() > 0) return;
  EXPECT_NE(result.output.find("cuda: unavailable: " + cuda_unavailable_reason()),
            std::string::npos)
      << result.output;
}

TEST_F(Cli, InfoAsJson) {
  const auto info = nlohmann::json::parse(run("info --json").output);
  EXPECT_EQ(info["ops"]["gla"][0], "forward");
  EXPECT_EQ(info["cuda_unavailable"].is_null(), cuda_device_count() > 0);
  ASSERT_EQ(info["devices"][0]["device"], "cpu");
  const auto& variants = info["devices"][0]["variants"];
  const auto builtin = std::find_if(variants.begin(), variants.end(), [](const auto& variant) {
    return variant["name"] == "gla_forward.cpu.builtin";
  });
  ASSERT_NE(builtin, variants.end()) << info;
  EXPECT_EQ((*builtin)["unavailable"], "");
  const auto one = nlohmann::json::parse(run("info gated_scan --json").output);
  EXPECT_EQ(one["ops"].size(), 1u);
  EXPECT_LT(one["devices"][0]["variants"].size(), variants.size());
}

TEST_F(Cli, BashCompletes) {
  const std::string program = TANDEM_PROGRAM;
  // What is offered for the last of these words.
  const auto offered = [&](const std::string& words) {
    const auto count = std::count(words.begin(), words.end(), ' ');
    return shell("bash -c '. <(" + program + " completion bash); COMP_WORDS=(tandem " + words +
                 "); COMP_CWORD=" + std::to_string(count + 1) +
                 "; _tandem; echo \"${COMPREPLY[*]}\"'")
        .output;
  };
  EXPECT_EQ(offered("ch"), "check\n");
  EXPECT_EQ(offered("--ver"), "--version\n");
  EXPECT_EQ(offered("check --direction f"), "forward forward_backward\n");
  EXPECT_EQ(offered("run --direction f"), "forward\n");
  EXPECT_EQ(offered("check gla --ve"), "--verbose\n");
  EXPECT_EQ(offered("run gated"), "gated_output gated_scan\n");
  EXPECT_EQ(offered("run gla --in g"), "\n") << "a file";
  EXPECT_EQ(offered("help re"), "report\n");
}

TEST_F(Cli, EveryShellIsToldOfEveryCommand) {
  const std::map<std::string, std::string> option = {
      {"bash", "'check --direction') words='forward backward "},
      {"zsh",
       "'--direction[only this direction (default\\: all that the cases name)]:value:(forward "},
      {"fish", "'__fish_seen_subcommand_from check' -l direction -x -a 'forward backward "}};
  for (const auto& [shell, text] : option) {
    const std::string script = run("completion " + shell).output;
    EXPECT_THAT(script, testing::HasSubstr(text)) << shell;
    for (const std::string command : {"info", "cases", "run", "check", "bench", "profile", "report",
                                      "demo", "completion", "help"}) {
      EXPECT_THAT(script, testing::HasSubstr(command)) << shell;
    }
  }
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
  expect("run gla --in " + in + " --out " + path("new/folder/out"), 0, path("new/folder/out"));
  EXPECT_NE(read_safetensors(path("new/folder/out")).find("o"), nullptr);
}

/// Every call can be run on a file; a state that is updated in place comes back.
TEST_F(Cli, RunTakesAStep) {
  std::vector<float> q = {1, 0}, k = {2, 3}, v = {5}, state = {7, 11};
  write_safetensors(
      path("in"), {{"q", TensorView::contiguous(q.data(), DType::kFloat32, {1, 1, 2})},
                   {"k", TensorView::contiguous(k.data(), DType::kFloat32, {1, 1, 2})},
                   {"v", TensorView::contiguous(v.data(), DType::kFloat32, {1, 1, 1})},
                   {"state", TensorView::contiguous(state.data(), DType::kFloat32, {1, 1, 2, 1})}});
  expect("run gla --direction step --set scale=1 --in " + path("in") + " --out " + path("out"), 0,
         "gla step on cpu");
  const SafetensorsFile file = read_safetensors(path("out"));
  const auto values = [&](const char* name) {
    const FileTensor* tensor = file.find(name);
    if (tensor == nullptr) return std::vector<float>();
    const auto* data = reinterpret_cast<const float*>(tensor->data.data());
    return std::vector<float>(data, data + tensor->shape.product());
  };
  EXPECT_EQ(values("state"), (std::vector<float>{7 + 2 * 5, 11 + 3 * 5}));
  EXPECT_EQ(values("o"), (std::vector<float>{7 + 2 * 5}));
  EXPECT_EQ(file.tensors.size(), 2u);
}

TEST_F(Cli, RunCountsWhatIsNotFinite) {
  std::vector<float> ones(3 * 4, 1);
  write_input(4, 4, 4);
  expect("run gla --in " + path("in") + " --out " + path("out"), 0, "gla forward on cpu");
  EXPECT_EQ(run("run gla --in " + path("in") + " --out " + path("out")).output.find("NaN"),
            std::string::npos);
  std::vector<float> v(3 * 4, 1);
  v[1 * 4 + 2] =
      std::numeric_limits<float>::infinity();  // of the second token, and so of the third
  write_safetensors(path("in"),
                    {{"q", TensorView::contiguous(ones.data(), DType::kFloat32, {1, 3, 1, 4})},
                     {"k", TensorView::contiguous(ones.data(), DType::kFloat32, {1, 3, 1, 4})},
                     {"v", TensorView::contiguous(v.data(), DType::kFloat32, {1, 3, 1, 4})}});
  expect("run gla --direction forward --in " + path("in") + " --out " + path("out"), 0,
         " of 12 values of o are NaN or infinite");
}

TEST_F(Cli, RunRefusesInOneLineAndWritesNothing) {
  const std::string out = " --out " + path("out");
  expect("run gla --in " + path("none") + out, 1,
         path("none") + ": cannot be opened: No such file or directory");
  std::ofstream(path("bad")) << "12345678901234567890";
  expect("run gla --in " + path("bad") + out, 1,
         "do not fit in a file of 20: not a safetensors file, or one cut short");
  // Said before the input is read.
  expect("run gla --in " + path("none") + " --out " + path("bad/out"), 1,
         path("bad/out") + ": cannot be written: Not a directory");
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

TEST_F(Cli, CasesAreListedBeforeWork) {
  const std::string two = " gla --case 't63_h1_d64,t64_h1_d64' --direction backward --list";
  for (const std::string command : {"check", "bench", "profile"}) {
    const Result listed = run(command + two);
    EXPECT_EQ(listed.exit_code, 0) << listed.output;
    std::istringstream text(listed.output);
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    ASSERT_EQ(lines.size(), 4u) << listed.output;
    EXPECT_EQ(lines[0], "gla");
    EXPECT_EQ(lines[2].find("t63_h1_d64  backward  "), 0u) << listed.output;
    EXPECT_EQ(lines[3].find("t64_h1_d64  backward  "), 0u) << listed.output;
  }
  const std::string all = run("bench --list").output;
  for (const std::string op : {"gla", "gated_scan", "linear_scan"}) {
    EXPECT_NE(("\n" + all).find("\n" + op + "\n"), std::string::npos) << all;
  }
}

/// Without a GPU a check leaves out the large cases, and says so, unless the command line says what
/// it wants.
TEST_F(Cli, CheckOnACpuIsQuick) {
  const auto large = [](const std::string& options) {
    const std::string cases = run("check gla --backend cpu --list " + options).output;
    return cases.find("b4h32_t4096_d64") != std::string::npos;
  };
  EXPECT_FALSE(large(""));
  EXPECT_FALSE(large("--quick"));
  EXPECT_TRUE(large("--all"));
  EXPECT_TRUE(large("--tag large"));
  EXPECT_TRUE(large("--case 'b4h32_*'"));
  std::ofstream(path("cases.json")) << R"([{"name": "untagged", "axes": {"B": 1, "T": 2, "H": 1,
      "K": 8}, "dtype": ["fp32"], "decay": {"kind": "none"}, "tags": []}])";
  expect("check gla --backend cpu --list --cases " + path("cases.json"), 0, "untagged");
}

TEST_F(Cli, CheckOfOneDtype) {
  const std::string only = "check gla --backend cpu --case t63_h1_d64 --direction forward ";
  expect(only + "--dtype bf16 --once", 0, " passed, 0 failed, 0 skipped");
  expect(only + "--dtype bf8", 2, "--dtype");
  expect("check gla --backend cpu --case t63_h1_d64 --dtype fp64", 2, "no case in fp64");
}

TEST_F(Cli, CheckAsJson) {
  const Result result = run("check gla --backend cpu --case t63_h1_d64 --direction forward --json");
  EXPECT_EQ(result.exit_code, 0);
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_GT(json["passed"], 0);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["stopped"], false);
  EXPECT_EQ(json["results"].size(), json["passed"].get<std::size_t>());
  const auto& first = json["results"][0];
  EXPECT_EQ(first["op"], "gla");
  EXPECT_EQ(first["case"], "t63_h1_d64");
  EXPECT_EQ(first["outcome"], "passed");
  EXPECT_EQ(first["errors"][0]["output"], "o");
  EXPECT_LT(first["errors"][0]["value"], first["errors"][0]["limit"]);
}

/// Ctrl-C: what passed so far is told, and the program ends as one that it killed.
TEST_F(Cli, CheckStopsBehindACase) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);  // ignored where the tests are a job in the background
    if (std::freopen(path("out").c_str(), "w", stdout) == nullptr) _exit(1);
    execl(TANDEM_PROGRAM, "tandem", "check", "gla", "--backend", "cpu", "--random", "5", nullptr);
    _exit(1);
  }
  const auto catches_interrupts = [&] {
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigCgt:")) continue;
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
    }
    return false;
  };
  for (int i = 0; i < 6000 && !catches_interrupts(); ++i) usleep(10000);
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_THAT(read_text(path("out")), testing::HasSubstr("; stopped before the end\n"));
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
  EXPECT_EQ(run("bench gla --backend cpu --json " + path("spoilt.json/a")).output,
            "tandem: " + path("spoilt.json/a") + ": cannot be written: Not a directory\n");
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
  const auto rate = [&](const std::string& op) {  // the row's cell below "FLOP/s"
    std::istringstream text(run("bench " + op + one).output);
    std::size_t end = std::string::npos;
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(line.size(), 120u) << line;
      if (line.starts_with("case ")) end = line.find("FLOP/s") + 6;
      if (!line.starts_with("sweep_b1_t512 ") || end > line.size()) continue;
      std::string cell = line.substr(end - 6, 6);
      std::erase(cell, ' ');
      return cell;
    }
    return std::string("no row");
  };
  EXPECT_EQ(rate("gated_scan"), "");
  EXPECT_THAT(rate("linear_scan"), testing::MatchesRegex("[0-9.]+[MGT]"));
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

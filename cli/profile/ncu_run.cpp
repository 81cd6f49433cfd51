#include "cli/profile/ncu_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "cli/files/files.h"
#include "cli/profile/ncu_csv.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  return fs::is_regular_file(path) && access(path.c_str(), X_OK) == 0;
}

struct Output {
  int exit_code = -1;  // 128 + signal when one ended it
  std::string text;    // standard output and error
};

/// Runs a program without a shell, in the C locale: numbers are to have points.
Output run(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).rfind("LC_ALL=", 0) != 0) env.push_back(*variable);
  }
  std::string locale = "LC_ALL=C";
  env.push_back(locale.data());
  env.push_back(nullptr);
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int status = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Output output;
  if (status != 0) {
    close(ends[0]);
    output.text = fmt::format("==ERROR== cannot run {}\n", command[0]);
    return output;
  }
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = read(ends[0], part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    output.text.append(part.data(), got);
  }
  close(ends[0]);
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0 && errno == EINTR) {
  }
  output.exit_code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  return output;
}

std::string metric_list(std::size_t fields) {
  std::string list;
  for (std::size_t i = 0; i < fields; ++i) {
    list += (i == 0 ? "" : ",") + std::string(kCounterFields[i].metric);
  }
  return list;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

std::string version_of(const std::string& ncu) {
  const std::string text = run({ncu, "--version"}).text;
  const std::size_t at = text.find("Version ");
  if (at == std::string::npos) return "unknown";
  const std::string rest = text.substr(at + 8);
  return rest.substr(0, rest.find_first_of(" \n"));
}

/// A temporary folder, removed with the object.
struct ScratchFolder {
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "tandem_profile_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  fs::path path;
};

}  // namespace

std::string find_ncu(const std::string& wanted) {
  if (!wanted.empty()) return is_program(wanted) ? wanted : "";
  std::vector<fs::path> folders;
  if (const char* variable = std::getenv("PATH")) {
    std::string text = variable;
    for (std::size_t colon; (colon = text.find(':')) != std::string::npos;) {
      folders.emplace_back(text.substr(0, colon));
      text.erase(0, colon + 1);
    }
    folders.emplace_back(text);
  }
  folders.emplace_back("/usr/local/cuda/bin");
  for (const fs::path& folder : folders) {
    if (is_program(folder / "ncu")) return (folder / "ncu").string();
  }
  std::vector<std::string> own;  // /opt/nvidia/nsight-compute/2025.3.1/ncu
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator("/opt/nvidia/nsight-compute", missing)) {
    if (is_program(entry.path() / "ncu")) own.push_back((entry.path() / "ncu").string());
  }
  return own.empty() ? "" : *std::max_element(own.begin(), own.end());
}

NcuProfile profile_program(const std::string& ncu, const std::vector<std::string>& command,
                           const std::string& report) {
  NcuProfile profile;
  profile.version = version_of(ncu);
  const ScratchFolder scratch;
  const std::string file = (scratch.path / "r.ncu-rep").string();
  const auto measure = [&](std::size_t fields) {
    // why no filter by name or NVTX range: `bench --once` says where its one call begins and ends,
    // and so new kernels need no list. Clocks stay as they are: --clock-control none.
    std::vector<std::string> words = {ncu,
                                      "--target-processes",
                                      "all",
                                      "--profile-from-start",
                                      "off",
                                      "--replay-mode",
                                      "kernel",
                                      "--cache-control",
                                      "all",
                                      "--clock-control",
                                      "none",
                                      "--metrics",
                                      metric_list(fields),
                                      "-f",
                                      "-o",
                                      file};
    words.insert(words.end(), command.begin(), command.end());
    return run(words);
  };
  Output output = measure(kCounterFields.size());
  if (!fs::exists(file) && output.text.find("metric") != std::string::npos) {
    output = measure(kCoreFields);  // another version of ncu may not know them all
  }
  std::string csv;
  if (fs::exists(file)) {
    csv = run({ncu, "--import", file, "--csv", "--page", "raw", "--print-units", "base"}).text;
    profile.launches = parse_ncu_csv(csv);
  }
  // Drops launches without any value: counters were refused, though launches were seen.
  std::erase_if(profile.launches, [](const Counters& launch) {
    return !launch.get("dram_read_bytes") && !launch.get("profiled_us");
  });
  if (profile.launches.empty()) {
    profile.problem = ncu_complaint(output.text);
    if (profile.problem.empty()) profile.problem = ncu_complaint(csv);
    if (profile.problem.empty()) {
      profile.problem = fmt::format("ncu exited with {}: {}", output.exit_code,
                                    last_line(output.text.empty() ? csv : output.text));
    }
  } else if (!report.empty()) {
    write_file(report, read_text(file));
  }
  return profile;
}

}  // namespace tandem::tools

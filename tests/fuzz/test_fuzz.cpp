// Readers of files against inputs changed at random: each is read or refused, by a message that
// names the file and can be shown. TANDEM_FUZZ_SECONDS: so long in all, instead of a fixed number.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <sstream>

#include "cli/cases/cases.h"
#include "cli/files/files.h"
#include "cli/profile/counters.h"
#include "cli/profile/ncu_csv.h"
#include "cli/report/data.h"
#include "cli/report/front.h"
#include "cli/report/html.h"
#include "cli/report/markdown.h"
#include "cli/tensors/safetensors.h"
#include "tests/fuzz/mutate.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kReaders = 6;      // tests of this file
constexpr int kMutations = 500;  // of each reader, without TANDEM_FUZZ_SECONDS
constexpr Seconds kSlow{20};     // for one input: a reader hangs

std::vector<std::string> json_words() {
  std::istringstream text(
      R"({ } [ ] : , " null true -1 0 1.5 1e308 1e999 -0 5 2147483648 4294967296 9223372036854775808
         18446744073709551616 "" "x" "\u001b[2J" "\ud800" {} [] [1,2] "1..9999" "nan" 1e-320 "run" "rows"
         "case" "T")");
  std::vector<std::string> words = {std::string(40, '['), std::string(90, 'y')};
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

class Fuzz : public testing::Test {
 protected:
  Fuzz()
      : path_(fs::temp_directory_path() / ("tandem_fuzz_" + std::to_string(getpid()))),
        descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {}
  ~Fuzz() override { close(descriptor_); }

  /// Writes each input to path_ and reads it. A finding is left there: after a crash, too.
  void run(const std::vector<std::string>& good, const std::vector<std::string>& words,
           const std::function<void(const std::string& input)>& read) {
    const char* seconds = std::getenv("TANDEM_FUZZ_SECONDS");
    const std::uint64_t seed = seconds == nullptr ? 1 : std::random_device()();
    const Seconds time(seconds == nullptr ? 0 : std::atof(seconds) / kReaders);
    Mutator mutator(seed, good, words);
    int inputs = 0, accepted = 0;
    for (const std::string& input : good) {
      put(input);
      ASSERT_TRUE(accepts(input, read)) << "a good input";
    }
    for (const auto begin = Clock::now();
         seconds == nullptr ? inputs < kMutations : Clock::now() - begin < time; ++inputs) {
      const std::string input = mutator.next();
      put(input);
      const auto start = Clock::now();
      accepted += accepts(input, read);
      EXPECT_LT(Seconds(Clock::now() - start).count(), kSlow.count()) << "slow";
      if (HasFailure()) {
        FAIL() << "input " << inputs << " of seed " << seed << " is left in " << path_;
      }
    }
    fs::remove(path_);
    if (seconds != nullptr) {
      std::printf("%d inputs, %d of them accepted, seed %llu\n", inputs, accepted,
                  static_cast<unsigned long long>(seed));
    }
  }

  std::string path_;

 private:
  /// why not write_file: thousands of renames a second are what takes the time.
  void put(const std::string& input) const {
    ASSERT_EQ(ftruncate(descriptor_, static_cast<off_t>(input.size())), 0);
    ASSERT_EQ(pwrite(descriptor_, input.data(), input.size(), 0),
              static_cast<ssize_t>(input.size()));
  }

  bool accepts(const std::string& input, const std::function<void(const std::string&)>& read) {
    try {
      read(input);
      return true;
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(path_), 0u) << "names no file: " << text;
      EXPECT_EQ(text.find("json.exception"), std::string::npos) << text;
      EXPECT_TRUE(std::none_of(text.begin(), text.end(), [](unsigned char c) {
        return c < 0x20 || c == 0x7f;
      })) << text;
      EXPECT_LT(text.size(), path_.size() + 1000) << text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "no message of the reader: " << error.what();
    }
    return false;
  }

  int descriptor_;
};

TEST_F(Fuzz, Safetensors) {
  std::vector<float> values(24, 1.5f);
  std::vector<std::int32_t> offsets = {0, 3, 3};
  const std::string made = path_ + ".made";
  write_safetensors(made,
                    {{"q", TensorView::contiguous(values.data(), DType::kFloat32, {1, 3, 2, 4})},
                     {"k", TensorView::contiguous(values.data(), DType::kBFloat16, {1, 3, 2, 4})},
                     {"cu_seqlens", TensorView::contiguous(offsets.data(), DType::kInt32, {3})}});
  const std::string whole = read_text(made);
  write_safetensors(made, {});
  const std::string empty = read_text(made);
  fs::remove(made);
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}      )";
  const std::string wide = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') +
                           header + std::string(8, '\0');
  std::vector<std::string> words = json_words();
  words.insert(words.end(), {"\"F32\"", "\"I64\"", "\"data_offsets\"", "[0,8]", "[96,144]"});
  run({whole, wide, empty}, words, [&](const std::string&) {
    const SafetensorsFile file = read_safetensors(path_);
    for (const FileTensor& tensor : file.tensors) {
      EXPECT_LE(tensor.shape.product() * size_of(tensor.dtype),
                static_cast<std::int64_t>(tensor.data.size()));
    }
  });
}

TEST_F(Fuzz, Results) {
  const std::string runs =
      R"({"schema":1,"runs":{"a":{"date":"2026-01-01","device":{"name":"x","sm_clock_mhz":5},
      "ceilings":{"copy_tbps":4.2,"bf16_tflops":600},"timer":{"method":"m","l2":"cold"},
      "versions":{"torch":"2"},"command":"tandem bench; tandem y","missing":{"fla":"no"}},"b":{}},"rows":[)";
  const auto row = [](const std::string& run, const std::string& name, const std::string& rest) {
    return R"({"run":")" + run + R"(","op":"gla","direction":"forward","case":")" + name +
           R"(","dtype":"bf16","median_us":20.5,)" + rest + "}";
  };
  const std::string ours =
      R"("provider":"tandem","variant":"v","p10_us":20,"p90_us":21,"bytes":67633152,"flops":4294967296,
      "floor_us":15.73,"error":{"metric":"rel_rms","value":0.002},"counters":{"run":"b","median_us":26,
      "dram_read_bytes":5e7,"dram_write_bytes":2e7,"spill_loads":3,"registers":168,"reading":"r"})";
  const std::string peer = R"("provider":"fla","variant":null,"first_call_s":12.5)";
  run({runs + row("a", "b4h32_t1024_d64", ours) + "," + row("a", "b4h32_t4096_d64", ours) + "," +
           row("a", "b4h32_t1024_d64", peer) + "]}",
       runs + row("b", "other", R"("provider":"tandem","failure":"no\nway")") + "]}", runs + "]}"},
      json_words(), [&](const std::string&) {
        const std::vector<ReportFile> files = {load_file(path_)};
        const std::string page = html_report(files, {});
        EXPECT_EQ(page.find("<script"), page.rfind("<script")) << "another than its own";
        markdown_block(files);
        front_block(files);
      });
}

TEST_F(Fuzz, TuningLog) {
  const std::string line =
      R"({"date":"2026-01-01","commit":"c","device":"GPU","op":"gla","direction":"forward","case":"a",
"dtype":"bf16","variant":"v","note":"n","median_us":29.3,"floor_us":15,"config":{"registers":168},
"counters":{"tensor_pipe_pct":28.9,"dram_read_bytes":5e7,"dram_write_bytes":2e7}})";
  std::string one = line;
  std::erase(one, '\n');
  run({one + "\n" + one + "\n\n" + one, one}, json_words(), [&](const std::string&) {
    const auto lines = read_log(path_);
    html_report({}, {{"gla", lines}});
    markdown_iterations(lines);
  });
}

TEST_F(Fuzz, GlaCases) {
  run({R"([{"name":"a","axes":{"B":1,"T":5,"H":4,"K":8},"dtype":["bf16"],"decay":{"kind":"none"},"tags":[]},
{"name":"b{T}{K}{distribution}","directions":["forward","state"],"axes":{"B":1,"T":"1..9","H":4,"K":[8,16],
"HQ":2,"V":3},"dtype":["bf16","fp32"],"decay":{"kind":"per_token","distribution":["zero","huge"]},
"states":"both","strides":"padded","scale":0.5,"seed":3,"tags":["check"]}])",
       R"([{"name":"c","axes":{"B":1,"T":50,"H":4,"K":8},"dtype":["bf16"],"decay":{"kind":"none"},
"lengths":{"distribution":"log_uniform","sequences":5,"smallest":1,"largest":9},"tags":[]},
{"name":"d","axes":{"B":1,"T":50,"H":4,"K":8},"dtype":["fp16"],"decay":{"kind":"none"},
"cu_seqlens":[0,7,50],"tags":["check","bench"]},{"name":"e","directions":["step"],"axes":{"B":2,"H":4,"K":8},
"dtype":["fp16"],"decay":{"kind":"none"},"state_dtype":"bf16","tags":[]}])"},
      json_words(), [&](const std::string& input) {
        const std::vector<Case> cases = parse_cases("gla", input, path_);
        EXPECT_EQ(parse_cases("gla", write_cases("gla", cases), "again"), cases);
      });
}

TEST_F(Fuzz, ScanCases) {
  run({R"([{"name":"a{T}","axes":{"B":2,"T":[1,64],"D":8},"dtype":["bf16","fp32"],
"decay":{"kind":"decay","distribution":"normal"},"gate":"none","decay_dtype":"fp32","tags":["check"]}])"},
      json_words(), [&](const std::string& input) {
        const std::vector<Case> cases = parse_cases("gated_scan", input, path_);
        EXPECT_EQ(parse_cases("gated_scan", write_cases("gated_scan", cases), "again"), cases);
      });
}

TEST_F(Fuzz, NcuCsv) {
  const std::string recorded = read_text(TANDEM_SOURCE_DIR "/tests/data/ncu_gla_forward.csv");
  run({recorded},
      {"\"", "\"\"", ",", "\n", "\r\n", "\"Kernel Name\"", "nan", "inf", "1e308", "1,234.5",
       "12 (3; 4)", "Gbyte", "ms", "==ERROR== x\n", "==WARNING==", "", " ", "-1"},
      [&](const std::string& input) {
        const std::vector<Counters> launches = parse_ncu_csv(input);
        for (const Counters& launch : launches) {
          for (const auto& [name, value] : launch.values) EXPECT_TRUE(std::isfinite(value)) << name;
        }
        reading(total(launches), {10, 1e6, 4, 132});
        ncu_complaint(input);
      });
}

}  // namespace
}  // namespace tandem::tools

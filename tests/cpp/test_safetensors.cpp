// The safetensors reader against malformed files: each refusal names the file and the field. And
// round trips.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/calls/arguments.h"
#include "cli/calls/operation.h"
#include "cli/calls/run_file.h"
#include "cli/tensors/safetensors.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  Safetensors()
      : folder_(fs::temp_directory_path() / ("tandem_safetensors_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    path_ = (folder_ / "a.safetensors").string();
  }
  ~Safetensors() override { fs::remove_all(folder_); }

  void write_raw(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  static std::string size_bytes(std::uint64_t size) {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(size >> (8 * i) & 0xff);
    return bytes;
  }

  /// A file of this header and so many bytes of data.
  void write(const std::string& header, std::size_t data_bytes) {
    write_raw(size_bytes(header.size()) + header + std::string(data_bytes, '\1'));
  }

  void expect_refused(const std::string& text) {
    try {
      read_safetensors(path_);
      FAIL() << "was accepted, expected: " << text;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).find(path_ + ": "), 0u) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(Safetensors, NoFile) { expect_refused("cannot be opened"); }

TEST_F(Safetensors, AFolder) {
  path_ = folder_.string();
  expect_refused("cannot be opened");
}

TEST_F(Safetensors, TruncatedSize) {
  write_raw("");
  expect_refused("header size: the file has 0 bytes, needs at least 8");
  write_raw("1234567");
  expect_refused("header size: the file has 7 bytes, needs at least 8");
}

TEST_F(Safetensors, HeaderBeyondTheFile) {
  write_raw(size_bytes(100) + "{}");
  expect_refused("header size: 100 bytes do not fit in a file of 10");
  write_raw(size_bytes(~std::uint64_t{0}) + "{}");
  expect_refused("header size: 18446744073709551615 bytes do not fit");
  write_raw(size_bytes(std::uint64_t{1} << 62) + "{}");
  expect_refused("header size: 4611686018427387904 bytes do not fit");
}

TEST_F(Safetensors, HugeHeader) {
  write_raw(size_bytes(200'000'000));
  fs::resize_file(path_, 300'000'000);  // a hole: takes no disk
  expect_refused("header size: 200000000 bytes, at most 100000000 allowed");
}

TEST_F(Safetensors, HeaderIsNoJsonObject) {
  write("", 0);
  expect_refused("header: not valid JSON");
  write("{\"q\": ", 0);
  expect_refused("header: not valid JSON");
  write("[1, 2]", 0);
  expect_refused("header: must be a JSON object");
  write(std::string(100000, '['), 0);
  expect_refused("header: not valid JSON");
}

TEST_F(Safetensors, DeepHeaders) {
  for (const int levels : {40, 100000}) {
    write(R"({"__metadata__":)" + std::string(levels, '[') + std::string(levels, ']') + "}", 0);
    expect_refused("header: not valid JSON: nested deeper than 32 levels");
    write(R"({"q":{"dtype":)" + std::string(levels, '[') + std::string(levels, ']') + "}}", 0);
    expect_refused("header: not valid JSON: nested deeper than 32 levels");
  }
}

TEST_F(Safetensors, MessagesShowNamesSafely) {
  write(R"({"\u001b[2J":3})", 0);
  expect_refused("tensor \\u001b[2J: must be a JSON object");
  write(R"({"q":{"dtype":")" + std::string(1000, 'F') + R"(","shape":[1],"data_offsets":[0,4]}})",
        4);
  expect_refused("tensor q: dtype: \"" + std::string(79, 'F') + "... is not supported");
}

/// What `tandem run` does, with fp64 from the file to the outputs.
TEST_F(Safetensors, ACallOfFp64) {
  const Operation& operation = find_operation("gla");
  const Case one = parse_cases("gla", R"([{"name": "a", "axes": {"B": 2, "T": 70, "H": 2, "K": 8},
      "dtype": ["fp64"], "decay": {"kind": "per_token", "distribution": "normal"},
      "states": "initial", "tags": []}])",
                               "test")[0];
  TensorSet set = operation.make(one, DType::kFloat64, 1);
  std::vector<NamedView> inputs;
  for (const NamedTensor& tensor : set.tensors) {
    if (tensor.output) continue;
    inputs.push_back({tensor.name, view(tensor, set.buffers[tensor.buffer].data(), Device::cpu())});
  }
  write_safetensors(path_, inputs);
  const std::string out = (folder_ / "o.safetensors").string();
  const FileRun run =
      run_file(operation, path_, out, Device::cpu(), {{"output_final_state", "true"}});
  EXPECT_EQ(read_safetensors(out).find("o")->dtype, DType::kFloat64);
  EXPECT_EQ(read_safetensors(out).find("final_state")->dtype, DType::kFloat64);
  for (const OutputError& error : verify_file(operation, run.set, out)) {
    EXPECT_LT(error.value, 1e-13) << error.output;
  }
}

/// A search through all names for each takes minutes.
TEST_F(Safetensors, ManyNamesTakeNoLonger) {
  std::string header = "{";
  for (int i = 0; i < 150000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  write(header + "}", 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(SafetensorsReader(path_).entries().size(), 150000u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
}

/// Memory for what a table refuses is never touched.
TEST_F(Safetensors, DataIsReadOnceTheCallTakesTheHeader) {
  const auto refused = [&](const std::string& second, const std::string& text) {
    const std::string header =
        R"({"q":{"dtype":"F32","shape":[1,1,1,8],"data_offsets":[0,32]},)" + second + "}";
    write(header, 32);
    fs::resize_file(path_, 8 + header.size() + 32 + 2147483648u);  // a hole: takes no disk
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    try {
      read_call(find_operation("gla"), SafetensorsReader(path_), {});
      ADD_FAILURE() << "was accepted, expected: " << text;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 1 << 20) << "KB";
  };
  const std::string rest = R"(,"data_offsets":[32,2147483680]})";
  refused(R"("w":{"dtype":"F32","shape":[536870912])" + rest,
          "tensor w: is no input of gla forward");
  refused(R"("k":{"dtype":"F32","shape":[536870912])" + rest, "tensor v: is missing");
  const std::string v = R"("v":{"dtype":"F32","shape":[1,0,1,8],"data_offsets":[32,32]},)";
  refused(v + R"("k":{"dtype":"F32","shape":[536870912])" + rest,
          "[gla_forward] k must have shape [B,T,HQ,K]");
}

TEST_F(Safetensors, DuplicateNames) {
  write(R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "q":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
        8);
  expect_refused("header: duplicate name q");
}

TEST_F(Safetensors, Entries) {
  const std::pair<const char*, const char*> entries[] = {
      {R"(3)", "must be a JSON object"},
      {R"({"shape":[1],"data_offsets":[0,4]})", "dtype: is missing"},
      {R"({"dtype":"F32","data_offsets":[0,4]})", "shape: is missing"},
      {R"({"dtype":"F32","shape":[1]})", "data_offsets: is missing"},
      {R"({"dtype":"F8","shape":[1],"data_offsets":[0,8]})", "dtype: \"F8\" is not supported"},
      {R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", "dtype: \"f32\" is not supported"},
      {R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", "dtype: 7 is not supported"},
      {R"({"dtype":"F32","shape":4,"data_offsets":[0,4]})", "shape: must be a list"},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
       "shape: must hold unsigned integers"},
      {R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})",
       "shape: must hold unsigned integers"},
      {R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]})",
       "shape: must hold unsigned integers"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1],"data_offsets":[0,4]})",
       "shape: rank must be at most 5"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})",
       "shape: [4294967296,4294967296] overflows"},
      {R"({"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]})",
       "shape: [0,9223372036854775807,9] overflows"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", "data_offsets: must be [begin, end]"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":"0,4"})", "data_offsets: must be [begin, end]"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", "data_offsets: must hold unsigned"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[8,4]})", "data_offsets: [8, 4] must lie in"},
      {R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})",
       "data_offsets: [0, 16] must lie in the 8 bytes of data"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})",
       "data_offsets: [0, 18446744073709551615] must lie in"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})",
       "data_offsets: F32 of shape [1] needs 4 bytes, got 8"},
      {R"({"dtype":"BF16","shape":[2],"data_offsets":[0,8]})",
       "data_offsets: BF16 of shape [2] needs 4 bytes, got 8"},
  };
  for (const auto& [entry, text] : entries) {
    SCOPED_TRACE(entry);
    write(std::string("{\"log_decay\":") + entry + "}", 8);
    expect_refused(std::string("tensor log_decay: ") + text);
  }
}

TEST_F(Safetensors, Coverage) {
  write(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "k":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
        12);
  expect_refused("tensor k: data_offsets: begin at 4, overlapping data that ends at 8");
  write(R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "k":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
        12);
  expect_refused("tensor k: data_offsets: begin at 8, leaving a hole after 4");
  write(R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 6);
  expect_refused("data: 2 bytes after the last tensor belong to none");
}

TEST_F(Safetensors, Int64MustFit) {
  const std::int64_t values[] = {0, std::int64_t{1} << 31};
  const std::string header = R"({"cu_seqlens":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})";
  write_raw(size_bytes(header.size()) + header +
            std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  expect_refused("tensor cu_seqlens: value 2147483648 does not fit int32");
}

TEST_F(Safetensors, Int64Narrows) {
  const std::int64_t values[] = {-3, 2147483647};
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}  )";
  write_raw(size_bytes(header.size()) + header +
            std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  const SafetensorsFile file = read_safetensors(path_);
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_EQ(file.tensors[0].dtype, DType::kInt32);
  const std::int32_t expected[] = {-3, 2147483647};
  EXPECT_EQ(std::memcmp(file.tensors[0].data.data(), expected, sizeof(expected)), 0);
}

TEST_F(Safetensors, RoundTrip) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<std::uint16_t> b = {10, 20, 30};
  const TensorView transposed{a.data(), DType::kFloat32, {2, 3}, {1, 3}, Device::cpu()};
  write_safetensors(path_, {{"a", transposed},
                            {"empty", TensorView::contiguous(nullptr, DType::kFloat16, {0, 4})},
                            {"b", TensorView::contiguous(b.data(), DType::kBFloat16, {3})}});
  const SafetensorsFile file = read_safetensors(path_);
  ASSERT_EQ(file.tensors.size(), 3u);
  const FileTensor* read = file.find("a");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->shape, (Dims{2, 3}));
  const float expected[] = {1, 4, 7, 2, 5, 8};
  EXPECT_EQ(std::memcmp(read->data.data(), expected, sizeof(expected)), 0);
  EXPECT_EQ(file.find("empty")->shape, (Dims{0, 4}));
  EXPECT_EQ(file.find("empty")->dtype, DType::kFloat16);
  EXPECT_EQ(std::memcmp(file.find("b")->data.data(), b.data(), 6), 0);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST_F(Safetensors, WritesNothingWhereItCannot) {
  EXPECT_THROW(write_safetensors((folder_ / "no" / "a").string(), {}), std::runtime_error);
  fs::create_directory(path_);
  EXPECT_THROW(write_safetensors(path_, {}), std::runtime_error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

/// Every truncation of a good file is refused, never read past.
TEST_F(Safetensors, EveryTruncation) {
  std::vector<float> a(5, 1);
  write_safetensors(path_, {{"a", TensorView::contiguous(a.data(), DType::kFloat32, {5})}});
  const auto size = static_cast<std::int64_t>(fs::file_size(path_));
  for (std::int64_t bytes = size - 1; bytes >= 0; --bytes) {
    fs::resize_file(path_, bytes);
    EXPECT_THROW(read_safetensors(path_), std::runtime_error) << bytes;
  }
}

}  // namespace
}  // namespace tandem::tools

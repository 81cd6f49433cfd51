// projection's tensors from a file: outputs that come with a segment's weight, others that are
// asked for, and settings of numbered segments.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

class ProjectionFiles : public testing::Test {
 protected:
  ProjectionFiles()
      : path_((std::filesystem::temp_directory_path() /
               ("tandem_projection_" + std::to_string(getpid())))
                  .string()) {
    std::vector<float> values(3 * 40, 0.5f);
    const auto view = [&](const Dims& shape) {
      return TensorView::contiguous(values.data(), DType::kFloat32, shape);
    };
    write_safetensors(
        path_, {{"x", view({3, 4})}, {"weight0", view({16, 4})}, {"weight1", view({24, 4})}});
  }
  ~ProjectionFiles() override { std::filesystem::remove(path_); }

  TensorSet read(const Settings& settings) const {
    return read_call(find_operation("projection"), SafetensorsReader(path_), settings);
  }

  static void run(const TensorSet& set) {
    find_operation("projection").call(set, host_bases(set), Device::cpu(), {});
  }

  std::string path_;
};

TEST_F(ProjectionFiles, OutputsComeWithTheirWeights) {
  const TensorSet set = read({});
  EXPECT_EQ(set.get("out0").shape, (Dims{3, 16}));
  EXPECT_EQ(set.get("out1").shape, (Dims{3, 24}));
  EXPECT_EQ(set.tensors.size(), 5u);
}

TEST_F(ProjectionFiles, WhatABackwardTakesIsAskedFor) {
  const TensorSet set = read({{"activation0", "5"},
                              {"head_width0", "8"},
                              {"output_inverse_norm0", "true"},
                              {"activation1", "1"},
                              {"output_slope1", "true"},
                              {"fp32_out1", "true"}});
  EXPECT_EQ(set.get("inverse_norm0").shape, (Dims{3, 2}));
  EXPECT_EQ(set.get("slope1").shape, (Dims{3, 24}));
  EXPECT_EQ(set.scalars.at("head_width0"), 8);
  run(set);
  const NamedTensor& out = set.get("out0");
  EXPECT_NEAR(load(out.dtype, set.buffers[out.buffer].data() + out.offset, 47), std::sqrt(1 / 8.0),
              1e-6);
  EXPECT_THROW(run(read({{"output_slope0", "true"}})), InvalidArgument);
}

/// Outputs are made for the call: there is nothing to add to.
TEST_F(ProjectionFiles, HaveNothingToAccumulateTo) {
  try {
    read_call(find_operation("projection", "backward"), SafetensorsReader(path_),
              {{"accumulate", "1"}});
    ADD_FAILURE() << "was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "--set accumulate: projection backward has no settings");
  }
}

}  // namespace
}  // namespace tandem::tools

// The unfused baseline of gla: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/ops/gla.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

constexpr double kSlack = 3;  // it rounds every intermediate to 16 bits

TensorSet make(const std::string& json, DType dtype) {
  return make_gla(parse_cases("gla", json, "test")[0], dtype, 1);
}

std::size_t workspace(const TensorSet& set) {
  std::vector<void*> bases;
  for (const HostBuffer& buffer : set.buffers)
    bases.push_back(const_cast<std::byte*>(buffer.data()));
  const Operation& gla = find_operation("gla");
  return with_baseline(gla, *find_baseline(gla, "unfused"))
      .workspace_bytes(set, bases, Device::cuda());
}

std::string refusal(const std::string& fields, DType dtype) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "decay": {"kind": "none"}, "tags": ["check"], )";
  try {
    workspace(make(start + fields + "}]", dtype));
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

TEST(UnfusedGla, RefusesWithAReason) {
  const std::string dense = R"("axes": {"B": 1, "T": 100, "H": 2, "K": 64})";
  if (!built_with_cuda()) {
    EXPECT_THAT(refusal(dense, DType::kBFloat16), testing::HasSubstr("cuda: "));
    return;
  }
  EXPECT_EQ(refusal(dense, DType::kBFloat16), "");
  EXPECT_THAT(refusal(R"("axes": {"B": 1, "T": 100, "H": 2, "K": 12})", DType::kBFloat16),
              testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(refusal(dense + R"(, "cu_seqlens": [0, 100])", DType::kBFloat16),
              testing::HasSubstr("cu_seqlens"));
}

TEST(GpuUnfusedGla, EveryDenseCaseOfItsWidths) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  for (const Case& one : select_cases(load_cases("gla", ""), "", "check")) {
    if (one.cu_seqlens || one.axis("K") % 8 != 0 || one.axis("V") % 8 != 0) continue;
    for (const DType dtype : one.dtypes) {
      if (dtype == DType::kFloat32) continue;
      const TensorSet set = make_gla(one, dtype, 1);
      Placement placement(set, Device::cuda());
      const Operation& gla = find_operation("gla");
      with_baseline(gla, *find_baseline(gla, "unfused"))
          .call(set, placement.bases(), Device::cuda(), {});
      Buffers after = placement.download();
      const auto errors = expect_gla(set, false)->compare(set, after);
      const double rounding =
          dtype == DType::kBFloat16 ? 3e-3 : 5e-4;  // also of a state without decay
      for (const OutputError& error : errors) {
        EXPECT_LE(error.value, kSlack * std::max(error.limit, rounding))
            << one.name << " " << to_string(dtype) << ": " << describe(errors);
      }
      Buffers before = clone(set.buffers);
      erase_outputs(set, before);
      erase_outputs(set, after);
      EXPECT_EQ(find_stray_write(set, before, after), "") << one.name;
    }
  }
}

}  // namespace
}  // namespace tandem::tools

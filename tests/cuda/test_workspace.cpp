// Where a call on a GPU gets its scratch memory from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "cli/cases/cases.h"
#include "device_call.h"

namespace tandem::tools {
namespace {

class GpuWorkspace : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_missing_reason().empty()) GTEST_SKIP() << cuda_missing_reason();
  }

  /// gla_backward once on fresh copies; what it needs is in `needed`.
  Buffers run(const Context& context) {
    const Operation& operation = find_operation("gla", "backward");
    const Case one = select_cases(load_cases("gla"), "heads_d128", "")[0];
    set_ = operation.make(one, DType::kBFloat16, 1);
    Placement placement(set_, Device::cuda());
    needed = operation.workspace_bytes(set_, placement.bases(), placement.device());
    operation.call(set_, placement.bases(), placement.device(), context);
    return placement.download();
  }

  std::string difference(const Buffers& a, const Buffers& b) const {
    return find_difference(set_, a, b);
  }

  std::size_t needed = 0;

 private:
  TensorSet set_;
};

TEST_F(GpuWorkspace, IsAskedForOnceByItsSize) {
  const Buffers alone = run({});
  std::vector<std::size_t> asked;
  std::optional<gpu::Memory> memory;
  Context context;
  context.allocate = [&](std::size_t bytes) {
    asked.push_back(bytes);
    return memory.emplace(0, bytes).data();
  };
  const Buffers with_memory = run(context);
  EXPECT_THAT(asked, testing::ElementsAre(needed));
  EXPECT_EQ(difference(alone, with_memory), "");

  context.workspace = {memory->data(), needed};
  EXPECT_EQ(difference(alone, run(context)), "");
  EXPECT_EQ(asked.size(), 1u) << "though a workspace is given";
}

TEST_F(GpuWorkspace, NoneIsAnErrorAndWhatIsThrownPasses) {
  Context context;
  context.allocate = [](std::size_t) -> void* { return nullptr; };
  try {
    run(context);
    FAIL() << "was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), "[gla_backward] allocate must return " + std::to_string(needed) +
                                " bytes, got a null pointer");
  }
  context.allocate = [](std::size_t) -> void* { throw std::length_error("full"); };
  EXPECT_THROW(run(context), std::length_error);
}

}  // namespace
}  // namespace tandem::tools

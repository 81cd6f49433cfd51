// The NVTX ranges of calls, as a profiler sees them: a tool that records them is linked into this
// program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/runtime/call_scope.h"
#include "device_call.h"

namespace tandem::tools {
namespace {

using ::testing::ElementsAre;

/// The ranges that a thread opened, "domain: name", with a space in front per range around it.
struct Recorded {
  std::vector<std::string> ranges;
  int open = 0;
};
thread_local Recorded recorded;

nvtxDomainHandle_t create_domain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}

int push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  recorded.ranges.push_back(std::string(recorded.open, ' ') +
                            *reinterpret_cast<const std::string*>(domain) + ": " +
                            attributes->message.ascii);
  return recorded.open++;
}

int pop_range(nvtxDomainHandle_t) { return --recorded.open; }

/// What NVTX calls at its first use.
int start_tool(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count) == 0) return 0;
  const auto take = [&](NvtxCallbackIdCore2 id, auto* function) {
    *functions[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  take(NVTX_CBID_CORE2_DomainCreateA, create_domain);
  take(NVTX_CBID_CORE2_DomainRangePushEx, push_range);
  take(NVTX_CBID_CORE2_DomainRangePop, pop_range);
  return 1;
}

#if NVTX_LOAD_SEQUENCE_VERSION >= 2
// Before main, so that NVTX finds it at its first use, where NVTX_INJECTION64_PATH names no tool.
const bool kToolIsLinked = (InitializeInjectionNvtx2_fnptr = &start_tool) != nullptr;
#else
const bool kToolIsLinked = false;
#endif

class CallScope : public testing::Test {
 protected:
  void SetUp() override {
    if (!kToolIsLinked) GTEST_SKIP() << "this CUDA toolkit's NVTX finds no tool in the program";
    recorded = {};
  }
};
using GpuCallScope = CallScope;

TEST_F(CallScope, RangesNestInTheDomainTandem) {
  {
    const cuda::Range outer("outer");
    { const cuda::Range inner("inner"); }
    const cuda::Range next("next");
    EXPECT_EQ(recorded.open, 2);
  }
  const cuda::Range last("last");
  EXPECT_THAT(recorded.ranges,
              ElementsAre("tandem: outer", " tandem: inner", " tandem: next", "tandem: last"));
}

TEST_F(CallScope, ACallThatFailsClosesItsRange) {
  EXPECT_THROW(cuda::CallScope("gla_forward.sm90", 1 << 20), CudaError);
  EXPECT_THAT(recorded.ranges, ElementsAre("tandem: gla_forward.sm90"));
  EXPECT_EQ(recorded.open, 0);
}

TEST_F(GpuCallScope, EveryCallIsARangeOfItsVariantsName) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  for (const Operation& operation : operations()) {
    SCOPED_TRACE(title(operation));
    std::vector<Case> cases = select_cases(load_cases(operation.name), "", "sanitizer");
    // A call without elements launches nothing.
    std::erase_if(cases, [&](const Case& one) {
      return !one.has_direction(operation.direction) ||
             std::ranges::any_of(one.axes, [](const auto& axis) { return axis.second == 0; });
    });
    DeviceCall call(operation, cases.at(0));
    recorded = {};
    call.enqueue(nullptr);
    std::erase_if(recorded.ranges, [](const std::string& range) { return range[0] == ' '; });
    ASSERT_FALSE(recorded.ranges.empty());
    EXPECT_EQ(recorded.ranges.back(), "tandem: " + last_variant());
    EXPECT_EQ(recorded.open, 0);
    call.results();  // waits
  }
}

}  // namespace
}  // namespace tandem::tools

// linear_scan_forward with its final state in the initial state's place, where every tile dawdles
// after it has told the others its map: the last tile, which stores the final state, is then done
// long before the others go on, and those must have read the initial state.
#include <cuda_bf16.h>

#include "cuda/linear_scan/forward.cuh"
#include "cuda/linear_scan/variants.h"
#include "cuda/runtime/workspace.h"
#include "gpu_test.h"
#include "ops/linear_scan.h"
#include "tandem/tandem.h"

namespace tandem::cuda::linear_scan {
namespace {

using Element = __nv_bfloat16;

struct DawdlingConfig : ForwardConfig<Element, 1, 64, false> {
  static constexpr unsigned kTestDelay = 50'000;
};

class GpuLinearScanOrder : public GpuPart {};

TEST_F(GpuLinearScanOrder, TheInitialStateIsReadBeforeItCanBeReplaced) {
  constexpr std::int64_t kTokens = 64 * 20, kWidth = 64;
  const DeviceArray<Element> u(random_elements<Element>(kTokens * kWidth, 1));
  const DeviceArray<Element> weight(random_elements<Element>(kWidth * kWidth, 2));
  const DeviceArray<Element> decay(std::vector<Element>(kTokens * kWidth, Element(1.0f)));
  const DeviceArray<float> initial(random_elements<float>(kWidth, 3));
  DeviceArray<float> in_place(initial.host), apart(kWidth);
  DeviceArray<Element> out(kTokens * kWidth);

  const auto view = [](void* data, DType dtype, const Dims& shape) {
    return TensorView::contiguous(data, dtype, shape, Device::cuda());
  };
  const auto run = [&](float* initial_state, float* final_state) {
    LinearScanForwardArgs args;
    args.u = view(u.device, DType::kBFloat16, {1, kTokens, kWidth});
    args.weight = view(weight.device, DType::kBFloat16, {kWidth, kWidth});
    args.decay = view(decay.device, DType::kBFloat16, {1, kTokens, kWidth});
    args.out = view(out.device, DType::kBFloat16, {1, kTokens, kWidth});
    args.initial_state = view(initial_state, DType::kFloat32, {1, kWidth});
    args.final_state = view(final_state, DType::kFloat32, {1, kWidth});
    const DeviceProperties& device = device_properties(Device::cuda());
    ForwardParams params{};
    params.problem = make_problem(args);
    const ForwardPlan plan = plan_forward(params.problem, Tiling::kSmall, device);
    const ScratchMemory scratch("test", {}, plan.workspace_bytes);
    launch_clear(scratch.at<char>(0), static_cast<std::int64_t>(plan.workspace_bytes),
                 device.multiprocessors, nullptr);
    set_maps(plan_tiles(params.problem, Tiling::kSmall), params);
    params.time_tiles = static_cast<int>(plan.time_tiles);
    params.channel_tiles = static_cast<int>(plan.channel_tiles);
    params.columns = static_cast<int>(plan.channel_tiles);
    params.tiles = static_cast<int>(plan.tiles);
    params.exchange = {scratch.at<float2>(plan.maps), scratch.at<float>(plan.states),
                       scratch.at<std::uint32_t>(plan.ticket)};
    launch_forward<DawdlingConfig>("test", params, plan.blocks, nullptr);
    finish();
    std::vector<float> values;
    for (const Element value : out.download()) values.push_back(value);
    return values;
  };
  const std::vector<float> expected = run(initial.device, apart.device);
  EXPECT_EQ(run(in_place.device, in_place.device), expected);
  EXPECT_EQ(in_place.download(), apart.download());
}

}  // namespace
}  // namespace tandem::cuda::linear_scan

#include "cuda/gla/wide/plan.h"

#include <algorithm>
#include <limits>

#include "cuda/gla/common/state_walks.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kWidestKey = 256;
constexpr int kWidestValue = 512;

int value_panels_of(const GlaForwardProblem& f) { return static_cast<int>(ceil_div(f.V, 64)); }
int key_parts_of(const GlaForwardProblem& f) {
  return std::max(static_cast<int>(ceil_div(f.K, kWideKeys)), 1);
}

/// Microseconds of a launch for so many heads, fitted to an H200 (docs/ops/gla_backward.log.md).
double predicted_time(const WideBackwardPlan& plan, const GlaForwardProblem& f, bool sums,
                      std::int64_t heads, const DeviceProperties& device) {
  constexpr double kLaunch = 4.0;  // of each kernel, its first loads and last stores
  // All gradients of a block of rows, on a multiprocessor: beside, and for, each 64 columns of V.
  const double block = plan.key_parts == 1 ? 11.5 : 17.0;
  const double panel = plan.key_parts == 1 ? 3.5 : 5.2;
  constexpr double kOfCopy = 0.85;  // the memory's rate where nearly as much is written as read
  const double rate = kOfCopy * device_model(device).gla_chunks.bytes_per_microsecond;
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t walks = 2 * heads * plan.value_panels * plan.key_parts;
  const int of_cta = state_walks_of_cta(walks, plan.value_panels, device.multiprocessors);
  const std::int64_t rounds = ceil_div(walks, state_walks_at_once(of_cta) * multiprocessors);
  const double chain =
      state_walk_chunk_time(of_cta) * static_cast<double>(ceil_div(f.T, 64) * rounds);
  const double tensors = static_cast<double>(4 * (f.K + f.V) * f.T * heads);
  const double states = static_cast<double>(2 * 2 * 64 * kWideKeys * plan.key_parts) *
                        static_cast<double>(plan.value_panels * plan.spans * heads);
  const std::int64_t kinds = wide_kinds(plan.value_panels, plan.key_parts);
  const std::int64_t items = ceil_div(heads * ceil_div(f.T, kWideRows) * kinds, multiprocessors);
  const double gradients =
      static_cast<double>(items) / static_cast<double>(kinds) * (block + panel * plan.value_panels);
  const double flows = sums ? kLaunch + states / rate : 0.0;
  return 3 * kLaunch + std::max(chain, (tensors + states) / rate) + gradients + flows;
}

/// What to multiply a predicted time by before it is compared with that of walks, which is 1.2 to
/// 1.7 times the measured one where sequences are long. Walks are faster with up to 256 columns of
/// V where heads fill the multiprocessors, unless sequences are short.
double beside_walks(const WideBackwardPlan& plan, const GlaForwardProblem& f,
                    const DeviceProperties& device) {
  constexpr std::int64_t kShort = 1024, kLong = 4096;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double otherwise = f.T > kLong ? 1.25 : 1.0;
  if (plan.value_panels > 4) return otherwise;
  const std::int64_t heads = f.B * f.H;
  if (plan.key_parts > 1) {
    return plan.value_panels == 4 && 4 * heads > device.multiprocessors ? kNever : otherwise;
  }
  const bool fill = 7 * heads >= 3 * device.multiprocessors;
  return fill && (f.T > kShort || f.K <= kWideKeys / 2) ? kNever : otherwise;
}

}  // namespace

std::string reason_against_wide(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  // Of the gradients' blocks and of walks, in both directions.
  const int value_panels = value_panels_of(f), key_parts = key_parts_of(f);
  const std::int64_t blocks = ceil_div(f.T, kWideRows) * wide_kinds(value_panels, key_parts);
  const std::int64_t walks = std::int64_t{2} * value_panels * key_parts;
  if (f.B * f.H * std::max(blocks, walks) > kMaxIndex) {
    return "takes at most 2^31 - 1 blocks of 128 tokens of heads";
  }
  // The sums for the gradient by the decays would not cancel closely enough: the last token's dk is
  // mostly of the final state then.
  if (f.dtype == DType::kFloat16 && problem.d_final_state && problem.d_log_decay.data) {
    return "takes fp16 and d_final_state without d_log_decay";
  }
  if (std::max(f.K, f.V) <= kWideKeys) {
    return "takes K or V above " + std::to_string(kWideKeys) + ", got " + std::to_string(f.K) +
           " and " + std::to_string(f.V);
  }
  const std::string reason = width_reason("K", f.K, kWidestKey);
  return reason.empty() ? width_reason("V", f.V, kWidestValue) : reason;
}

WideBackwardPlan plan_wide_backward(const GlaBackwardProblem& problem,
                                    const DeviceProperties& device, std::size_t most_bytes) {
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t heads = f.B * f.H;
  const bool sums = problem.d_log_decay.data != nullptr;
  WideBackwardPlan plan;
  plan.spans = static_cast<int>(ceil_div(f.T, kWideSpan));
  plan.value_panels = value_panels_of(f);
  plan.key_parts = key_parts_of(f);
  const auto lay_out = [&](std::int64_t slab) {
    plan.slab_heads = static_cast<int>(slab);
    const std::int64_t spans = slab * plan.spans;
    const std::int64_t states = spans * plan.value_panels * plan.key_parts * (2 * 64 * kWideKeys);
    const std::int64_t rows = sums ? 4 * spans * kWideSpan : 0;
    WorkspaceLayout workspace;
    plan.decays = workspace.add(spans * kWideChunks * kWideDecayBytes);
    plan.states = workspace.add(states);
    plan.state_gradients = workspace.add(states);
    plan.query_rows = workspace.add(rows);
    plan.key_rows = workspace.add(rows);
    plan.key_state_rows = workspace.add(rows);
    plan.decay_sums =
        workspace.add(sums && !problem.d_log_decay.per_token ? 4 * heads * plan.spans : 0);
    plan.workspace_bytes = workspace.bytes();
  };
  lay_out(heads);
  for (std::int64_t slabs = 2; plan.workspace_bytes > most_bytes && slabs <= heads; ++slabs) {
    lay_out(ceil_div(heads, slabs));
  }
  const std::int64_t slabs = ceil_div(heads, std::max(plan.slab_heads, 1));
  plan.time = beside_walks(plan, f, device) * static_cast<double>(slabs) *
              predicted_time(plan, f, sums, plan.slab_heads, device);
  return plan;
}

}  // namespace tandem::cuda::gla

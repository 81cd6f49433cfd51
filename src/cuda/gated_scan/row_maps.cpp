#include "cuda/gated_scan/row_maps.h"

#include <cstdlib>

namespace tandem::cuda {
namespace {

std::uint64_t hint_of(const char* name) {
  const char* v = getenv(name);
  if (v && *v == 'f') return 0x12F0000000000000;
  if (v && *v == 'l') return 0x14F0000000000000;
  return 0x1000000000000000;
}

/// map(tensor, rows), empty for a tensor that there is not.
auto maps_of(const ScanParams& params, DType dtype, std::int64_t batches) {
  const TileExtents extents{
      .batch = batches, .time = params.sequences.T, .heads = 1, .dim = params.D};
  return [=](const TokenTensor& tensor, int rows) {
    return tensor.data == nullptr ? CUtensorMap{}
                                  : encode(plan_rows("", tensor, dtype, extents, rows));
  };
}

}  // namespace

TensorMapPlan plan_rows(const char* name, const TokenTensor& tensor, DType dtype,
                        const TileExtents& extents, int rows) {
  const StridedTensor strided{tensor.data, tensor.batch_stride, tensor.time_stride, 0};
  TensorMapPlan plan = plan_tile(name, strided, dtype, extents, rows);
  plan.swizzled = false;
  return plan;
}


ScanBackwardMaps backward_maps(const ScanBackwardParams& params, DType dtype, std::int64_t batches,
                               int load_rows, int store_rows) {
  const auto map = maps_of(params, dtype, batches);
  return {map(params.x, load_rows),   map(params.decay, load_rows),
          map(params.gate, load_rows), map(params.d_out, load_rows),
          map(params.dx, store_rows), map(params.d_decay, store_rows),
          map(params.d_gate, store_rows), hint_of("GSCAN_HINT"), hint_of("GSCAN_HINT2")};
}

}  // namespace tandem::cuda

#include "cuda/gated_scan/row_maps.h"

namespace tandem::cuda::gated_scan {

BackwardMaps backward_maps(const BackwardParams& params, DType dtype, std::int64_t batches,
                           int load_rows, int store_rows) {
  const TileExtents extents{
      .batch = batches, .time = params.sequences.T, .heads = 1, .dim = params.D};
  const auto map = [&](const TokenTensor& tensor, int rows) {
    return tensor.data == nullptr
               ? CUtensorMap{}
               : encode(plan_rows("", tensor, dtype, extents, rows, kRowChannels));
  };
  return {map(params.x, load_rows),      map(params.decay, load_rows),
          map(params.gate, load_rows),   map(params.d_out, load_rows),
          map(params.dx, store_rows),    map(params.d_decay, store_rows),
          map(params.d_gate, store_rows)};
}

}  // namespace tandem::cuda::gated_scan

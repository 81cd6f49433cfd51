#include "cuda/gated_scan/row_maps.h"

namespace tandem::cuda::gated_scan {

namespace {

/// Encodes maps of a call's tensors.
struct Encoder {
  TileExtents extents;

  Encoder(const ChainParams& params, std::int64_t batches)
      : extents{.batch = batches, .time = params.sequences.T, .heads = 1, .dim = params.D} {}

  CUtensorMap operator()(const TokenTensor& tensor, DType dtype, int rows) const {
    if (tensor.data == nullptr) return {};
    return encode(plan_rows("", tensor, dtype, extents, rows, kRowChannels));
  }
};

}  // namespace

ForwardMaps forward_maps(const ForwardParams& params, DType dtype, DType decay_dtype,
                         std::int64_t batches, int rows) {
  const Encoder map(params, batches);
  return {map(params.x, dtype, rows), map(params.x_rest, dtype, rows),
          map(params.decay, decay_dtype, rows), map(params.gate, dtype, rows)};
}

BackwardMaps backward_maps(const BackwardParams& params, DType dtype, std::int64_t batches,
                           int load_rows, int store_rows) {
  const Encoder map(params, batches);
  return {map(params.x, dtype, load_rows),      map(params.decay, dtype, load_rows),
          map(params.gate, dtype, load_rows),   map(params.d_out, dtype, load_rows),
          map(params.dx, dtype, store_rows),    map(params.d_decay, dtype, store_rows),
          map(params.d_gate, dtype, store_rows)};
}

}  // namespace tandem::cuda::gated_scan

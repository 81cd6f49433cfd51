// The constants of the models that predict times. Host only.
#pragma once

namespace tandem {
struct DeviceProperties;
}

namespace tandem::cuda {

/// Constants of the models of time, in microseconds, as fitted to an H200. Chunks have 64 tokens;
/// three values are those at 64, 128 and 256 columns of K.
struct DeviceModel {
  /// Walks over chunks: gla's forward, and each gradient of its backward (docs/ops/gla.md).
  struct GlaWalk {
    double call = 5.0;                     // launch, first loads, last stores
    double exchange = 3.0;                 // publishing a segment's state, waiting for the others'
    double per_segment = 0.75;             // taking one published state
    double bytes_per_microsecond = 4.2e6;  // of the whole device
    double chunk[3] = {0.8, 1.45, 2.2};    // one chunk of one CTA
    double with_row_sums = 2.0;            // times `chunk`
    double with_value = 3.0;               // times `chunk`
    double span_chunk[3] = {0.5, 0.9, 1.5};  // one chunk of the pass for a segment's state
    double widest = 1.1;                     // times `chunk` and `span_chunk`: K 256, V 128
  };
  /// gla's backward by walks: what is added to their times.
  struct GlaBackward {
    double decays = 5.0;     // the kernel for the gradient by the decays
    double together = 1.15;  // measured over predicted, of all walks: 1.04 to 1.38
  };
  /// gla's backward by chunks (docs/ops/gla_backward.md).
  struct GlaChunks {
    double call = 11.0;          // two launches, their first loads and last stores
    double state_chunk = 0.5;    // one chunk of one walk for states
    double pair = 4.5;           // one pair of chunks of the gradients
    double reverse_pair = 3.65;  // the same in one reverse walk
    double bytes_per_microsecond = 4.0e6;
  };
  /// gla's backward in one reverse walk (docs/ops/gla_backward_cuda.md).
  struct GlaReverse {
    double call = 6.0;   // two launches, their first loads and last stores
    double chunk = 4.2;  // one chunk of every head that has a multiprocessor, few of them
    double head = 0.05;  // the same, each head's share, by the memory's rate
  };
  /// A scan along chains of tiles (docs/ops/gated_scan.md).
  struct Scan {
    double start = 3.3;                    // launch, first loads, last stores
    double step = 1.6;                     // latency of a step, however small
    double exchange = 0.18;                // of a cluster, per step,
    double exchange_rank = 0.01;           // and of each of its CTAs
    double element_alone = 1.0 / 12500;    // of a tile with a multiprocessor for itself
    double tile_together = 0.28;           // of a multiprocessor that is busy all the time,
    double rows_together = 0.19;           // and where TMA copies its tiles
    double element_together = 1.0 / 8000;  // the same, by the memory's rate
    double row = 37.0;                     // elements that each row of a tile costs beside its own
  };
  /// linear_scan (docs/ops/linear_scan.md). Pieces are 128 channels by 256 tokens, a chain's tiles;
  /// their times are a multiprocessor's.
  struct LinearScan {
    double call = 4.0;                // launch, first loads, last stores
    double chain_piece = 10.0;        // of a chain,
    double chain_depth = 0.0126;      // and of each column of u
    double chain_wait = 3.9;          // that a chain's tile waits for the one before,
    double chain_wait_column = 0.06;  // and of each column of tiles
    double small_piece = 13.0;        // of small tiles,
    double small_depth = 0.0245;      // and of each column of u
    double kept = 1.0e-6;             // of each x that is kept
    double composed_call = 2.4;       // of a product and a scan
    double flops_per_microsecond = 7.3e8;
    double bytes_per_microsecond = 2.5e6;
    double composed_x = 1.72e-6;  // of each x that a product writes, where that takes longest
    double composed_scan = 1.39;  // times a scan (Scan)
  };

  GlaWalk gla_walk;
  GlaBackward gla_backward;
  GlaChunks gla_chunks;
  GlaReverse gla_reverse;
  Scan scan;
  LinearScan linear_scan;
};

/// Returns the model of a device by its name; an H200's where the name is not known.
const DeviceModel& device_model(const DeviceProperties& device);

}  // namespace tandem::cuda

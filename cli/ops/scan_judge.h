// The scans' outputs against the fp64 definition: channels of sequences, and what lies outside all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/judge.h"
#include "cli/tensors/tensors.h"
#include "reference/gated_scan.h"

namespace tandem::tools {

/// One channel of one sequence.
struct ChannelIndex {
  std::int64_t n;
  int d;
};

/// Chooses all channels or, with `sampled`, the first, the last and some between: about a second of
/// work on two cores when a token costs so many exponentials or multiplications.
inline std::vector<ChannelIndex> channels_to_check(const ScanRecurrence& scan, bool sampled,
                                                   double token_cost = 1) {
  const std::int64_t all = scan.N * scan.D;
  double tokens = 0;
  for (std::int64_t n = 0; n < scan.N; ++n) {
    tokens += static_cast<double>(reference::span_of(scan, n).length());
  }
  const double average = tokens / std::max<double>(static_cast<double>(scan.N), 1);
  const auto affordable = static_cast<std::int64_t>(1e7 / (average * token_cost + 1));
  const std::int64_t wanted = sampled ? std::min(all, std::max<std::int64_t>(64, affordable)) : all;
  std::vector<ChannelIndex> channels;
  for (std::int64_t i = 0; i < wanted; ++i) {
    const std::int64_t index = wanted == all ? i : i * (all - 1) / (wanted - 1);
    channels.push_back({index / scan.D, static_cast<int>(index % scan.D)});
  }
  return channels;
}

/// Limit on the relative error of an output of `dtype`, with activations of dtype `activations`:
/// its own rounding, and that of fp32 arithmetic.
inline double scan_limit(DType dtype, DType activations) {
  if (dtype == DType::kBFloat16) return 2e-3;
  if (dtype == DType::kFloat16) return 3e-4;
  if (dtype == DType::kFloat64) return 1e-13;
  return activations == DType::kFloat32 ? 1e-6 : 1e-5;
}

/// Limit where a gradient may be computed from x and dx that were rounded to activations' dtype.
inline double rounded_x_limit(DType dtype, DType activations) {
  if (activations == DType::kBFloat16) return 4e-3;
  if (activations == DType::kFloat16) return 6e-4;
  return scan_limit(dtype, activations);
}

/// Limit of products of decays, whose relative errors add up along time.
inline double product_limit(DType dtype, DType decays) {
  if (dtype == DType::kFloat64) return 1e-13;
  return decays == DType::kFloat32 ? 5e-6 : 2e-5;
}

/// Compares outputs channel by channel.
class ChannelJudge {
 public:
  ChannelJudge(const ScanRecurrence& scan, const TensorSet& set, const Buffers& after,
               const std::vector<ChannelIndex>& channels)
      : scan_(scan), set_(set), after_(after), channels_(channels) {
    inside_.resize(scan.T, !scan.cu_seqlens);
    for (std::int64_t n = 0; scan.cu_seqlens && n < scan.N; ++n) {
      const reference::Span span = reference::span_of(scan, n);
      std::fill(inside_.begin() + span.begin, inside_.begin() + span.end, 1);
    }
  }

  /// Compares a tensor [B,T,D]: expected(i) holds the tokens of channel i; tokens outside every
  /// sequence must be 0.
  template <class Expected>
  OutputError tokens(const char* name, const Expected& expected,
                     double (*limit)(DType, DType) = scan_limit) const {
    const NamedTensor& x = set_.get(name);
    std::vector<Squares> all = inside(x, expected);
    Squares& outside = all.emplace_back();
    for (std::int64_t t = 0; t < scan_.T; ++t) {
      for (int d = 0; d < scan_.D && !inside_[t]; ++d) {
        outside.add(value(x, t * x.strides[1] + d), 0);
      }
    }
    return judge(name, all, limit(x.dtype, scan_.dtype));
  }

  /// The same where tokens outside every sequence may hold anything.
  template <class Expected>
  OutputError tokens_inside(const char* name, const Expected& expected) const {
    const NamedTensor& x = set_.get(name);
    return judge(name, inside(x, expected), scan_limit(x.dtype, scan_.dtype));
  }

  /// Compares kept states: expected(i) holds all states of channel i, [tokens + 1]. The one where a
  /// sequence begins may be anything.
  template <class Expected>
  OutputError kept_states(const char* name, const Expected& expected) const {
    const NamedTensor& x = set_.get(name);
    const auto add = [&](Squares& squares, std::size_t i) {
      const auto [n, d] = channels_[i];
      const reference::Span span = reference::span_of(scan_, n);
      const std::vector<double>& states = expected(i);
      for (std::int64_t t = 1; t < span.length(); ++t) {
        const std::int64_t token = span.begin + t;
        if (token % kKeptStateTokens != 0) continue;
        const std::int64_t line = span.b * x.shape[1] + token / kKeptStateTokens;
        squares.add(value(x, line * scan_.D + d), states[t]);
      }
    };
    return judge(name, of_channels(x, add), scan_limit(x.dtype, scan_.dtype));
  }

  /// Compares a tensor [B,lines,D] of dense sequences: expected(i) holds the lines of channel i.
  template <class Expected>
  OutputError lines(const char* name, const Expected& expected,
                    double (*limit)(DType, DType)) const {
    const NamedTensor& x = set_.get(name);
    const auto add = [&](Squares& squares, std::size_t i) {
      const auto [n, d] = channels_[i];
      const std::vector<double>& values = expected(i);
      for (std::int64_t line = 0; line < x.shape[1]; ++line) {
        squares.add(value(x, n * x.strides[0] + line * x.strides[1] + d), values[line]);
      }
    };
    return judge(name, of_channels(x, add), limit(x.dtype, scan_.dtype));
  }

  /// Compares a state [N,D]: expected(i) is channel i's.
  template <class Expected>
  OutputError states(const char* name, const Expected& expected,
                     double (*limit)(DType, DType) = scan_limit) const {
    const NamedTensor& x = set_.get(name);
    const auto add = [&](Squares& squares, std::size_t i) {
      const auto [n, d] = channels_[i];
      squares.add(value(x, n * scan_.D + d), expected(i));
    };
    return judge(name, of_channels(x, add), limit(x.dtype, scan_.dtype));
  }

 private:
  double value(const NamedTensor& x, std::int64_t at) const {
    return load(x.dtype, after_[x.buffer].data() + x.offset, at);
  }

  /// What add(squares, i) finds in each channel.
  template <class Add>
  std::vector<Squares> of_channels(const NamedTensor& x, const Add& add) const {
    std::vector<Squares> all;
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      add(all.emplace_back(), i);
      add_smallest(all.back(), x.dtype);
    }
    return all;
  }

  /// The tokens of each channel.
  template <class Expected>
  std::vector<Squares> inside(const NamedTensor& x, const Expected& expected) const {
    return of_channels(x, [&](Squares& squares, std::size_t i) {
      const auto [n, d] = channels_[i];
      const reference::Span span = reference::span_of(scan_, n);
      const std::vector<double>& values = expected(i);
      for (std::int64_t t = 0; t < span.length(); ++t) {
        const std::int64_t at = span.b * x.strides[0] + (span.begin + t) * x.strides[1] + d;
        squares.add(value(x, at), values[t]);
      }
    });
  }

  /// Adds the size that values below a dtype's normal numbers are measured by: a product of decays
  /// may vanish there, exactly or not.
  static void add_smallest(Squares& squares, DType dtype) {
    const double smallest = dtype == DType::kFloat16 ? 0x1p-13 : 0x1p-100;
    squares.right += smallest * smallest * static_cast<double>(squares.count);
  }

  const ScanRecurrence& scan_;
  const TensorSet& set_;
  const Buffers& after_;
  const std::vector<ChannelIndex>& channels_;
  std::vector<char> inside_;  // tokens of some sequence
};

}  // namespace tandem::tools

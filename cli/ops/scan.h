// What the scans (gated_scan, linear_scan) share in the tools: scan_make.cpp, scan_judge.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/calls/keep_outputs.h"
#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/cases/draw.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

inline std::map<std::string, std::int64_t> draw_scan_axes(Draw& draw) {
  return {{"B", draw.in(0, 3)},
          {"T", draw.one_in(10) ? draw.in(0, 1) : draw.log_in(1, 4096)},
          {"D", draw.log_in(1, 600)},
          {"d", draw.log_in(1, 200)}};
}

/// The fields of a scan's cases.
inline CaseSchema scan_case_schema(const char* op, std::vector<std::string> axes) {
  return {.op = op,
          .axes = std::move(axes),
          .optional_axes = {},
          .fields = {"decay_dtype", "gate", "kept"},
          .decay_kinds = {{"decay", DecayKind::kDecay}, {"log_decay", DecayKind::kLogDecay}},
          .draw_axes = draw_scan_axes,
          .judgeable =
              [](const Case& one) {
                // Where decays are strong, few of so many values carry the sum.
                constexpr std::int64_t kEnough = 6000;
                const std::int64_t tokens = token_count(one), D = one.axis("D");
                if (tokens == 0 || one.has_direction("decay"))
                  return true;  // products do not cancel
                const auto d = one.axes.find("d");
                // Of a few states in fp32, one that cancels carries the error; channels of fewer
                // inputs cancel together, and so do sequences of the same tokens.
                constexpr std::int64_t kFewestStates = 40;
                const std::int64_t N = one.cu_seqlens ? std::ssize(*one.cu_seqlens) - 1
                                       : one.strides == Strides::kBroadcast ? 1
                                                                            : one.axis("B");
                const std::int64_t independent = d == one.axes.end() ? D : std::min(D, d->second);
                const bool states =
                    one.states != States::kNone || one.has_direction("carry_backward");
                if (states && N * independent < kFewestStates) return false;
                if (tokens * D < kEnough || one.has_direction("forward"))
                  return tokens * D >= kEnough;
                // du [tokens,d] and d_weight [D,d]
                return d == one.axes.end() || d->second * std::min(tokens, D) >= kEnough;
              },
          .draw_fields =
              [](Draw& draw, Case& one) {
                one.kept = draw.of({Kept::kYes, Kept::kNo});
              }};
}

/// Returns the strides of a tensor [B,T,D] of a case.
Dims scan_strides(Strides kind, const Dims& shape, bool output);

/// Returns how many elements a case's tensors lie off their alignment.
std::int64_t scan_shift(const Case& one);

/// Makes a forward call's tensors, inputs filled; `kept`: with what it writes for its backward.
TensorSet make_gated_scan(const Case& one, DType dtype, std::uint64_t seed, bool kept);
TensorSet make_gated_scan_decay(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gated_scan_carry(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gated_scan_carry_backward(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_linear_scan(const Case& one, DType dtype, std::uint64_t seed, bool kept);

/// Turns a forward's tensors into those of its backward.
TensorSet differentiate_scan(TensorSet set, const Signature& backward, const Case& one,
                             std::uint64_t seed);

/// How the tensors of a scan's calls are made: those of a forward, of a backward, and of a backward
/// that takes what the forward before it writes.
struct ScanMakers {
  decltype(Operation::make) forward, backward, second;
};

/// The makers by one of a forward's tensors, which the case says whether to keep for the backward.
template <class ForwardArgs, class Make>
ScanMakers make_scan_by(Make make, const Signature& forward, const Signature& backward) {
  const auto second = [=, &backward](const Case& one, DType dtype, std::uint64_t seed) {
    return differentiate_scan(make(one, dtype, seed, one.kept != Kept::kNo), backward, one, seed);
  };
  return {[=](const Case& one, DType dtype, std::uint64_t seed) {
            return make(one, dtype, seed, one.kept == Kept::kYes);
          },
          [=, &forward, &backward](const Case& one, DType dtype, std::uint64_t seed) {
            if (one.kept == Kept::kNo) return second(one, dtype, seed);
            TensorSet set = make(one, dtype, seed, true);
            keep_outputs<ForwardArgs>(forward, set, {"x", "states"});
            return differentiate_scan(std::move(set), backward, one, seed);
          },
          second};
}

std::unique_ptr<Expectation> expect_gated_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_decay(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_carry(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_carry_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_linear_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_linear_scan_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools

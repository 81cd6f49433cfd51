// What the files of projection share: the segments of a case, their tensors and expectations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"
#include "tandem/ops/projection.h"

namespace tandem::tools {

/// A segment of a case, as text: columns, an activation with its constants ("log_sigmoid 16",
/// "softplus 0.001 0.1", "l2_normalize 128"), and any of fp32 (its output is), bias (in x's dtype),
/// bias_fp32, unused (nothing comes back for its output). Of rms_norm_gemm also "heads 128" instead
/// of an activation, with any of norm (its weight in x's dtype), norm_fp32, rope.
struct SegmentCase {
  std::int64_t columns = 0;
  Activation activation = Activation::kNone;
  std::vector<double> constants;
  bool fp32 = false, bias = false, bias_fp32 = false, unused = false;
  bool norm = false, norm_fp32 = false, rope = false;  // of heads

  bool normalizes() const { return activation == Activation::kL2Normalize; }
  bool has_heads() const { return activation == Activation::kNone && !constants.empty(); }
  bool has_head_norm() const { return norm || norm_fp32; }
  bool has_slope() const { return activation != Activation::kNone && !normalizes(); }
  std::int64_t heads() const { return columns / static_cast<std::int64_t>(constants.at(0)); }
};

/// Reads a segment; none where the text is not of that form.
std::optional<SegmentCase> parse_segment(const std::string& text);

/// "weight3".
std::string segment_name(const char* stem, std::size_t segment);

// Of all ops with segments.

/// Matrix flops of one product of all rows with all weights.
double product_flops(const TensorSet& set);
/// "M2048 d4096 N4096+1024+1024".
std::string segments_shape(const TensorSet& set);
/// Refuses a case's segments that are none, too many or not of the form, and a forward that keeps
/// nothing for its backward.
void check_segments(const Line& line, const Case& one, int most);
/// Of random cases. Sums of few products may cancel, and few outputs may all be rounded by as much
/// as one can be.
std::map<std::string, std::int64_t> draw_rows(Draw& draw);
bool has_rows_to_judge(const Case& one);

/// Makes a forward call's tensors, inputs filled.
TensorSet make_projection(const Case& one, DType dtype, std::uint64_t seed);
/// Makes a backward call's, with what the forward kept; the forward's inputs and numbers are there
/// too, for the definition.
TensorSet make_projection_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of both in turn: the backward takes what the forward writes.
TensorSet make_projection_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_projection(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_projection_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools

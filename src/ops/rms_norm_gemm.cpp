// rms_norm_gemm: its tables, and arguments -> checked problem. Host only.
#include "ops/rms_norm_gemm.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ops/call.h"
#include "ops/segments.h"

namespace tandem {
namespace {

using Forward = RmsNormGemmForwardArgs;
using Backward = RmsNormGemmBackwardArgs;
using Segment = RmsNormGemmSegment;
using Gradient = RmsNormGemmSegmentGradient;

template <std::size_t i>
void append_forward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(segment_row<Forward, &Segment::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Forward, &Segment::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_number<Forward, &Segment::head_width, i>("head_width#"));
  add(segment_row<Forward, &Segment::head_norm_weight, i>("head_norm_weight#", Role::kInput, "W#",
                                                          Element::kSameOrFp32));
  add(segment_number<Forward, &Segment::head_eps, i>("head_eps#"));
  add(segment_number<Forward, &Segment::rotates, i>("rotates#"));
  add(segment_row<Forward, &Segment::out, i>("out#", Role::kOutput, "M,C#", Element::kSameOrFp32)
          .made(numbered("weight#", i)));
  add(segment_row<Forward, &Segment::pre_norm, i>("pre_norm#", Role::kOutput, "M,C#",
                                                  Element::kSame));
  add(segment_row<Forward, &Segment::head_rstd, i>("head_rstd#", Role::kOutput, "M,C#/head_width#",
                                                   Element::kFp32));
}

template <std::size_t i>
void append_backward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(segment_row<Backward, &Gradient::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Backward, &Gradient::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_number<Backward, &Gradient::head_width, i>("head_width#"));
  add(segment_row<Backward, &Gradient::head_norm_weight, i>("head_norm_weight#", Role::kInput, "W#",
                                                            Element::kSameOrFp32));
  add(segment_number<Backward, &Gradient::rotates, i>("rotates#"));
  add(segment_row<Backward, &Gradient::pre_norm, i>("pre_norm#", Role::kInput, "M,C#",
                                                    Element::kSame));
  add(segment_row<Backward, &Gradient::head_rstd, i>("head_rstd#", Role::kInput, "M,C#/head_width#",
                                                     Element::kFp32));
  add(segment_row<Backward, &Gradient::d_out, i>("d_out#", Role::kInput, "M,C#",
                                                 Element::kSameOrFp32));
  add(segment_gradient<Backward, &Gradient::d_weight, i>("d_weight#", "weight#", false));
  add(segment_gradient<Backward, &Gradient::d_bias, i>("d_bias#", "bias#", true));
  add(segment_gradient<Backward, &Gradient::d_head_norm_weight, i>("d_head_norm_weight#",
                                                                   "head_norm_weight#", true));
}

template <class Args>
void append_rope(std::vector<Parameter>& table) {
  const std::array rows = {
      input<&Args::rope_cos>("rope_cos", "P,J", Element::kSameOrFp32),
      input<&Args::rope_sin>("rope_sin", "P,J", Element::kSameOrFp32).of_dtype("rope_cos"),
      input<&Args::rope_positions>("rope_positions", "M", Element::kPositions, Layout::kContiguous),
      cu_seqlens<&Args::cu_seqlens>(),
      whole_number<&Args::rope_length>("rope_length"),
      choice<&Args::rope_layout>("rope_layout")};
  table.insert(table.end(), rows.begin(), rows.end());
}

template <std::size_t... segments>
std::vector<Parameter> forward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {
      input<&Forward::x>("x", "M,d", Element::kMatrix),
      input<&Forward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
      number<&Forward::eps>("eps"), input<&Forward::rstd>("rstd", "M", Element::kFp32)};
  append_rope<Forward>(table);
  (append_forward_rows<segments>(table), ...);
  table.push_back(output<&Forward::kept_rstd>("kept_rstd", "M", Element::kFp32));
  return table;
}

template <std::size_t... segments>
std::vector<Parameter> backward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {
      input<&Backward::x>("x", "M,d", Element::kMatrix),
      input<&Backward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
      input<&Backward::rstd>("rstd", "M", Element::kFp32).or_kept("kept_rstd"),
      gradient<&Backward::dx>("dx", "x"),
      gradient<&Backward::d_norm_weight>("d_norm_weight", "norm_weight").also_fp32(),
      input<&Backward::addend>("addend", "M,d").in_cpp_alone(),
      flag<&Backward::accumulate>("accumulate")};
  append_rope<Backward>(table);
  (append_backward_rows<segments>(table), ...);
  return table;
}

using Segments = std::make_index_sequence<kMostRmsNormGemmSegments>;

/// Checks what the table does not say of eps, and returns it.
double eps_of(const Signature& signature, const Forward& args) {
  constexpr double kDefault = 1e-6;
  if (!args.eps) return args.rstd ? 0 : kDefault;
  const double eps = *args.eps;
  if (!std::isfinite(eps))
    refuse(signature.name(), "eps must be finite, got " + std::to_string(eps));
  if (eps < 0) refuse(signature.name(), "eps must not be negative, got " + std::to_string(eps));
  if (args.rstd) refuse(signature.name(), "eps must not be given beside rstd, which includes it");
  return eps;
}

constexpr double kDefaultHeadEps = 1e-6;
constexpr int kWidestHead = 256;

/// What the tables do not say of heads and their rotation. `before` the tables' check, because
/// they divide by head_width; extents behind it.
template <class Args>
class HeadCheck {
 public:
  HeadCheck(const Signature& signature, const Args& args) : op_(signature.name()), args_(args) {}

  void before() const {
    for_each([&](const auto& segment, const std::string& i) {
      if (segment.head_width) check_width(*segment.head_width, i);
      if constexpr (requires { segment.head_eps; }) {
        if (segment.head_eps) check_eps(*segment.head_eps, i);
      }
      needs("head_norm_weight" + i, segment.head_norm_weight.has_value(), "head_width" + i,
            segment.head_width.has_value());
      needs("rotates" + i, segment.rotates, "head_width" + i, segment.head_width.has_value());
      needs("head_rstd" + i, segment.head_rstd.has_value(), "head_width" + i,
            segment.head_width.has_value());
    });
    if (const int layout = static_cast<int>(args_.rope_layout); layout != 0 && layout != 1) {
      refuse(op_, "rope_layout must be 0 (rotate half) or 1 (interleaved), got " +
                      std::to_string(layout));
    }
    if (args_.rope_length && *args_.rope_length < 1) {
      refuse(op_, "rope_length must be positive, got " + std::to_string(*args_.rope_length));
    }
  }

  void behind() const {
    bool rotates = false;
    for_each([&](const auto& segment, const std::string& i) {
      const bool normalizes = segment.head_norm_weight.has_value();
      if constexpr (requires { segment.head_eps; }) {
        needs("head_eps" + i, segment.head_eps.has_value(), "head_norm_weight" + i, normalizes);
      } else {
        needs("head_norm_weight" + i, normalizes, "pre_norm" + i, segment.pre_norm.has_value());
        needs("head_norm_weight" + i, normalizes, "head_rstd" + i, segment.head_rstd.has_value());
      }
      needs("pre_norm" + i, segment.pre_norm.has_value(), "head_norm_weight" + i, normalizes);
      needs("head_rstd" + i, segment.head_rstd.has_value(), "head_norm_weight" + i, normalizes);
      if (segment.head_width) check_heads(segment, i);
      needs("rotates" + i, segment.rotates, "rope_cos", args_.rope_cos.has_value());
      rotates = rotates || segment.rotates;
    });
    check_rope(rotates);
  }

 private:
  template <class Body>
  void for_each(const Body& body) const {
    for (std::size_t i = 0; i < args_.segments.size(); ++i) {
      body(args_.segments[i], std::to_string(i));
    }
  }

  void needs(const std::string& name, bool given, const std::string& other, bool there) const {
    if (given && !there) refuse(op_, name + " needs " + other);
  }

  void check_width(std::int64_t width, const std::string& i) const {
    if (width >= 8 && width <= kWidestHead && width % 8 == 0) return;
    refuse(op_,
           "head_width" + i + " must be a multiple of 8 in [8,256], got " + std::to_string(width));
  }

  void check_eps(double eps, const std::string& i) const {
    if (!std::isfinite(eps)) {
      refuse(op_, "head_eps" + i + " must be finite, got " + std::to_string(eps));
    }
    if (eps < 0) {
      refuse(op_, "head_eps" + i + " must not be negative, got " + std::to_string(eps));
    }
  }

  template <class OneSegment>
  void check_heads(const OneSegment& segment, const std::string& i) const {
    const std::int64_t width = *segment.head_width, columns = segment.weight.shape[0];
    if (columns % width != 0) {
      refuse(op_, "weight" + i + " must have rows for whole heads of " + std::to_string(width) +
                      ", got " + std::to_string(columns));
    }
    if (segment.head_norm_weight && segment.head_norm_weight->shape[0] != width) {
      refuse(op_, "head_norm_weight" + i + " must have shape [head_width" + i + "] = [" +
                      std::to_string(width) + "], got " +
                      to_string(segment.head_norm_weight->shape));
    }
    if (segment.rotates && args_.rope_cos && 2 * args_.rope_cos->shape[1] > width) {
      refuse(op_, "rope_cos must have at most head_width" + i +
                      " / 2 = " + std::to_string(width / 2) + " columns, got " +
                      std::to_string(args_.rope_cos->shape[1]));
    }
  }

  void check_rope(bool rotates) const {
    const bool positions = args_.rope_positions.has_value(), lists = args_.cu_seqlens.has_value();
    const bool length = args_.rope_length.has_value(), tables = args_.rope_cos.has_value();
    needs("rope_cos", tables, "rope_sin", args_.rope_sin.has_value());
    needs("rope_sin", args_.rope_sin.has_value(), "rope_cos", tables);
    needs("rope_positions", positions, "rope_cos", tables);
    needs("cu_seqlens", lists, "rope_cos", tables);
    needs("rope_length", length, "rope_cos", tables);
    needs("rope_cos", tables, "a segment that rotates", rotates);
    if (positions + lists + length > 1) {
      refuse(op_, "at most one of rope_positions, cu_seqlens and rope_length may be given");
    }
    const std::int64_t M = args_.x.shape[0];
    if (length && M % *args_.rope_length != 0) {
      refuse(op_, "rope_length must divide M = " + std::to_string(M) + ", got " +
                      std::to_string(*args_.rope_length));
    }
    if (!rotates || positions || lists) return;
    const std::int64_t last = M == 0 ? 0 : length ? *args_.rope_length : M;
    if (last > args_.rope_cos->shape[0]) {
      refuse(op_, "rope_cos must have a row for each of " + std::to_string(last) +
                      " positions, got " + std::to_string(args_.rope_cos->shape[0]));
    }
  }

  const char* op_;
  const Args& args_;
};

template <class Args>
Rope rope_of(const Args& args) {
  Rope rope;
  if (!args.rope_cos) return rope;
  rope.dtype = args.rope_cos->dtype;
  rope.cos = matrix_tensor(args.rope_cos);
  rope.sin = matrix_tensor(args.rope_sin);
  rope.positions = args.rope_cos->shape[0];
  rope.width = static_cast<int>(2 * args.rope_cos->shape[1]);
  rope.interleaved = args.rope_layout == RopeLayout::kInterleaved;
  rope.row_positions = offsets_data(args.rope_positions);
  rope.cu_seqlens = offsets_data(args.cu_seqlens);
  rope.N = sequence_count(args.cu_seqlens, 0);
  rope.length = args.rope_length.value_or(0);
  return rope;
}

/// What a segment's heads end in, whose width is set where they end in anything.
template <class OneSegment>
HeadFinish heads_of(const OneSegment& from, int& head_width) {
  HeadFinish heads;
  if (from.head_norm_weight) heads.norm_weight_dtype = from.head_norm_weight->dtype;
  heads.norm_weight = data_of(from.head_norm_weight);
  heads.rotates = from.rotates;
  heads.pre_norm = matrix_tensor(from.pre_norm);
  heads.rstd = matrix_tensor(from.head_rstd);
  if (heads.is_there()) head_width = static_cast<int>(*from.head_width);
  return heads;
}

static_assert(kMostRmsNormGemmSegments <= kMostProjectionSegments);

}  // namespace

const Signature& rms_norm_gemm_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("rms_norm_gemm_forward", forward_table(Segments()),
                              {cpu::rms_norm_gemm_forward, TANDEM_CUDA_ENTRY(rms_norm_gemm_forward),
                               TANDEM_CUDA_ENTRY(rms_norm_gemm_forward_workspace_bytes)});
  return signature;
}

const Signature& rms_norm_gemm_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "rms_norm_gemm_backward", backward_table(Segments()),
      {cpu::rms_norm_gemm_backward, TANDEM_CUDA_ENTRY(rms_norm_gemm_backward),
       TANDEM_CUDA_ENTRY(rms_norm_gemm_backward_workspace_bytes)});
  return signature;
}

RmsNormGemmForwardProblem make_problem(const RmsNormGemmForwardArgs& args) {
  const Signature& signature = rms_norm_gemm_forward_signature();
  check_segments(signature, args, kMostRmsNormGemmSegments);
  RmsNormGemmForwardProblem problem;
  problem.norm.eps = eps_of(signature, args);
  const HeadCheck check(signature, args);
  check.before();
  signature.check(&args);
  check.behind();
  set_sizes(problem.projection, args);
  problem.projection.rope = rope_of(args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    ProjectionForwardSegment& to = problem.projection.segments[i];
    set_product(to, args.segments[i]);
    to.heads = heads_of(args.segments[i], to.head_width);
    to.heads.eps = args.segments[i].head_eps.value_or(kDefaultHeadEps);
  }
  problem.norm.weight = args.norm_weight.data;
  problem.norm.weight_dtype = args.norm_weight.dtype;
  problem.norm.rstd = state_data(args.rstd);
  problem.kept_rstd = state_data(args.kept_rstd);
  return problem;
}

RmsNormGemmBackwardProblem make_problem(const RmsNormGemmBackwardArgs& args) {
  const Signature& signature = rms_norm_gemm_backward_signature();
  check_segments(signature, args, kMostRmsNormGemmSegments);
  const HeadCheck check(signature, args);
  check.before();
  signature.check(&args);
  check.behind();
  RmsNormGemmBackwardProblem problem;
  ProjectionBackwardProblem& projection = problem.projection;
  set_sizes(projection, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const Gradient& from = args.segments[i];
    ProjectionBackwardSegment& to = projection.segments[i];
    set_product(to, from);
    to.heads = heads_of(from, to.head_width);
    if (to.heads.is_there()) to.kept = ProjectionKept::kHeads;
    if (from.d_head_norm_weight) to.d_head_norm_weight_dtype = from.d_head_norm_weight->dtype;
    to.d_head_norm_weight = data_of(from.d_head_norm_weight);
  }
  projection.rope = rope_of(args);
  projection.dx = matrix_tensor(args.dx);
  projection.accumulate = args.accumulate;
  problem.norm.weight = args.norm_weight.data;
  problem.norm.weight_dtype = args.norm_weight.dtype;
  problem.norm.rstd = state_data(args.rstd);
  if (args.d_norm_weight) problem.d_norm_weight_dtype = args.d_norm_weight->dtype;
  problem.d_norm_weight = data_of(args.d_norm_weight);
  problem.addend = matrix_tensor(args.addend);
  return problem;
}

void rms_norm_gemm_forward(const RmsNormGemmForwardArgs& args, const Context& context) {
  run(rms_norm_gemm_forward_signature(), &args, context);
}

std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return workspace_bytes(rms_norm_gemm_forward_signature(), &args, device, batch_invariant);
}

void rms_norm_gemm_backward(const RmsNormGemmBackwardArgs& args, const Context& context) {
  run(rms_norm_gemm_backward_signature(), &args, context);
}

std::size_t rms_norm_gemm_backward_workspace_bytes(const RmsNormGemmBackwardArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant) {
  return workspace_bytes(rms_norm_gemm_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem

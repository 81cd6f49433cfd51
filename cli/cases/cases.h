// cases/<op>.json: the table of shapes of an op, which tests, check, bench and the peers read.
//
// The file is a list of objects, one per line. Fields (* required):
//   name*       placeholders {T}, {K}, {distribution}... stand for the fields that are given as
//   lists directions  a list of direction_names(), default ["forward"]; each is run under the same
//   axes*       gla: B*, T* (absent in a step, which is of one token), H*, K*, V (default K),
//               HQ (default H); gated_scan: B*, T*, D*; linear_scan: B*, T*, d*, D*;
//               projection and rms_norm_gemm: M*, d*; gemm_swiglu: M*, d*, F*;
//               gated_output: M*, d_in*, d*; causal_conv1d: B*, T*, D*, W*; attention: B*, T*
//               (queries), H*, K*, TK (keys, default T), HKV (key/value heads, default H), V
//               (default K)
//   dtype*      a list; every dtype is run under the same name; fp64 on the CPU only
//   decay       {kind, distribution: see DecayDistribution}, required of recurrences, which alone
//               have it; kind is none | constant | per_token for gla, decay | log_decay (which
//               argument it is) for the scans
//   decay_dtype of the scans: same (as x, default) | fp32
//   gate        of the scans: silu (default) | none
//   states      none (default) | initial | final | both | in_place; a step's is always in place
//   weight      of causal_conv1d: same (as x, default) | fp32
//   state_dtype of a step's state: fp32 (default) | bf16
//   saved_states  of gla: no (default) | yes, whether a forward writes them and a backward reads
//               them; other directions have none
//   cu_seqlens  of recurrences and attention: the offsets themselves, N+1 of them
//   lengths     instead of them {distribution: equal | log_uniform, sequences, and for log_uniform
//               smallest, largest}: see lengths.h; drawn from the case's seed
//   strides     contiguous (default) | packed | transposed | padded | misaligned | odd | broadcast
//   scale       default K^-0.5
//   segments    of projection* and rms_norm_gemm*: "2048 l2_normalize 128", columns and what
//               follows the product, as cli/ops/projection.h has it; a list of them for one case
//   activation  of gemm_swiglu: silu (default) | gelu | gelu_tanh | relu
//   around      of projection and gemm_swiglu: pre-activations lie around this, by the bias of each
//               segment, or by a constant column of x
//   norm        the dtype of a norm's weight, same (as x, default of rms_norm_gemm) | fp32, or
//               none (of gemm_swiglu and gated_output, their default)
//   eps         of rms_norm_gemm's norm: default the library's
//   head_eps    of rms_norm_gemm's heads: default the library's
//   rope        of rms_norm_gemm's segments that rotate: rows (default, a row's position is its
//               index) | length (two sequences, of one length) | positions | cu_seqlens
//   rope_width  columns that rotate: default all of the first such segment's heads
//   rope_layout rotate_half (default) | interleaved
//   rope_tables their dtype: fp32 (default) | same (as x)
//   rstd        of a norm: computed (default) | given
//   rows        of a norm: see RowValues, default normal
//   kept        yes (default), a forward writes what its backward takes | training, not where it
//               runs alone | no, of linear_scan: neither does
//   gradients   of the products' weights and biases: same (as x, default) | fp32
//   accumulate  of these: no (default) | yes, whether they are added to what there is
//   output_gate of gated_output, as all to `gated`: plain (default) | silu | sigmoid | none
//   group_norm  the dtype of h's weight: none (no h, default) | same (as o) | fp32
//   group_width default d_in
//   group_weight  repeated (default, of one group) | by_column
//   behind_gate no (default) | yes, whether h is behind the gate
//   bias        its dtype: none (no bias, default) | same (as o) | fp32
//   residual    yes (default) | no
//   output_norm none (default) | layer_norm | rms_norm; `norm` is its weight's and bias's dtype
//   sum         no (default) | yes, whether sum is wanted and has a gradient
//   gated       kept (default) | again, whether a is made again in the backward
//   causal      of attention, as all to `values`: no (default) | yes
//   window_left, window_right  keys that a query sees before and behind its own; default all
//   cu_seqlens_k  of keys, where cu_seqlens are those of queries; default the same
//   lengths_k   keys of each batch
//   log_sum_exp no (default) | yes, whether it is wanted and has a gradient
//   values      normal (default) | large (scores around 1e4) | infinite (scores of -inf, for some
//               queries all of them; of forwards) | around_10 (v)
//   tags*       check, bench, front (beside bench: on the front page), large (checked on sampled
//   heads), host (small: `bench --host` times what the host does for it), sanitizer, later (kernels
//   may still
//               refuse it), huge (beside large: tens of GB, only --tag huge selects it), random
//               (drawn: limits allow for outputs of few values)
//   seed        default 0
// An axis, decay.distribution, decay.kind, decay_dtype, gate, states, state_dtype, saved_states,
// strides, scale, activation, around, norm, eps, head_eps, rope*, rstd, rows, kept, gradients,
// accumulate, the fields of gated_output, causal, window_*, log_sum_exp and values may be a list,
// an axis also a range, "1..130": the line then stands for the cross product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tandem/tensor.h"

namespace tandem::tools {

enum class DecayKind { kNone, kConstant, kPerToken, kDecay, kLogDecay };

enum class DecayDistribution {
  kNormal,       // log_sigmoid(N(0,1)) / 16: a memory of some 20 tokens
  kNormalBench,  // log_sigmoid(N(0,1) + 2): what a trained gate gives
  kStrong,       // uniform in [-20,-2]
  kReset,        // normal, and -inf at one token in 16
  kResetHalf,    // normal, and -inf at one token in 2
  kResetEdges,   // normal, and -inf at the first and last token of every chunk of 64
  kAllReset,     // -inf everywhere
  kMinus20,      // -20 everywhere
  kMinus100,     // -100 everywhere: nothing in fp32
  kHuge,         // normal, and -1e30 (finite masks that users write) at one token in 16
  kZero,         // 0 everywhere
  kAlternating,  // 0 and -20 in turn
  kPositive,     // uniform in [0,0.02]: the state grows
  kPhases,       // of 500 tokens as kNormalBench, 350 without, 150 as kPositive, in turn
};

enum class States { kNone, kInitial, kFinal, kBoth, kInPlace };

/// Whether a norm is in front of a product, and the dtype of its weight.
enum class Norm { kNone, kSame, kFp32 };

/// What is normalised. Weights are then from 0.1 to 10, but beside normal rows.
enum class RowValues {
  kNormal,   // N(0,1)
  kExtreme,  // around 1e4, 1e-6, 1 and 0 in turn
  kLarge,    // around 1e4
  kSmall,    // around 1e-6
};

/// Where forwards write what their backwards take.
enum class Kept { kYes, kTraining, kNo };

enum class Strides {
  kContiguous,
  kPacked,      // q, k, v (x, decay, gate) are slices of one [B,T,...] buffer
  kTransposed,  // stored [B,H,T,D]; the scans' [T,B,D]
  kPadded,      // gaps between heads, tokens and batches; strides are multiples of 16 bytes
  kMisaligned,  // contiguous, the base one element past an aligned address
  kOdd,         // gaps that are odd numbers of elements
  kBroadcast,  // inputs with stride 0: heads share one q, k, v; the batch shares one log_decay, and
               // all of a scan's inputs
};

/// Returns the stride of rows of `width` elements with at least `gap` between them, as kPadded has
/// it.
inline std::int64_t padded_stride(std::int64_t width, std::int64_t gap) {
  constexpr std::int64_t kAligned = 8;  // 16 bytes, of 16-bit elements
  return (width + kAligned - 1) / kAligned * kAligned + gap;
}

struct Case {
  std::string name;
  std::vector<std::string> directions;
  std::map<std::string, std::int64_t> axes;
  std::vector<DType> dtypes;
  DecayKind decay = DecayKind::kNone;
  DecayDistribution distribution = DecayDistribution::kNormal;
  bool fp32_decay = false;   // scans in 16 bits only
  bool gate = true;          // scans only
  bool fp32_weight = false;  // causal_conv1d only
  States states = States::kNone;
  DType state_dtype = DType::kFloat32;
  bool saved_states = false;  // gla only
  Strides strides = Strides::kContiguous;
  std::optional<std::vector<std::int32_t>> cu_seqlens;
  std::optional<double> scale;
  Kept kept = Kept::kYes;             // linear_scan and products only
  std::vector<std::string> segments;  // what follows: products only
  std::optional<double> around;
  bool fp32_gradients = false;
  bool accumulate = false;
  std::string activation = "silu";
  Norm norm = Norm::kNone;
  std::optional<double> eps;
  bool rstd_given = false;
  std::optional<double> head_eps;  // what follows: rms_norm_gemm's heads
  std::string rope = "rows";
  std::int64_t rope_width = 0;
  bool rope_interleaved = false, rope_fp32 = true;
  RowValues rows = RowValues::kNormal;
  Norm group_norm = Norm::kNone;  // what follows: gated_output only
  Norm bias = Norm::kNone;
  bool group_weight_by_column = false, behind_gate = false;
  bool residual = true, sum = false, gated_again = false;
  std::int64_t group_width = 0;
  std::string output_gate = "plain";
  std::string output_norm = "none";
  bool causal = false, log_sum_exp = false;  // what follows: attention only
  std::optional<std::int64_t> window_left, window_right;
  std::optional<std::vector<std::int32_t>> cu_seqlens_k, lengths_k;
  std::string values = "normal";
  std::set<std::string> tags;
  std::uint64_t seed = 0;

  bool operator==(const Case&) const = default;
  std::int64_t axis(const std::string& letter) const { return axes.at(letter); }
  bool tagged(const std::string& tag) const { return tags.count(tag) != 0; }
  bool has_direction(const std::string& direction) const {
    return std::find(directions.begin(), directions.end(), direction) != directions.end();
  }
};

/// How many tokens belong to a sequence.
std::int64_t token_count(const Case& one);

struct Line;  // cli/cases/case_line.h
class Draw;   // cli/cases/draw.h

/// Fields that the cases of one op have, beside those that all have.
struct CaseSchema {
  std::string op;
  std::vector<std::string> axes;           // required
  std::vector<std::string> optional_axes;  // `check` knows what they are by default
  std::vector<std::string> fields;
  std::vector<std::pair<const char*, DecayKind>> decay_kinds = {};  // none: no recurrence
  /// Completes a case; refuses what does not fit together. Null: nothing to do.
  void (*check)(const Line& line, Case& one) = nullptr;
  /// Of random cases: draws all axes, and says whether relative errors of a case's results mean
  /// something (those of a few dozen sums do not: one that cancels decides them).
  std::map<std::string, std::int64_t> (*draw_axes)(Draw& draw) = nullptr;
  bool (*judgeable)(const Case& one) = nullptr;
  void (*draw_fields)(Draw& draw, Case& one) = nullptr;  // those of the op alone

  bool is_recurrence() const { return !decay_kinds.empty(); }
  bool has_field(const std::string& field) const {
    return std::find(fields.begin(), fields.end(), field) != fields.end();
  }
};

/// Every op's, in cli/ops/ops.cpp.
const std::vector<CaseSchema>& case_schemas();

/// forward, backward, forward_backward (the two in turn, as in training), step (one token), state
/// and state_backward (only what a span leaves behind), and of a scan decay and carry (what a state
/// before its first token gives, without and with sequences' outputs).
const std::vector<std::string>& direction_names();

/// check, bench...
const std::vector<std::string>& tag_names();

/// Parses and validates a table of `op`. Throws std::runtime_error naming `file`, the case and the
/// field.
std::vector<Case> parse_cases(const std::string& op, const std::string& json,
                              const std::string& file);

/// Writes the cases as a table of its own, which parse_cases reads back as the same cases: a line
/// each, no lists or ranges, defaults spelled out, drawn lengths as their cu_seqlens.
std::string write_cases(const std::string& op, const std::vector<Case>& cases);

/// Returns the table of `op` that this program was built with, or `file` when it is not empty.
std::vector<Case> load_cases(const std::string& op, const std::string& file = "");

/// Selects cases whose name matches one of the globs, a list by comma (empty: all), and that carry
/// the tag (empty: any but huge; a case tagged huge is selected by that tag only).
std::vector<Case> select_cases(std::vector<Case> cases, const std::string& globs,
                               const std::string& tag);

}  // namespace tandem::tools

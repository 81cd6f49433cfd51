// projection's forward on the CPU: tiles of rows by columns of a segment, each a product and what
// follows it, in any order.
//
// A product's last rows are padded with zeros (matmul_rows): a row's bits do not
// depend on how many others there are.
#include "ops/projection.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "cpu/projection_heads.h"
#include "cpu/projection_tile.h"
#include "cpu/row_operands.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 256;  // at most; whole heads, so no less than their widest

/// Neighbouring columns of a segment.
struct Block {
  const ProjectionForwardSegment* segment;
  std::int64_t first, columns;
};

std::vector<Block> blocks_of(const ProjectionForwardProblem& problem) {
  std::vector<Block> blocks;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    const std::int64_t width = std::max(segment.head_width, 1);
    const std::int64_t step = kColumns / width * width;
    for (std::int64_t first = 0; first < segment.columns; first += step) {
      blocks.push_back({&segment, first, std::min(step, segment.columns - first)});
    }
  }
  return blocks;
}

template <typename Real>
class Forward {
 public:
  Forward(const ProjectionForwardProblem& problem, MatmulProvider provider)
      : p_(problem), provider_(provider), operands_(problem.dtype, problem.d, provider) {}

  void run() const {
    const std::vector<Block> blocks = blocks_of(p_);
    const std::int64_t tiles = (p_.M + kRows - 1) / kRows;
    const int threads = parallel_threads();
    std::vector<Scratch> scratch(threads);
    // why the rows inside: a thread converts the weights of a block once.
    parallel_for(std::ssize(blocks) * tiles, threads, Schedule::kStatic,
                 [&](std::int64_t i, int thread) {
                   compute(blocks[i / tiles], i % tiles * kRows, scratch[thread]);
                 });
  }

 private:
  struct Scratch {
    const Block* block = nullptr;  // whose weights and bias these are
    MatmulOperand weight_operand;
    std::vector<std::byte> weight, x;  // where they are copied
    std::vector<Real> bias = std::vector<Real>(kColumns);
    std::vector<Real> z = std::vector<Real>(kRows * kColumns);
    std::vector<Real> slope = std::vector<Real>(kRows * kColumns);
    std::vector<Real> inverse_norm = std::vector<Real>(kRows * kColumns / 8);  // or rstd
    std::vector<Real> head_norm_weight = std::vector<Real>(kColumns);
    std::vector<Real> cos, sin;  // of the rows from `rope_row` on
    std::int64_t rope_row = -1;
  };

  /// The weights of a block as they are multiplied; its bias goes to the scratch.
  MatmulOperand weights_of(const Block& block, Scratch& scratch) const {
    const ProjectionForwardSegment& segment = *block.segment;
    if (scratch.block != &block) {
      scratch.block = &block;
      scratch.weight_operand =
          operands_.rows(segment.weight, block.first, block.columns, block.columns, scratch.weight);
      scratch.weight_operand.transposed = true;
      if (segment.bias) {
        const void* bias = element_at(segment.bias_dtype, segment.bias, block.first);
        rows_to_float({segment.bias_dtype, bias, 0}, 1, block.columns, scratch.bias.data(), 0);
      }
      if (segment.heads.normalizes()) {
        rows_to_float({segment.heads.norm_weight_dtype, segment.heads.norm_weight, 0}, 1,
                      segment.head_width, scratch.head_norm_weight.data(), 0);
      }
    }
    return scratch.weight_operand;
  }

  void rotate(const Block& block, std::int64_t row, std::int64_t rows, Scratch& scratch) const {
    if (scratch.rope_row != row) {
      scratch.cos.resize(kRows * p_.rope.width / 2);
      scratch.sin.resize(kRows * p_.rope.width / 2);
      load_rope(p_.rope, row, rows, scratch.cos.data(), scratch.sin.data());
      scratch.rope_row = row;
    }
    const std::int64_t width = block.segment->head_width;
    rotate_heads(p_.rope, rows, block.columns / width, width, scratch.cos.data(),
                 scratch.sin.data(), false, scratch.z.data());
  }

  void compute(const Block& block, std::int64_t row, Scratch& scratch) const {
    const ProjectionForwardSegment& segment = *block.segment;
    const std::int64_t rows = std::min(kRows, p_.M - row), columns = block.columns;
    Real* const z = scratch.z.data();
    const MatmulOperand weight = weights_of(block, scratch);
    const std::int64_t padded = matmul_rows(provider_, rows, kRows);
    matmul(provider_, {.M = padded,
                       .N = columns,
                       .K = p_.d,
                       .dtype = operands_.dtype(),
                       .a = operands_.rows(p_.x, row, rows, padded, scratch.x),
                       .b = weight,
                       .c = z,
                       .c_stride = columns});
    if (segment.bias) add_bias(rows, columns, scratch.bias.data(), z);
    const auto write = [&](const Real* from, std::int64_t from_columns, DType dtype,
                           const MatrixTensor& to, std::int64_t first) {
      if (!to.data) return;
      void* at = element_at(dtype, to.data, row * to.row_stride + first);
      rows_from_float(from, from_columns, rows, from_columns, Real{1}, {dtype, at, to.row_stride});
    };
    if (segment.heads.is_there()) {
      const std::int64_t width = segment.head_width, heads = columns / width;
      write(z, columns, p_.dtype, segment.heads.pre_norm, block.first);
      if (segment.heads.normalizes()) {
        rms_normalize_heads(rows * heads, width, scratch.head_norm_weight.data(),
                            static_cast<Real>(segment.heads.eps), z, scratch.inverse_norm.data());
        write(scratch.inverse_norm.data(), heads, kRealType<Real>, segment.heads.rstd,
              block.first / width);
      }
      if (segment.heads.rotates) rotate(block, row, rows, scratch);
    } else if (segment.activation == Activation::kL2Normalize) {
      const std::int64_t width = segment.head_width, heads = columns / width;
      normalize_heads(rows * heads, width, z, scratch.inverse_norm.data());
      write(scratch.inverse_norm.data(), heads, kRealType<Real>, segment.inverse_norm,
            block.first / width);
    } else {
      const ActivationOf<Real> activation{segment.activation, static_cast<Real>(segment.divisor),
                                          static_cast<Real>(segment.min),
                                          static_cast<Real>(segment.max)};
      activate(activation, rows * columns, z, scratch.slope.data());
      write(scratch.slope.data(), columns, segment.out_dtype, segment.slope, block.first);
    }
    write(z, columns, segment.out_dtype, segment.out, block.first);
  }

  const ProjectionForwardProblem& p_;
  MatmulProvider provider_;
  RowOperands operands_;
};

}  // namespace

void projection_forward(const ProjectionForwardProblem& problem, const CallOptions& options) {
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  run_with_real(problem.dtype, [&]<typename Real>() { Forward<Real>(problem, provider).run(); });
}

std::vector<VariantInfo> projection_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"projection", "projection_forward.cpu.onednn", onednn},
          {"projection", "projection_forward.cpu.builtin", ""},
          {"projection", "projection_backward.cpu.onednn", onednn},
          {"projection", "projection_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu

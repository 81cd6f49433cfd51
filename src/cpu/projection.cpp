// projection's forward on the CPU: tiles of rows by columns of a segment, each a product and what
// follows it, in any order.
//
// A product has always kRows rows, the last ones padded with zeros: a row's bits do not depend on
// how many others there are.
#include "ops/projection.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "cpu/projection_tile.h"

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
      : p_(problem), provider_(provider) {
    const bool as_it_lies = p_.dtype == kRealType<Real> ||
                            (p_.dtype == DType::kBFloat16 && matmul_prefers_bf16(provider));
    operand_dtype_ = as_it_lies ? p_.dtype : kRealType<Real>;
  }

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
    std::vector<std::byte> weight, x;
    std::vector<Real> bias = std::vector<Real>(kColumns);
    std::vector<Real> z = std::vector<Real>(kRows * kColumns);
    std::vector<Real> slope = std::vector<Real>(kRows * kColumns);
    std::vector<Real> inverse_norm = std::vector<Real>(kRows * kColumns / 8);
  };

  /// Whether rows are multiplied as they lie; a product's must not overlap.
  bool lies_right(const MatrixTensor& matrix) const {
    return operand_dtype_ == p_.dtype && matrix.row_stride >= p_.d;
  }

  const void* row_of(const MatrixTensor& matrix, std::int64_t row) const {
    return element_at(p_.dtype, matrix.data, row * matrix.row_stride);
  }

  /// Copies rows of x or a weight as they are multiplied, and zeros behind them.
  MatmulOperand copy(const MatrixTensor& from, std::int64_t row, std::int64_t rows,
                     std::int64_t most, std::vector<std::byte>& to) const {
    const std::int64_t bytes = p_.d * size_of(operand_dtype_);
    to.resize(most * bytes);
    if (operand_dtype_ == kRealType<Real>) {
      rows_to_float({p_.dtype, row_of(from, row), from.row_stride}, rows, p_.d,
                    reinterpret_cast<Real*>(to.data()), p_.d);
    } else {
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto* data = static_cast<const std::byte*>(row_of(from, row + i));
        std::copy_n(data, bytes, to.data() + i * bytes);
      }
    }
    std::fill(to.begin() + rows * bytes, to.end(), std::byte{0});
    return {to.data(), p_.d};
  }

  /// The weights of a block as they are multiplied; its bias goes to the scratch.
  MatmulOperand weights_of(const Block& block, Scratch& scratch) const {
    const ProjectionForwardSegment& segment = *block.segment;
    const bool in_place = lies_right(segment.weight);
    if (scratch.block != &block) {
      scratch.block = &block;
      if (!in_place) copy(segment.weight, block.first, block.columns, kColumns, scratch.weight);
      if (segment.bias) {
        const void* bias = element_at(segment.bias_dtype, segment.bias, block.first);
        rows_to_float({segment.bias_dtype, bias, 0}, 1, block.columns, scratch.bias.data(), 0);
      }
    }
    if (!in_place) return {scratch.weight.data(), p_.d, true};
    return {row_of(segment.weight, block.first), segment.weight.row_stride, true};
  }

  /// kRows rows of x as they are multiplied.
  MatmulOperand rows_of(std::int64_t row, std::int64_t rows, Scratch& scratch) const {
    if (rows < kRows || !lies_right(p_.x)) return copy(p_.x, row, rows, kRows, scratch.x);
    return {row_of(p_.x, row), p_.x.row_stride};
  }

  void compute(const Block& block, std::int64_t row, Scratch& scratch) const {
    const ProjectionForwardSegment& segment = *block.segment;
    const std::int64_t rows = std::min(kRows, p_.M - row), columns = block.columns;
    Real* const z = scratch.z.data();
    const MatmulOperand weight = weights_of(block, scratch);
    matmul(provider_, {.M = kRows,
                       .N = columns,
                       .K = p_.d,
                       .dtype = operand_dtype_,
                       .a = rows_of(row, rows, scratch),
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
    if (segment.activation == Activation::kL2Normalize) {
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
  DType operand_dtype_;
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

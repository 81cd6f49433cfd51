// Sums over rows, a value per column: bands of rows are added up in any order, then the bands in
// theirs, so that the bits are the same for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/elementwise.h"
#include "cpu/projection_tile.h"
#include "tandem/tensor.h"

namespace tandem::cpu {

inline constexpr std::int64_t kBandRows = 64;

/// How many bands M rows have.
inline std::int64_t band_count(std::int64_t M) { return (M + kBandRows - 1) / kBandRows; }

template <typename Real>
class ColumnSums {
 public:
  /// For M rows; not wanted: no memory.
  ColumnSums(bool wanted, std::int64_t M, std::int64_t columns)
      : wanted_(wanted), bands_(band_count(M)), columns_(columns) {
    if (wanted) sums_.resize(bands_ * columns);
  }

  /// Where a band adds up its rows, [columns]; null where no sums are wanted.
  Real* band(std::int64_t index) { return wanted_ ? sums_.data() + index * columns_ : nullptr; }

  /// Writes the sums as `width` values of `dtype`, each of every width-th column; adds them to what
  /// is there where they accumulate.
  void write(DType dtype, void* to, std::int64_t width, bool accumulate) const {
    if (!wanted_) return;
    std::vector<Real> columns(columns_), total(width);
    add_rows(bands_, columns_, sums_.data(), columns.data());
    add_rows(columns_ / width, width, columns.data(), total.data());
    if (accumulate) {
      std::vector<Real> before(width);
      rows_to_float({dtype, to, 0}, 1, width, before.data(), 0);
      add_rows(1, width, before.data(), total.data());
    }
    rows_from_float(total.data(), 0, 1, width, Real{1}, {dtype, to, 0});
  }

 private:
  bool wanted_;
  std::int64_t bands_, columns_;
  std::vector<Real> sums_;
};

}  // namespace tandem::cpu

// What the tools of ops with matrix products share: matrices laid out as a case says, and rows of
// results against the definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/calls/judge.h"
#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Adds the tensors of a case, laid out as it says.
class ProductMaker {
 public:
  TensorSet take() { return std::move(set_); }

 protected:
  ProductMaker(const Case& one, DType dtype, std::uint64_t seed)
      : one_(one), dtype_(dtype), seed_(seed + one.seed), M_(one.axis("M")), d_(one.axis("d")) {}

  RandomStream random(const std::string& name) const { return {seed_, name}; }

  /// Elements that a tensor lies off its alignment.
  std::int64_t shift() const {
    return one_.strides == Strides::kMisaligned || one_.strides == Strides::kOdd ? 1 : 0;
  }

  void add_matrix(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns,
                  bool output);
  void add_vector(const std::string& name, DType dtype, std::int64_t count, bool output);

  /// Names and rows of matrices [rows,d].
  using Stack = std::vector<std::pair<std::string, std::int64_t>>;
  /// Adds them: with packed strides as rows of one matrix.
  void add_stacked(const Stack& stack, DType dtype, bool output);

  /// Makes a number of N(0,1) an element of rows that are normalised, by its index among them.
  float row_value(float normal, std::int64_t i) const;
  void add_norm_weight();
  void fill_norm_weight(const std::string& name);
  /// Adds what the norm of x gives with this eps.
  void add_rstd(double eps);

  /// Fills a tensor with what value(number of N(0,1), index) makes of each element.
  template <class Value>
  void fill(const std::string& name, const Value& value) {
    const NamedTensor& tensor = set_.get(name);
    const RandomStream numbers = random(name);
    std::byte* data = set_.buffers[tensor.buffer].data() + tensor.offset;
    for_each_element(tensor, [&](std::int64_t offset, std::int64_t i) {
      store(tensor.dtype, data, offset, value(numbers.normal(i), i));
    });
  }

  const Case& one_;
  DType dtype_;
  std::uint64_t seed_;
  std::int64_t M_, d_;
  TensorSet set_;
};

inline constexpr std::int64_t kMostRows = 64;  // of a sampled case

/// Chooses all of `count` indices or at most `most` of them: the first, the last and some between.
std::vector<std::int64_t> some_of(std::int64_t count, std::int64_t most);

/// Compares values of a set with the definition, row by row.
class RowComparison {
 public:
  RowComparison(const TensorSet& set, const Buffers& after, const std::string& name)
      : tensor_(set.get(name)), data_(after[tensor_.buffer].data() + tensor_.offset) {}

  /// Begins at an element of the tensor.
  void row(std::int64_t index, const std::vector<double>& expected, std::int64_t first = 0);

  /// Some elements of a tensor of one axis, as one row.
  void elements(const std::vector<std::int64_t>& places, const std::vector<double>& expected);

  DType dtype() const { return tensor_.dtype; }
  OutputError error(double limit) const;

 private:
  NamedTensor tensor_;
  const std::byte* data_;
  std::vector<Squares> rows_;
};

/// A tensor as a call left it, to be read only: `after` has what it wrote, the set what it read.
TensorView view_after(const TensorSet& set, const Buffers& after, const char* name);

}  // namespace tandem::tools

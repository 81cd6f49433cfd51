// The tensors of ops that have segments of columns: x, and of each segment a weight, a bias and an
// output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/cases/random.h"
#include "cli/ops/projection.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Adds the tensors of a case, laid out as it says.
class SegmentTensors {
 public:
  SegmentTensors(const Case& one, DType dtype, std::uint64_t seed);

  TensorSet take() { return std::move(set_); }

  /// Adds x, which is not filled.
  void add_rows();
  /// Adds weights such that the products of rows of N(0,1) are of N(0,1), and biases.
  void add_weights();
  void add_outputs();
  /// Adds d_out, which is filled, and what its gradients are written to.
  void add_gradients();

 protected:
  template <class Body>
  void for_each_segment(const Body& body) {
    for (std::size_t i = 0; i < segments_.size(); ++i) body(segments_[i], i);
  }

  RandomStream random(const std::string& name) const { return {seed_, name}; }
  DType real() const;
  DType out_dtype(const SegmentCase& segment) const { return segment.fp32 ? real() : dtype_; }
  DType gradient_dtype() const { return one_.fp32_gradients ? real() : dtype_; }

  void add_matrix(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns,
                  bool output);
  void add_vector(const std::string& name, DType dtype, std::int64_t length, bool output);
  /// Fills the gradient, if it is there, with what the call adds to.
  void fill_sum(const std::string& name);

  /// Fills with value(numbers, i) of each element's linear index.
  template <class Value>
  void fill(const std::string& name, const Value& value) {
    const NamedTensor& tensor = set_.get(name);
    const RandomStream numbers = random(name);
    std::byte* data = set_.buffers[tensor.buffer].data() + tensor.offset;
    for_each_element(tensor, [&](std::int64_t offset, std::int64_t i) {
      store(tensor.dtype, data, offset, value(numbers, i));
    });
  }

  const Case& one_;
  DType dtype_;
  std::uint64_t seed_;
  std::int64_t M_, d_;
  std::vector<SegmentCase> segments_;
  TensorSet set_;

 private:
  std::int64_t shift() const;
  void add_stacked(const char* stem, DType dtype, bool output);
  void add_beside(const char* stem, bool output);
};

}  // namespace tandem::tools

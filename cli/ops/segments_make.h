// The tensors of ops that have segments of columns: x, and of each segment a weight, a bias and an
// output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/ops/product.h"
#include "cli/ops/projection.h"

namespace tandem::tools {

/// Adds the tensors of a case, laid out as it says.
class SegmentMaker : public ProductMaker {
 public:
  SegmentMaker(const Case& one, DType dtype, std::uint64_t seed);

  void add_outputs() { add_beside("out", true); }
  /// Adds d_out, which is filled, and what its gradients are written to.
  void add_gradients();

 protected:
  template <class Body>
  void for_each_segment(const Body& body) {
    for (std::size_t i = 0; i < segments_.size(); ++i) body(segments_[i], i);
  }

  DType real() const;
  DType out_dtype(const SegmentCase& segment) const { return segment.fp32 ? real() : dtype_; }
  DType gradient_dtype() const { return one_.fp32_gradients ? real() : dtype_; }

  /// Adds weights such that the products of rows of N(0,1) are of N(0,1), and biases.
  void add_weights();
  /// Fills the gradient, if it is there, with what the call adds to.
  void fill_sum(const std::string& name);

  std::vector<SegmentCase> segments_;

 private:
  Stack stack_of(const char* stem) const;
  void add_beside(const char* stem, bool output);
};

}  // namespace tandem::tools

// projection's outputs and gradients against the fp64 definition. Gradients are those of the whole
// forward, so that what it keeps for them is judged, too.
#include <cstdint>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/projection.h"
#include "cli/ops/segments_expect.h"
#include "ops/projection.h"
#include "reference/projection.h"

namespace tandem::tools {
namespace {

using reference::ProjectedRow;

/// A set's forward call: its inputs and numbers, outputs or none.
ProjectionForwardArgs forward_of(const TensorSet& set) {
  return host_arguments<ProjectionForwardArgs>(projection_forward_signature(), set);
}

RowReader rows_of(const TensorView& x) {
  return [x](std::int64_t row) { return reference::read_row(x, row, 0, x.shape[1]); };
}

ProjectionForwardArgs checked(const ProjectionForwardArgs& args) {
  make_problem(args);
  return args;
}

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : args_(checked(forward_of(set))),
        expected_(args_.segments, args_.x.shape[0], rows_of(args_.x), sampled) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    for (std::size_t i = 0; i < expected_.count(); ++i) {
      const auto add = [&](const char* stem, std::vector<double> ProjectedRow::*values) {
        const NamedTensor* tensor = set.find(segment_name(stem, i));
        if (tensor == nullptr || !tensor->output) return;
        RowComparison comparison(set, after, tensor->name);
        for (std::size_t row = 0; row < expected_.rows().size(); ++row) {
          comparison.row(expected_.rows()[row], expected_.segment(i)[row].*values);
        }
        // Slopes close to 1 are all rounded by nearly as much as any value is.
        errors.push_back(comparison.error(
            limit_of(tensor->dtype, tensor->dtype, values == &ProjectedRow::slope)));
      };
      add("out", &ProjectedRow::out);
      add("slope", &ProjectedRow::slope);
      add("inverse_norm", &ProjectedRow::inverse_norm);
    }
    return errors;
  }

 private:
  ProjectionForwardArgs args_;
  ExpectedOutputs expected_;
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)), expected_(define(args_, set, sampled)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = limit_of(args_.x.dtype, args_.x.dtype, true);
    RowComparison dx(set, after, "dx");
    for (std::size_t i = 0; i < expected_.rows().size(); ++i) {
      dx.row(expected_.rows()[i], expected_.by_rows()[i]);
    }
    std::vector<OutputError> errors = {dx.error(limit)};
    expected_.compare_sums(set, after, limit, errors);
    return errors;
  }

 private:
  static ExpectedGradients define(const ProjectionForwardArgs& forward, const TensorSet& set,
                                  bool sampled) {
    const auto args = host_arguments<ProjectionBackwardArgs>(projection_backward_signature(), set);
    make_problem(args);
    return {forward.segments,   args.segments,   args.x.shape[0],
            rows_of(forward.x), args.accumulate, sampled};
  }

  ProjectionForwardArgs args_;
  ExpectedGradients expected_;
};

}  // namespace

std::unique_ptr<Expectation> expect_projection(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_projection_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools

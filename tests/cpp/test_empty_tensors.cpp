// Every call without a batch or without a token: strides that lead nowhere are not looked at, as
// torch's expanded tensors and gradients of sums have them, 0 along every axis.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/signature.h"
#include "refusals.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

/// Arguments of a call with all that it can be given, with these extents of B and T.
struct EmptyCall {
  EmptyCall(const Signature& signature, std::int64_t B, std::int64_t T)
      : args(signature.make_args()), extents{{"B", B},        {"T", T},
                                             {"T/64", T > 0}, {"T/128", T > 0},
                                             {"N", B},        {"M", B * T},
                                             {"J", 2},        {"TQ", T},
                                             {"TK", T},       {"W", 4},
                                             {"W-1", 3},      {"d_in/group_width", 4}} {
    set_numbers(signature, args.get());
    const auto& rows = signature.parameters();
    memory.reserve(rows.size());  // views point into it
    for (const Parameter& row : rows) {
      if (row.number || is_int32(row.element)) continue;
      const Parameter* source = row.source ? signature.find(row.source) : nullptr;
      if (row.instead_of || (source && source->instead_of)) continue;
      if (fits_numbers(row)) set(row, signature);
    }
  }

  void set(const Parameter& row, const Signature& signature) {
    const Axes& axes = row.axes.back();
    Dims shape;
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < axes.rank; ++i) {
      const std::string& axis = signature.axes()[axes.index[i]];
      const auto found = extents.find(axis);
      const bool is_head = axis.size() > 1 && axis[0] == 'W';
      const bool is_heads = axis.size() > 1 && may_be_empty(axis) && axis[0] != 'C';
      const bool is_quotient = axis.find('/') != std::string::npos;
      sizes.push_back(found != extents.end()    ? found->second
                      : is_head                 ? 8
                      : is_heads || is_quotient ? kWidth / 8
                                                : kWidth);
    }
    shape = Dims(sizes);
    memory.emplace_back(shape.product(), -1.0f);
    TensorView view = TensorView::contiguous(memory.back().data(), DType::kFloat32, shape);
    if (shape.product() == 0) view.strides = Dims(std::vector<std::int64_t>(axes.rank, 0));
    row.set_view(args.get(), view);
  }

  static constexpr std::int64_t kWidth = 16;
  std::shared_ptr<void> args;
  std::map<std::string, std::int64_t> extents;
  std::vector<std::vector<float>> memory;
};

TEST(EmptyTensors, MayHaveAnyStrides) {
  for (const Signature* signature : signatures()) {
    for (const auto& [B, T] : {std::pair{0, 3}, std::pair{2, 0}, std::pair{0, 0}}) {
      SCOPED_TRACE(std::string(signature->name()) + " B = " + std::to_string(B) +
                   " T = " + std::to_string(T));
      const EmptyCall call(*signature, B, T);
      EXPECT_NO_THROW(signature->run(call.args.get(), {}, {}));
    }
  }
}

TEST(EmptyTensors, AreStillOfTheShapeAndDtypeThatTheTableSays) {
  for (const Signature* signature : signatures()) {
    const Parameter& row = signature->parameters().front();
    EmptyCall call(*signature, 0, 3);
    TensorView view = *row.view(call.args.get());
    view.shape[view.shape.rank() - 1] += 1;
    row.set_view(call.args.get(), view);
    EXPECT_THROW(signature->check(call.args.get()), InvalidArgument) << signature->name();
  }
}

}  // namespace
}  // namespace tandem

#include "cli/ops/product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/real.h"
#include "reference/element.h"
#include "reference/rms_norm.h"

namespace tandem::tools {

void ProductMaker::add_matrix(const std::string& name, DType dtype, std::int64_t rows,
                              std::int64_t columns, bool output) {
  std::int64_t stride = columns;
  const bool is_token = name == "x" || name == "o" || name.starts_with("d_out");
  if (one_.strides == Strides::kPadded) stride = padded_stride(columns, 32);
  if (one_.strides == Strides::kOdd) stride = columns + 5;
  if (one_.strides == Strides::kBroadcast && is_token) stride = 0;
  add_tensor(set_, name, dtype, {rows, columns}, {stride, 1}, output, shift());
}

void ProductMaker::add_vector(const std::string& name, DType dtype, std::int64_t count,
                              bool output) {
  add_tensor(set_, name, dtype, {count}, {1}, output, shift());
}

float ProductMaker::row_value(float normal, std::int64_t i) const {
  constexpr std::array kSizes = {1e4f, 1e-6f, 1.0f, 0.0f};
  switch (one_.rows) {
    case RowValues::kExtreme: return kSizes[i / d_ % std::ssize(kSizes)] * normal;
    case RowValues::kLarge: return kSizes[0] * normal;
    case RowValues::kSmall: return kSizes[1] * normal;
    default: return normal;
  }
}

void ProductMaker::add_norm_weight() {
  add_vector("norm_weight", one_.norm == Norm::kSame ? dtype_ : real_dtype(dtype_), d_, false);
  fill_norm_weight("norm_weight");
}

void ProductMaker::fill_norm_weight(const std::string& name) {
  const bool wide = one_.rows != RowValues::kNormal;
  const RandomStream uniform = random(name);
  fill(name, [=](float normal, std::int64_t i) {
    // From 0.1 to 10.
    return wide ? std::pow(10.0f, 2 * uniform.uniform(i) - 1) : 1 + 0.25f * normal;
  });
}

void ProductMaker::add_rstd(double eps) {
  add_vector("rstd", real_dtype(dtype_), M_, false);
  const NamedTensor& x = set_.get("x");
  const TensorView rows = view(x, set_.buffers[x.buffer].data(), Device::cpu());
  fill("rstd", [&](float, std::int64_t row) {
    return reference::rms_norm_rstd(reference::read_row(rows, row, 0, d_), eps);
  });
}

void ProductMaker::add_stacked(const Stack& stack, DType dtype, bool output) {
  std::int64_t all_rows = 0;
  for (const auto& [name, rows] : stack) all_rows += rows;
  const NamedTensor all{"", dtype, {all_rows, d_}, {d_, 1}, set_.buffers.size(), 0, output};
  std::int64_t offset = kGuardBytes;
  const bool packed = one_.strides == Strides::kPacked;
  if (packed) set_.buffers.emplace_back(2 * kGuardBytes + span_bytes(all));
  for (const auto& [name, rows] : stack) {
    if (!packed) {
      add_matrix(name, dtype, rows, d_, output);
      continue;
    }
    set_.tensors.push_back({name, dtype, {rows, d_}, {d_, 1}, all.buffer, offset, output});
    offset += rows * d_ * size_of(dtype);
  }
}

std::vector<std::int64_t> some_of(std::int64_t count, std::int64_t most) {
  const std::int64_t wanted = std::min(count, most);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < wanted; ++i) {
    all.push_back(wanted == 1 ? 0 : i * (count - 1) / (wanted - 1));
  }
  return all;
}

void RowComparison::row(std::int64_t index, const std::vector<double>& expected,
                        std::int64_t first) {
  const std::int64_t stride = tensor_.shape.rank() == 2 ? tensor_.strides[0] : 0;
  std::vector<std::int64_t> places(expected.size());
  std::iota(places.begin(), places.end(), index * stride + first);
  elements(places, expected);
}

void RowComparison::elements(const std::vector<std::int64_t>& places,
                             const std::vector<double>& expected) {
  Squares& squares = rows_.emplace_back();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares.add(load(tensor_.dtype, data_, places[i]), expected[i]);
  }
  // What lies below a dtype's normal numbers is measured by these.
  const double smallest = tensor_.dtype == DType::kFloat16 ? 0x1p-13 : 0x1p-100;
  squares.right += smallest * smallest * static_cast<double>(squares.count);
}

OutputError RowComparison::error(double limit) const {
  return judge(tensor_.name.c_str(), rows_, limit);
}

TensorView view_after(const TensorSet& set, const Buffers& after, const char* name) {
  const NamedTensor& tensor = set.get(name);
  const Buffers& buffers = tensor.output ? after : set.buffers;
  return view(tensor, const_cast<std::byte*>(buffers[tensor.buffer].data()), Device::cpu());
}

}  // namespace tandem::tools

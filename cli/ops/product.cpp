#include "cli/ops/product.h"

#include <algorithm>

namespace tandem::tools {

void ProductMaker::add_matrix(const std::string& name, DType dtype, std::int64_t rows,
                              std::int64_t columns, bool output) {
  std::int64_t stride = columns;
  const bool is_token = name == "x" || name.starts_with("d_out");
  if (one_.strides == Strides::kPadded) stride = padded_stride(columns, 32);
  if (one_.strides == Strides::kOdd) stride = columns + 5;
  if (one_.strides == Strides::kBroadcast && is_token) stride = 0;
  add_tensor(set_, name, dtype, {rows, columns}, {stride, 1}, output, shift());
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
  Squares& squares = rows_.emplace_back();
  const std::int64_t stride = tensor_.shape.rank() == 2 ? tensor_.strides[0] : 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto at = index * stride + first + static_cast<std::int64_t>(i);
    squares.add(load(tensor_.dtype, data_, at), expected[i]);
  }
  // What lies below a dtype's normal numbers is measured by these.
  const double smallest = tensor_.dtype == DType::kFloat16 ? 0x1p-13 : 0x1p-100;
  squares.right += smallest * smallest * static_cast<double>(squares.count);
}

OutputError RowComparison::error(double limit) const {
  return judge(tensor_.name.c_str(), rows_, limit);
}

}  // namespace tandem::tools

#include "cli/tensors/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <stdexcept>

#include "core/float16.h"

namespace tandem::tools {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
}

}  // namespace

HostBuffer::HostBuffer(std::size_t bytes, bool poisoned)
    : size_(round_up(bytes)),
      data_(
          static_cast<std::byte*>(std::aligned_alloc(kGuardBytes, std::max(size_, kGuardBytes)))) {
  if (!data_) throw std::bad_alloc();
  if (!poisoned) return;
  const auto count = static_cast<std::int64_t>(size_ / sizeof(kPoison));
  auto* values = reinterpret_cast<std::uint16_t*>(data_.get());
#pragma omp parallel for schedule(static) if (count > 100000)
  for (std::int64_t i = 0; i < count; ++i) values[i] = kPoison;
}

HostBuffer::HostBuffer(std::size_t bytes) : HostBuffer(bytes, true) {}

HostBuffer HostBuffer::clone() const {
  HostBuffer copy(size_, false);
  std::memcpy(copy.data(), data(), size_);
  return copy;
}

Buffers clone(const Buffers& buffers) {
  Buffers copies;
  for (const HostBuffer& buffer : buffers) copies.push_back(buffer.clone());
  return copies;
}

const NamedTensor* TensorSet::find(std::string_view name) const {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const NamedTensor& TensorSet::get(std::string_view name) const {
  const NamedTensor* tensor = find(name);
  if (tensor == nullptr) throw std::logic_error("no tensor " + std::string(name));
  return *tensor;
}

std::size_t TensorSet::bytes() const {
  std::size_t total = 0;
  for (const HostBuffer& buffer : buffers) total += buffer.size();
  return total;
}

TensorView view(const NamedTensor& tensor, void* base, Device device) {
  return {static_cast<std::byte*>(base) + tensor.offset, tensor.dtype, tensor.shape, tensor.strides,
          device};
}

Dims contiguous_strides(const Dims& shape) {
  return TensorView::contiguous(nullptr, DType::kFloat32, shape).strides;
}

std::int64_t span_bytes(const NamedTensor& tensor) {
  if (tensor.shape.product() == 0) return 0;
  std::int64_t elements = 1;
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    elements += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return elements * size_of(tensor.dtype);
}

std::size_t guarded_bytes(const NamedTensor& tensor) {
  return tensor.offset + span_bytes(tensor) + kGuardBytes;
}

std::vector<void*> host_bases(const TensorSet& set) {
  std::vector<void*> bases;
  for (const HostBuffer& buffer : set.buffers) {
    bases.push_back(const_cast<std::byte*>(buffer.data()));
  }
  return bases;
}

NamedTensor& add_tensor(TensorSet& set, const std::string& name, DType dtype, const Dims& shape,
                        const Dims& strides, bool output, std::int64_t offset_elements) {
  NamedTensor tensor{name, dtype, shape, strides, set.buffers.size(), 0, output};
  tensor.offset = static_cast<std::int64_t>(kGuardBytes) + offset_elements * size_of(dtype);
  set.buffers.emplace_back(guarded_bytes(tensor));
  return set.tensors.emplace_back(tensor);
}

double load(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kBFloat16: return to_float(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16: return to_float(static_cast<const Float16*>(data)[index]);
    case DType::kFloat32: return static_cast<const float*>(data)[index];
    case DType::kFloat64: return static_cast<const double*>(data)[index];
    case DType::kInt32: return static_cast<const std::int32_t*>(data)[index];
  }
  return 0;
}

void store(DType dtype, void* data, std::int64_t index, double value) {
  const auto rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[index] = from_float<BFloat16>(rounded);
      break;
    case DType::kFloat16: static_cast<Float16*>(data)[index] = from_float<Float16>(rounded); break;
    case DType::kFloat32: static_cast<float*>(data)[index] = rounded; break;
    case DType::kFloat64: static_cast<double*>(data)[index] = value; break;
    case DType::kInt32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
      break;
  }
}

void fill_normal(const NamedTensor& tensor, Buffers& buffers, const RandomStream& random) {
  std::byte* base = buffers[tensor.buffer].data() + tensor.offset;
  // why: both numbers of a Box-Muller pair are used while they are at hand, at half the cost.
  struct Pair {
    std::uint64_t key = 0;
    std::uint64_t index = ~std::uint64_t{0};
    float values[2];
  };
  static thread_local Pair cached;
  for_each_element(tensor, [&](std::int64_t offset, std::int64_t index) {
    Pair& pair = cached;
    const std::uint64_t wanted = static_cast<std::uint64_t>(index) / 2;
    if (pair.index != wanted || pair.key != random.key()) {
      random.normal_pair(wanted, pair.values);
      pair.index = wanted;
      pair.key = random.key();
    }
    store(tensor.dtype, base, offset, pair.values[index % 2]);
  });
}

void erase_outputs(const TensorSet& set, Buffers& buffers) {
  for (const NamedTensor& tensor : set.tensors) {
    if (!tensor.output) continue;
    std::byte* base = buffers[tensor.buffer].data() + tensor.offset;
    const std::int64_t size = size_of(tensor.dtype);
    for_each_element(tensor, [&](std::int64_t offset, std::int64_t) {
      for (std::int64_t i = 0; i < size; i += 2) {
        std::memcpy(base + offset * size + i, &kPoison, sizeof(kPoison));
      }
    });
  }
}

std::string find_stray_write(const TensorSet& set, const Buffers& before, const Buffers& after) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::byte *begin = before[i].data(), *end = begin + before[i].size();
    if (std::memcmp(begin, after[i].data(), before[i].size()) == 0) continue;
    const auto at = std::mismatch(begin, end, after[i].data()).first - begin;
    for (const NamedTensor& tensor : set.tensors) {
      if (tensor.buffer != i) continue;
      return fmt::format("{} changed outside the outputs: byte {} from its first element",
                         tensor.name, at - tensor.offset);
    }
  }
  return "";
}

std::string find_difference(const TensorSet& set, const Buffers& first, const Buffers& second) {
  for (const NamedTensor& tensor : set.tensors) {
    if (!tensor.output) continue;
    const auto size = first[tensor.buffer].size();
    const std::byte* a = first[tensor.buffer].data();
    const std::byte* b = second[tensor.buffer].data();
    if (std::memcmp(a, b, size) == 0) continue;
    const auto first_at = std::mismatch(a, a + size, b).first - a;
    const auto equal =
        std::inner_product(a, a + size, b, std::size_t{0}, std::plus<>(), std::equal_to<>());
    return fmt::format(
        "two runs differ in {}: byte {} from its first element ({:02x}, {:02x}), and {} more",
        tensor.name, first_at - tensor.offset, std::to_integer<int>(a[first_at]),
        std::to_integer<int>(b[first_at]), size - equal - 1);
  }
  return "";
}

}  // namespace tandem::tools

// The tensors of one call, by the names of the C++ arguments: their layout in a few host buffers,
// and what checking needs (guards, poison, comparison). Buffers go to a device and come back whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cases/random.h"
#include "tandem/tensor.h"

namespace tandem::tools {

/// Bytes of guard on both sides of every buffer; also the alignment of what lies between.
constexpr std::size_t kGuardBytes = 256;

/// Byte that fills guards, gaps and outputs before a call: a NaN in every dtype, and not one that
/// any processor produces itself.
constexpr std::uint16_t kPoison = 0xffa5;

/// Host memory aligned to kGuardBytes, its size rounded up to a multiple of that, filled with
/// poison.
class HostBuffer {
 public:
  explicit HostBuffer(std::size_t bytes);
  /// Makes memory without poison, for what is overwritten at once.
  static HostBuffer uninitialized(std::size_t bytes) { return HostBuffer(bytes, false); }
  HostBuffer clone() const;

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  HostBuffer(std::size_t bytes, bool poisoned);

  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

using Buffers = std::vector<HostBuffer>;

Buffers clone(const Buffers& buffers);

struct NamedTensor {
  std::string name;
  DType dtype;
  Dims shape;
  Dims strides;             // in elements
  std::size_t buffer = 0;   // index into TensorSet::buffers
  std::int64_t offset = 0;  // bytes from the buffer's start to the first element
  bool output = false;
};

struct TensorSet {
  std::vector<NamedTensor> tensors;
  Buffers buffers;                        // inputs filled, all else poison
  std::map<std::string, double> scalars;  // arguments that are numbers

  /// Finds a tensor by name; null when the call has none.
  const NamedTensor* find(std::string_view name) const;
  const NamedTensor& get(std::string_view name) const;
  std::size_t bytes() const;
};

/// Returns the tensor inside a copy of its buffer at `base`.
TensorView view(const NamedTensor& tensor, void* base, Device device);

/// The set's own buffers as bases, to be read only.
std::vector<void*> host_bases(const TensorSet& set);

/// Adds a tensor in a buffer of its own, guarded; `offset_elements` moves it off its alignment.
NamedTensor& add_tensor(TensorSet& set, const std::string& name, DType dtype, const Dims& shape,
                        const Dims& strides, bool output, std::int64_t offset_elements = 0);

/// Returns row-major strides.
Dims contiguous_strides(const Dims& shape);

/// Returns the bytes of a buffer that holds the tensor alone, guarded.
std::size_t guarded_bytes(const NamedTensor& tensor);

/// Returns the bytes from the first element to the end of the last; 0 without elements.
std::int64_t span_bytes(const NamedTensor& tensor);

double load(DType dtype, const void* data, std::int64_t index);
void store(DType dtype, void* data, std::int64_t index, double value);

/// Fills an fp tensor with N(0,1).
void fill_normal(const NamedTensor& tensor, Buffers& buffers, const RandomStream& random);

/// Calls body(element offset, linear index) for each element, in parallel over rows. An axis of
/// stride 0 is walked once: its elements are one.
template <class Body>
void for_each_element(const NamedTensor& tensor, const Body& body) {
  Dims shape = tensor.shape;
  for (int i = 0; i < shape.rank(); ++i) {
    if (tensor.strides[i] == 0 && shape[i] > 1) shape[i] = 1;
  }
  if (shape.product() == 0) return;
  const int last = shape.rank() - 1;
  const std::int64_t row = last < 0 ? 1 : shape[last];
  const std::int64_t rows = shape.product() / row;
#pragma omp parallel for schedule(static) if (rows * row > 10000)
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t offset = 0;
    std::int64_t rest = r;
    for (int i = last - 1; i >= 0; --i) {
      offset += rest % shape[i] * tensor.strides[i];
      rest /= shape[i];
    }
    const std::int64_t stride = last < 0 ? 0 : tensor.strides[last];
    for (std::int64_t i = 0; i < row; ++i) body(offset + i * stride, r * row + i);
  }
}

/// Overwrites every element of the outputs with poison.
void erase_outputs(const TensorSet& set, Buffers& buffers);

/// Finds stray writes: "" when the buffers before and after a call, the outputs erased in both, are
/// the same; otherwise the first byte that is not, and near which tensor.
std::string find_stray_write(const TensorSet& set, const Buffers& before, const Buffers& after);

/// Compares outputs: "" when all are bitwise equal; otherwise the tensor and where it differs.
std::string find_difference(const TensorSet& set, const Buffers& first, const Buffers& second);

}  // namespace tandem::tools

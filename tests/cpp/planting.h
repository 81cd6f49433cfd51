// For the tests of how far NaN and inf reach: an op runs with a value planted in one element of an
// input, and what may not see it must keep its bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "cli/calls/backend.h"
#include "tandem/error.h"

namespace tandem::tools {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Layout {
  const char* json;                   // a case of the planting's heads
  std::vector<std::int64_t> offsets;  // of the sequences in the token axis (of batch b: b * T)
};

struct Planting {
  const Operation& operation;
  std::vector<const char*> by_token;  // inputs [B,T,H] or [B,T,H,D]; a scan's channels are heads
  std::vector<const char*> states;    // inputs [N,H], [N,H,tokens] or [N,H,K,V]
  bool forwards_only;                 // chunks before the token's do not see it
  std::vector<Layout> layouts;
  std::int64_t heads = 3;
  const char* switched_on = nullptr;  // environment variable, 1 where something is planted
  // One of these is cut off a variant's name for that whose bits are kept.
  std::vector<std::string_view> clean_without = {};
};

/// Sets an environment variable to 1 as long as it lives; null: none.
class SwitchedOn {
 public:
  explicit SwitchedOn(const char* variable) : variable_(variable) {
    if (variable_ != nullptr) setenv(variable_, "1", 1);
  }
  ~SwitchedOn() {
    if (variable_ != nullptr) unsetenv(variable_);
  }
  SwitchedOn(const SwitchedOn&) = delete;
  SwitchedOn& operator=(const SwitchedOn&) = delete;

 private:
  const char* variable_;
};

/// `operation` once on the device with these buffers.
inline Buffers run(const Operation& operation, const TensorSet& set, const Buffers& buffers,
                   Device device) {
  Placement placement(set, device);
  placement.upload(buffers);
  operation.call(set, placement.bases(), device, {});
  return placement.download();
}

/// Returns the index of an element of a tensor by tokens; i is of the innermost axis of those that
/// have it.
inline std::int64_t element(const NamedTensor& x, std::int64_t token, std::int64_t h,
                            std::int64_t i = 0) {
  const std::int64_t T = x.shape[1];
  return token / T * x.strides[0] + token % T * x.strides[1] + h * x.strides[2] +
         (x.shape.rank() == 4 ? i * x.strides[3] : 0);
}

/// Whether the `count` elements from `index` on differ in any bit.
inline bool differs(const NamedTensor& x, std::int64_t index, std::int64_t count, const Buffers& a,
                    const Buffers& b) {
  const std::int64_t at = x.offset + index * size_of(x.dtype);
  return std::memcmp(a[x.buffer].data() + at, b[x.buffer].data() + at, count * size_of(x.dtype)) !=
         0;
}

class Planter {
 public:
  Planter(const Planting& planting, const Layout& layout, DType dtype, Device device)
      : planting_(planting),
        operation_(planting.operation),
        offsets_(layout.offsets),
        device_(device),
        set_(planting.operation.make(parse_cases(planting.operation.name, layout.json, "test")[0],
                                     dtype, 5)) {}

  /// Runs every variant that accepts the tensors; returns how many did.
  int check() {
    int variants = 0;
    for (const std::string& variant : available_variants(planting_.operation, device_)) {
      operation_ = with_variant(planting_.operation, variant);
      SCOPED_TRACE(variant);
      try {
        clean_ = run(with_variant(planting_.operation, clean_variant(variant)), set_, set_.buffers,
                     device_);
        for (const float value : {kNaN, kInf}) plant_everywhere(value);
        ++variants;
      } catch (const Unsupported&) {
      }
    }
    return variants;
  }

 private:
  std::string clean_variant(const std::string& variant) const {
    for (const std::string_view cut : planting_.clean_without) {
      if (variant.ends_with(cut)) return variant.substr(0, variant.size() - cut.size());
    }
    return variant;
  }

  /// At both ends of every sequence, after the last one, and in the states.
  void plant_everywhere(float value) {
    for (std::int64_t n = 0; n < std::ssize(offsets_) - 1; ++n) {
      const std::int64_t begin = offsets_[n], end = offsets_[n + 1];
      for (const char* name : planting_.by_token) {
        if (begin == end) continue;
        for (const std::int64_t token : {begin, end - 1}) {
          const std::int64_t chunk = begin + (token - begin) / kChunk * kChunk;
          plant_token(name, token, value, n, planting_.forwards_only ? chunk : begin);
        }
      }
      for (const char* name : planting_.states) {
        const NamedTensor& x = set_.get(name);
        const std::int64_t size = state_size(x);
        plant(x, (n * planting_.heads + kHead) * size + std::min<std::int64_t>(3, size - 1), value,
              n, begin);
      }
    }
    for (const char* name : planting_.by_token) {
      const NamedTensor& x = set_.get(name);
      if (offsets_.back() == x.shape[0] * x.shape[1]) continue;
      plant_token(name, offsets_.back(), value, kNoSequence, 0);
    }
  }

  void plant_token(const char* name, std::int64_t token, float value, std::int64_t n,
                   std::int64_t first) {
    SCOPED_TRACE(testing::Message() << "token " << token);
    const NamedTensor& x = set_.get(name);
    plant(x, element(x, token, kHead, 2), value, n, first);
  }

  /// Checks that no output changed but those of sequence n and kHead, from token `first` on.
  void plant(const NamedTensor& input, std::int64_t index, float value, std::int64_t n,
             std::int64_t first) {
    SCOPED_TRACE(testing::Message() << value << " in " << input.name << ", sequence " << n);
    Buffers inputs = clone(set_.buffers);
    store(input.dtype, inputs[input.buffer].data() + input.offset, index, value);
    const SwitchedOn switched(planting_.switched_on);
    const Buffers dirty = run(operation_, set_, inputs, device_);
    for (const NamedTensor& x : set_.tensors) {
      if (!x.output) continue;
      if (x.name.ends_with("_state")) {
        compare_states(x, dirty, n);
      } else if (x.shape.rank() < 3) {
        compare_sums(x, dirty, n);
      } else {
        compare_tokens(x, dirty, n, first);
      }
    }
  }

  /// Returns how many elements one head of a state [N,H,...] has.
  static std::int64_t state_size(const NamedTensor& x) {
    std::int64_t size = 1;
    for (int axis = 2; axis < x.shape.rank(); ++axis) size *= x.shape[axis];
    return size;
  }

  /// Sums over all tokens, [H] or [H,...].
  void compare_sums(const NamedTensor& x, const Buffers& dirty, std::int64_t n) {
    const std::int64_t size = x.shape.rank() == 2 ? x.shape[1] : 1;
    for (std::int64_t h = 0; h < planting_.heads; ++h) {
      if (n != kNoSequence && h == kHead) continue;
      ASSERT_FALSE(differs(x, h * x.strides[0], size, clean_, dirty)) << x.name << ' ' << h;
    }
  }

  void compare_states(const NamedTensor& x, const Buffers& dirty, std::int64_t n) {
    const std::int64_t size = state_size(x);
    for (std::int64_t i = 0; i < x.shape[0] * planting_.heads; ++i) {
      if (n != kNoSequence && i == n * planting_.heads + kHead) continue;
      ASSERT_FALSE(differs(x, i * size, size, clean_, dirty)) << x.name << ' ' << i;
    }
  }

  void compare_tokens(const NamedTensor& x, const Buffers& dirty, std::int64_t n,
                      std::int64_t first) {
    const std::int64_t size = x.shape.rank() == 4 ? x.shape[3] : 1;
    for (std::int64_t t = 0; t < x.shape[0] * x.shape[1]; ++t) {
      for (std::int64_t h = 0; h < planting_.heads; ++h) {
        if (n != kNoSequence && h == kHead && t >= first && t < offsets_[n + 1]) continue;
        ASSERT_FALSE(differs(x, element(x, t, h), size, clean_, dirty))
            << x.name << ' ' << t << ' ' << h;
      }
    }
  }

  static constexpr std::int64_t kHead = 1;  // that is spoilt
  static constexpr std::int64_t kNoSequence = -1;
  static constexpr std::int64_t kChunk = 64;

  const Planting& planting_;
  Operation operation_;  // of the variant that is checked
  std::vector<std::int64_t> offsets_;
  Device device_;
  TensorSet set_;
  Buffers clean_;
};

inline void expect_contained(const Planting& planting, std::initializer_list<DType> dtypes,
                             Device device) {
  for (const Layout& layout : planting.layouts) {
    for (const DType dtype : dtypes) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_GE(Planter(planting, layout, dtype, device).check(), 1);
    }
  }
}

}  // namespace tandem::tools

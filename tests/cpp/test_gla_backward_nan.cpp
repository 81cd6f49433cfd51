// NaN and inf in one sequence or head never reach the gradients of another: planted in every input
// of gla_backward, on both sides of boundaries that lie in partial chunks; everything outside the
// sequence and head must keep its bits.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "backend.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kHead = 1;  // that is spoilt, of 3

struct Layout {
  const char* json;
  std::vector<std::int64_t> offsets;  // of the sequences in the token axis (of batch b: b * T)
};

const Layout kLayouts[] = {
    {R"([{"name": "varlen", "directions": ["backward"], "axes": {"B": 1, "T": 170, "H": 3, "K": 40, "V": 96},
          "dtype": ["bf16"], "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "strides": "odd", "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 165}},
    {R"([{"name": "batch", "directions": ["backward"], "axes": {"B": 3, "T": 70, "H": 3, "K": 64},
          "dtype": ["bf16"], "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "tags": ["check"]}])",
     {0, 70, 140, 210}},
};

/// Of a tensor by tokens, [B,T,H] or [B,T,H,D], in elements.
std::int64_t row_of(const NamedTensor& x, std::int64_t token, std::int64_t h) {
  const std::int64_t T = x.shape[1];
  return token / T * x.strides[0] + token % T * x.strides[1] + h * x.strides[2];
}

class Planter {
 public:
  Planter(const Layout& layout, DType dtype, Device device)
      : offsets_(layout.offsets),
        device_(device),
        set_(kGlaBackward.make(parse_cases("gla", layout.json, "test")[0], dtype, 5)) {}

  /// Runs every variant that accepts the tensors; returns how many did.
  int check() {
    int variants = 0;
    for (const std::string& variant : available_variants(kGlaBackward, device_)) {
      const ForcedVariant forced(device_, variant);
      SCOPED_TRACE(variant);
      try {
        check_variant();
        ++variants;
      } catch (const Unsupported&) {
      }
    }
    return variants;
  }

 private:
  Buffers run(const Buffers& inputs) {
    Placement placement(set_, device_);
    placement.upload(inputs);
    kGlaBackward.call(set_, placement.bases(), device_, {});
    return placement.download();
  }

  void check_variant() {
    const Buffers clean = run(set_.buffers);
    const std::int64_t sequences = std::ssize(offsets_) - 1;
    for (const float value : {kNaN, kInf}) {
      for (std::int64_t n = 0; n < sequences; ++n) {
        for (const char* name : {"q", "k", "v", "d_o", "log_decay"}) {
          if (offsets_[n] == offsets_[n + 1]) continue;
          for (const std::int64_t token : {offsets_[n], offsets_[n + 1] - 1}) {
            const NamedTensor& x = set_.get(name);
            plant(clean, x, row_of(x, token, kHead) + (x.shape.rank() == 4 ? 2 : 0), value, n);
          }
        }
        for (const char* name : {"initial_state", "d_final_state"}) {
          const NamedTensor& x = set_.get(name);
          plant(clean, x, (n * 3 + kHead) * x.shape[2] * x.shape[3] + 3, value, n);
        }
      }
      for (const char* name : {"q", "k", "v", "d_o", "log_decay"}) {  // tokens of no sequence
        const NamedTensor& x = set_.get(name);
        if (offsets_.back() == x.shape[0] * x.shape[1]) continue;
        plant(clean, x, row_of(x, offsets_.back(), kHead), value, -1);
      }
    }
  }

  /// Only sequence n of the head may change, and with n = -1 nothing.
  void plant(const Buffers& clean, const NamedTensor& input, std::int64_t index, float value,
             std::int64_t n) {
    SCOPED_TRACE(testing::Message() << value << " in " << input.name << ", sequence " << n);
    Buffers inputs = clone(set_.buffers);
    store(input.dtype, inputs[input.buffer].data() + input.offset, index, value);
    const Buffers dirty = run(inputs);
    for (const NamedTensor& x : set_.tensors) {
      if (!x.output) continue;
      const auto differs = [&](std::int64_t first, std::int64_t count) {
        const std::int64_t at = x.offset + first * size_of(x.dtype);
        return std::memcmp(clean[x.buffer].data() + at, dirty[x.buffer].data() + at,
                           count * size_of(x.dtype)) != 0;
      };
      if (x.name == "d_initial_state") {
        const std::int64_t size = x.shape[2] * x.shape[3];
        for (std::int64_t i = 0; i < x.shape[0] * 3; ++i) {
          if (n >= 0 && i == n * 3 + kHead) continue;
          ASSERT_FALSE(differs(i * size, size)) << x.name << " " << i;
        }
        continue;
      }
      for (std::int64_t t = 0; t < x.shape[0] * x.shape[1]; ++t) {
        for (std::int64_t h = 0; h < 3; ++h) {
          if (n >= 0 && h == kHead && t >= offsets_[n] && t < offsets_[n + 1]) continue;
          ASSERT_FALSE(differs(row_of(x, t, h), x.shape.rank() == 4 ? x.shape[3] : 1))
              << x.name << " " << t << " " << h;
        }
      }
    }
  }

  std::vector<std::int64_t> offsets_;
  Device device_;
  TensorSet set_;
};

TEST(GlaBackwardNan, StaysInItsSequenceAndHead) {
  for (const Layout& layout : kLayouts) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_GE(Planter(layout, dtype, Device::cpu()).check(), 1);
    }
  }
}

TEST(GpuGlaBackwardNan, StaysInItsSequenceAndHead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  if (available_variants(kGlaBackward, Device::cuda()).empty()) GTEST_SKIP() << "no variant yet";
  for (const Layout& layout : kLayouts) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_GE(Planter(layout, dtype, Device::cuda()).check(), 1);
    }
  }
}

}  // namespace
}  // namespace tandem::tools

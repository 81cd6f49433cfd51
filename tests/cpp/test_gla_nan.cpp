// NaN and inf in one sequence or head never reach another: planted on both sides of a boundary that
// lies in a partial chunk, in every input; everything outside the sequence and head must keep its
// bits.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "backend.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Layout {
  const char* json;
  std::vector<std::int64_t> offsets;  // of the sequences in the token axis (of batch b: b * T)
};

/// Sequences of 70, 30, 0 and 65 tokens and 5 tokens after them; or three batches of 70.
const Layout kLayouts[] = {
    {R"([{"name": "varlen", "axes": {"B": 1, "T": 170, "H": 3, "K": 64}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 165}},
    {R"([{"name": "varlen_odd", "axes": {"B": 1, "T": 170, "H": 3, "K": 40, "V": 96}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both", "strides": "odd",
          "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 165}},
    {R"([{"name": "batch", "axes": {"B": 3, "T": 70, "H": 3, "K": 96}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both", "tags": ["check"]}])",
     {0, 70, 140, 210}},
};

std::int64_t element(const NamedTensor& x, std::int64_t token, std::int64_t h, std::int64_t i) {
  const std::int64_t T = x.shape[1];
  return token / T * x.strides[0] + token % T * x.strides[1] + h * x.strides[2] +
         (x.shape.rank() == 4 ? i * x.strides[3] : 0);
}

class Planter {
 public:
  Planter(const Layout& layout, DType dtype, Device device)
      : offsets_(layout.offsets),
        device_(device),
        set_(kGlaForward.make(parse_cases("gla", layout.json, "test")[0], dtype, 5)) {}

  /// Runs every variant that accepts the tensors; returns how many did.
  int check() {
    int variants = 0;
    for (const std::string& variant : available_variants(kGlaForward, device_)) {
      const ForcedVariant forced(device_, variant);
      try {
        check_variant(variant);
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
    kGlaForward.call(set_, placement.bases(), device_, {});
    return placement.download();
  }

  void check_variant(const std::string& variant) {
    const Buffers clean = run(set_.buffers);
    const std::int64_t last = static_cast<std::int64_t>(offsets_.size()) - 1;
    for (const char* name : {"q", "k", "v", "log_decay"}) {
      for (const float value : {kNaN, kInf}) {
        for (std::int64_t n = 0; n < last; ++n) {
          if (offsets_[n] == offsets_[n + 1]) continue;
          for (const std::int64_t token : {offsets_[n], offsets_[n + 1] - 1}) {
            SCOPED_TRACE(testing::Message() << variant << ": " << value << " in " << name
                                            << " at token " << token << " of sequence " << n);
            plant_and_compare(clean, name, value, n, token);
          }
        }
        // Tokens after the last sequence belong to none.
        const NamedTensor& tensor = set_.get(name);
        if (offsets_[last] < tensor.shape[0] * tensor.shape[1]) {
          SCOPED_TRACE(testing::Message() << variant << ": outside, " << name);
          plant_and_compare(clean, name, value, -1, offsets_[last]);
        }
      }
    }
    SCOPED_TRACE(variant + ": initial_state");
    Buffers inputs = clone(set_.buffers);
    const NamedTensor& state = set_.get("initial_state");
    const std::int64_t head = state.shape[2] * state.shape[3];
    store(DType::kFloat32, inputs[state.buffer].data() + state.offset, head + 3, kNaN);
    compare(clean, run(inputs), 0, 1, 0);
  }

  /// In head 1 only.
  void plant_and_compare(const Buffers& clean, const char* name, float value, std::int64_t n,
                         std::int64_t token) {
    Buffers inputs = clone(set_.buffers);
    const NamedTensor& tensor = set_.get(name);
    store(tensor.dtype, inputs[tensor.buffer].data() + tensor.offset, element(tensor, token, 1, 2),
          value);
    compare(clean, run(inputs), n, 1, token);
  }

  /// All but sequence n of head h must be equal; of that, the chunks before the token's.
  void compare(const Buffers& clean, const Buffers& dirty, std::int64_t n, std::int64_t h,
               std::int64_t token) {
    const NamedTensor& o = set_.get("o");
    const auto differs = [&](const NamedTensor& x, std::int64_t index, std::int64_t count) {
      const std::int64_t at = x.offset + index * size_of(x.dtype);
      return std::memcmp(clean[x.buffer].data() + at, dirty[x.buffer].data() + at,
                         count * size_of(x.dtype)) != 0;
    };
    const std::int64_t reached = n < 0 ? 0 : offsets_[n] + (token - offsets_[n]) / 64 * 64;
    for (std::int64_t t = 0; t < o.shape[0] * o.shape[1]; ++t) {
      for (std::int64_t head = 0; head < o.shape[2]; ++head) {
        const bool same = n >= 0 && head == h && t >= reached && t < offsets_[n + 1];
        if (same) continue;
        ASSERT_FALSE(differs(o, element(o, t, head, 0), o.shape[3])) << t << ' ' << head;
      }
    }
    const NamedTensor& state = set_.get("final_state");
    const std::int64_t size = state.shape[2] * state.shape[3];
    for (std::int64_t i = 0; i < state.shape[0] * state.shape[1]; ++i) {
      if (n >= 0 && i == n * state.shape[1] + h) continue;
      ASSERT_FALSE(differs(state, i * size, size)) << "final_state " << i;
    }
  }

  std::vector<std::int64_t> offsets_;
  Device device_;
  TensorSet set_;
};

TEST(GlaNan, StaysInItsSequenceAndHead) {
  for (const Layout& layout : kLayouts) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_GE(Planter(layout, dtype, Device::cpu()).check(), 1);
    }
  }
}

TEST(GpuGlaNan, StaysInItsSequenceAndHead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  for (const Layout& layout : kLayouts) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_GE(Planter(layout, dtype, Device::cuda()).check(), 1);
    }
  }
}

/// -inf forgets exactly, however large the state was.
TEST(GlaNan, ResetForgetsAHugeState) {
  const Layout& layout = kLayouts[0];
  TensorSet set = kGlaForward.make(parse_cases("gla", layout.json, "test")[0], DType::kFloat32, 5);
  const NamedTensor& decay = set.get("log_decay");
  const NamedTensor& state = set.get("initial_state");
  for (std::int64_t h = 0; h < 3; ++h) {
    store(DType::kFloat32, set.buffers[decay.buffer].data() + decay.offset, element(decay, 0, h, 0),
          -kInf);
    store(DType::kFloat32, set.buffers[state.buffer].data() + state.offset, h * 64 * 64 + 7, 1e30f);
  }
  for (const std::string& variant : available_variants(kGlaForward, Device::cpu())) {
    const ForcedVariant forced(Device::cpu(), variant);
    Placement placement(set, Device::cpu());
    kGlaForward.call(set, placement.bases(), Device::cpu(), {});
    for (const OutputError& error :
         kGlaForward.expect(set, false)->compare(set, placement.download())) {
      EXPECT_TRUE(error.passed) << variant << " " << error.output << " " << error.value;
    }
  }
}

}  // namespace
}  // namespace tandem::tools

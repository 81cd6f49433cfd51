// attention_weights, what its cases do not reach: refusals beyond its tables, the sum of a row and
// what other rows do to it, also on a GPU; what is not read, bits for any number of threads.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>

#include "cli/cases/cases.h"
#include "ops/attention_weights.h"
#include "planting.h"
#include "refusals.h"

namespace tandem::tools {
namespace {

TEST(AttentionWeightsRefusals, HeadsThatDoNotDivide) {
  for (const Signature* signature :
       {&attention_weights_forward_signature(), &attention_weights_backward_signature()}) {
    const tandem::Call call(*signature, false);
    spoil(call, *signature->find("k"), [](TensorView& view) {
      view = shaped(view, {view.shape[0], view.shape[1], 3, view.shape[3]});
    });
    call.expect_refused("k must have a number of heads HKV that divides H = 4, got HKV = 3");
  }
}

Case parse(const std::string& fields) {
  return parse_cases("attention_weights",
                     R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], "directions":
                         ["forward", "backward"], )" +
                         fields + "}]",
                     "test")[0];
}

/// Half the distance to the next number that a dtype has, at most.
double half_unit(DType dtype, double value) {
  const int digits = dtype == DType::kBFloat16 ? 8 : 11;
  const int smallest = dtype == DType::kBFloat16 ? -133 : -24;
  const int exponent = std::max(std::ilogb(value) - digits + 1, smallest);
  return std::ldexp(0.5, exponent);
}

/// Each weight is rounded once, so that what is missing of 1 is the roundings.
void expect_rows_that_add_up(Device device) {
  const Operation& operation = find_operation("attention_weights");
  for (const char* values : {"normal", "large"}) {
    for (const std::int64_t T : {1, 63, 300, 600, 1000, 2000}) {
      const Case one = parse(R"("axes": {"B": 1, "T": )" + std::to_string(T) +
                             R"(, "H": 2, "K": 64}, "causal": "yes", "values": ")" + values + "\"");
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        const TensorSet set = operation.make(one, dtype, 1);
        const Buffers after = run(operation, set, set.buffers, device);
        const NamedTensor& w = set.get("w");
        for (std::int64_t row = 0; row < 2 * T; ++row) {
          double sum = 0, units = 0;
          for (std::int64_t j = 0; j < T; ++j) {
            const double weight = load(dtype, after[w.buffer].data() + w.offset, row * T + j);
            sum += weight;
            units += half_unit(dtype, weight == 0 ? 1e-30 : weight);
          }
          // 1e-6 is what fp32's own sums may be off.
          ASSERT_LE(std::abs(sum - 1), units + 1e-6) << T << ' ' << row;
        }
      }
    }
  }
}

TEST(AttentionWeights, RowsAddUpToOneButForRoundings) { expect_rows_that_add_up(Device::cpu()); }
TEST(GpuAttentionWeights, RowsAddUpToOneButForRoundings) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_rows_that_add_up(Device::cuda());
}

/// NaN, inf and values whose exponentials are 0 or inf in a query reach no other query's weights.
void expect_rows_by_themselves(Device device) {
  const Operation& operation = find_operation("attention_weights");
  constexpr std::int64_t kQueries = 70, kSpoilt = 37;
  for (const std::int64_t keys : {200, 264, 1000, 1032}) {
    const TensorSet set = operation.make(parse(R"("axes": {"B": 1, "T": 70, "TK": )" +
                                               std::to_string(keys) + R"(, "H": 1, "K": 64})"),
                                         DType::kBFloat16, 1);
    const NamedTensor &q = set.get("q"), &w = set.get("w");
    const Buffers clean = run(operation, set, set.buffers, device);
    for (const float value : {kNaN, kInf, 1e4f, -1e4f, 1e30f}) {
      Buffers spoilt = clone(set.buffers);
      for (std::int64_t i = 0; i < 64; ++i) {
        store(q.dtype, spoilt[q.buffer].data() + q.offset, kSpoilt * 64 + i, value);
      }
      const Buffers after = run(operation, set, spoilt, device);
      for (std::int64_t i = 0; i < kQueries * keys; ++i) {
        if (i / keys == kSpoilt) continue;
        ASSERT_EQ(load(w.dtype, after[w.buffer].data() + w.offset, i),
                  load(w.dtype, clean[w.buffer].data() + w.offset, i))
            << value << ", " << keys << " keys, query " << i / keys;
      }
    }
  }
}

TEST(AttentionWeights, ARowKeepsItsBitsWhateverOtherQueriesAre) {
  expect_rows_by_themselves(Device::cpu());
}
TEST(GpuAttentionWeights, ARowKeepsItsBitsWhateverOtherQueriesAre) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_rows_by_themselves(Device::cuda());
}

TEST(AttentionWeights, GradientsAtKeysThatAreNotSeenAreNotRead) {
  const Operation& operation = find_operation("attention_weights", "backward");
  const TensorSet set = operation.make(
      parse(R"("axes": {"B": 1, "T": 70, "H": 2, "K": 64}, "causal": "yes")"), DType::kFloat32, 1);
  Buffers spoilt = clone(set.buffers);
  for (const char* name : {"w", "d_w"}) {
    const NamedTensor& x = set.get(name);
    for (std::int64_t row = 0; row < 2 * 70; ++row) {
      for (std::int64_t j = row % 70 + 1; j < 70; ++j) {
        store(x.dtype, spoilt[x.buffer].data() + x.offset, row * 70 + j, kNaN);
      }
    }
  }
  EXPECT_EQ(find_difference(set, run(operation, set, set.buffers, Device::cpu()),
                            run(operation, set, spoilt, Device::cpu())),
            "");
}

TEST(AttentionWeights, TheNumberOfThreadsChangesNoBit) {
  const Case one =
      parse(R"("axes": {"B": 2, "T": 300, "TK": 600, "H": 4, "HKV": 2, "K": 40}, "causal": "yes")");
  const int threads = omp_get_max_threads();
  for (const char* direction : {"forward", "backward"}) {
    const Operation& operation = find_operation("attention_weights", direction);
    const TensorSet set = operation.make(one, DType::kFloat32, 1);
    omp_set_num_threads(1);
    const Buffers alone = run(operation, set, set.buffers, Device::cpu());
    omp_set_num_threads(5);
    const Buffers shared = run(operation, set, set.buffers, Device::cpu());
    EXPECT_EQ(find_difference(set, alone, shared), "") << direction;
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace tandem::tools

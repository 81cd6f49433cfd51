// attention on the CPU, what its cases do not reach: refusals beyond its tables, bits for any
// number of threads, how far NaN reaches, what lies behind lengths_k.
#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "planting.h"
#include "refusals.h"

namespace tandem::tools {
namespace {

const std::vector<const Signature*> kCalls = {&attention_forward_signature(),
                                              &attention_backward_signature()};

TEST(AttentionRefusals, HeadsThatDoNotDivide) {
  for (const Signature* signature : kCalls) {
    const Call call(*signature, false);
    for (const char* name : {"k", "v"}) {
      spoil(call, *signature->find(name), [](TensorView& view) {
        view = shaped(view, {view.shape[0], view.shape[1], 3, view.shape[3]});
      });
    }
    call.expect_refused("k must have a number of heads HKV that divides H = 4, got HKV = 3");
  }
}

TEST(AttentionRefusals, Windows) {
  for (const Signature* signature : kCalls) {
    const Call call(*signature, false);
    for (const std::string name : {"window_left", "window_right"}) {
      const Parameter& row = *signature->find(name);
      row.set_value(call.args(), -1);
      call.expect_refused(name + " must be a whole number in [0,2^31), got -1");
      row.set_value(call.args(), 7);
    }
    signature->find("causal")->set_value(call.args(), 1);
    call.expect_refused("window_right must be absent or 0 beside causal, got 7");
    signature->find("window_right")->set_value(call.args(), 0);
    EXPECT_NO_THROW(signature->run(call.args(), {}, {}));
  }
}

TEST(AttentionRefusals, ListsOfLengths) {
  for (const Signature* signature : kCalls) {
    const Parameter& offsets_q = *signature->find("cu_seqlens_q");
    const Parameter& offsets_k = *signature->find("cu_seqlens_k");
    const Parameter& lengths = *signature->find("lengths_k");
    std::vector<std::int32_t> values = {0, 2, 3, 5, 6};
    const auto list = [&](std::int64_t count) {
      return TensorView::contiguous(values.data(), DType::kInt32, {count});
    };
    const Call call(*signature, true);
    offsets_k.set_view(call.args(), list(5));
    call.expect_refused("cu_seqlens_k must have shape [N+1] = [4], got [5]");
    offsets_k.unset(call.args());
    call.expect_refused(
        "cu_seqlens_q and cu_seqlens_k must be given together, got only cu_seqlens_q");
    offsets_k.set_view(call.args(), list(4));
    lengths.set_view(call.args(), list(1));
    call.expect_refused("lengths_k must not be given beside cu_seqlens_k");
    offsets_q.unset(call.args());
    lengths.unset(call.args());
    call.expect_refused(
        "cu_seqlens_q and cu_seqlens_k must be given together, got only cu_seqlens_k");

    const Call batches(*signature, false);
    values = {6, 7};
    lengths.set_view(batches.args(), list(2));
    EXPECT_EQ(batches.refusal(),
              "[" + std::string(signature->name()) +
                  "] lengths_k must lie in [0,TK] = [0,6], got lengths_k[1] = 7");
    values = {-1, 6};
    EXPECT_EQ(batches.refusal(),
              "[" + std::string(signature->name()) +
                  "] lengths_k must lie in [0,TK] = [0,6], got lengths_k[0] = -1");
  }
}

Case parse(const char* fields) {
  return parse_cases("attention",
                     R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], "directions":
                         ["forward", "backward"], )" +
                         std::string(fields) + "}]",
                     "test")[0];
}

TEST(Attention, TheNumberOfThreadsChangesNoBit) {
  const Case one = parse(R"("axes": {"B": 2, "T": 300, "TK": 600, "H": 4, "HKV": 2, "K": 40},
                             "causal": "yes", "log_sum_exp": "yes")");
  const int threads = omp_get_max_threads();
  for (const char* direction : {"forward", "backward"}) {
    const Operation& operation = find_operation("attention", direction);
    for (const std::string& variant : available_variants(operation, Device::cpu())) {
      const TensorSet set = operation.make(one, DType::kFloat32, 1);
      omp_set_num_threads(1);
      const Buffers alone = run(with_variant(operation, variant), set, set.buffers, Device::cpu());
      omp_set_num_threads(5);
      const Buffers shared = run(with_variant(operation, variant), set, set.buffers, Device::cpu());
      EXPECT_EQ(find_difference(set, alone, shared), "") << variant;
    }
  }
  omp_set_num_threads(threads);
}

/// Sequences of 70, 30, 0 and 65 tokens and 5 tokens after them; or three batches of 70.
std::vector<Layout> layouts() {
  return {
      {R"([{"name": "varlen", "directions": ["forward", "backward"], "axes": {"B": 1, "T": 170, "H": 3,
          "K": 40, "V": 96}, "dtype": ["bf16"], "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
       {0, 70, 100, 100, 165}},
      {R"([{"name": "batch", "directions": ["forward", "backward"], "axes": {"B": 3, "T": 70, "H": 3,
          "K": 64}, "dtype": ["bf16"], "causal": "yes", "strides": "odd", "tags": ["check"]}])",
       {0, 70, 140, 210}}};
}

void expect_nan_contained(std::initializer_list<DType> dtypes, Device device) {
  for (const char* direction : {"forward", "backward"}) {
    std::vector<const char*> inputs = {"q", "k", "v"};
    if (direction == std::string("backward")) inputs.push_back("d_o");
    expect_contained({.operation = find_operation("attention", direction),
                      .by_token = inputs,
                      .states = {},
                      .forwards_only = false,
                      .layouts = layouts()},
                     dtypes, device);
  }
}

TEST(AttentionNan, StaysInItsSequenceAndHead) {
  expect_nan_contained({DType::kBFloat16, DType::kFloat32}, Device::cpu());
}

TEST(GpuAttentionNan, StaysInItsSequenceAndHead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_nan_contained({DType::kBFloat16, DType::kFloat16}, Device::cuda());
}

/// A cache is longer than what it holds, and the rest was never written.
void expect_nothing_behind_the_lengths(DType dtype, Device device) {
  const Case one = parse(R"("axes": {"B": 3, "T": 70, "TK": 300, "H": 4, "HKV": 2, "K": 64},
                             "causal": "yes", "log_sum_exp": "yes", "lengths_k": [0, 299, 65])");
  for (const char* direction : {"forward", "backward"}) {
    const Operation& operation = find_operation("attention", direction);
    for (const std::string& variant : available_variants(operation, device)) {
      SCOPED_TRACE(variant);
      const Operation alone = with_variant(operation, variant);
      const TensorSet set = operation.make(one, dtype, 1);
      Buffers spoilt = clone(set.buffers);
      for (const char* name : {"k", "v"}) {
        const NamedTensor& x = set.get(name);
        for (std::int64_t b = 0; b < 3; ++b) {
          for (std::int64_t t = (*one.lengths_k)[b]; t < 300; ++t) {
            for (std::int64_t c = 0; c < 2 * 64; ++c) {
              store(dtype, spoilt[x.buffer].data() + x.offset, (b * 300 + t) * 128 + c, kNaN);
            }
          }
        }
      }
      try {
        const Buffers clean = run(alone, set, set.buffers, device);
        EXPECT_EQ(find_difference(set, clean, run(alone, set, spoilt, device)), "");
      } catch (const Unsupported&) {
      }
    }
  }
}

TEST(AttentionNan, BehindTheLengthsIsNotRead) {
  expect_nothing_behind_the_lengths(DType::kBFloat16, Device::cpu());
}

TEST(GpuAttentionNan, BehindTheLengthsIsNotRead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_nothing_behind_the_lengths(DType::kBFloat16, Device::cuda());
}

}  // namespace
}  // namespace tandem::tools

// What gla_step refuses, and in which words: op, argument, expected, got; nothing is written
// before.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kH = 4, kHQ = 2, kK = 8, kV = 16;

using Args = GlaStepArgs;

/// Valid arguments over memory of their own, for a test to spoil.
struct Call {
  Call() {
    args.q = memory.tensor({kB, kHQ, kK});
    args.k = memory.tensor({kB, kHQ, kK});
    args.v = memory.tensor({kB, kH, kV});
    args.o = memory.tensor({kB, kH, kV});
    args.log_decay = memory.tensor({kB, kH});
    args.state = memory.tensor({kB, kH, kK, kV});
  }

  CallMemory memory;
  Args args;
};

const std::vector<Refusal<Args>>& refusals() {
  static const std::vector<Refusal<Args>> table = {
      {"q_rank",
       [](Args& a) {
         a.q = shaped(a.q, {2, 1, 2, 8});
       },
       "q must have shape [B,HQ,K], got [2,1,2,8]"},
      {"v_rank",
       [](Args& a) {
         a.v = shaped(a.v, {2, 64});
       },
       "v must have shape [B,H,V], got [2,64]"},
      {"q_without_width",
       [](Args& a) {
         a.q = shaped(a.q, {2, 2, 0});
       },
       "q must have HQ and K in [1,2^31), got shape [2,2,0]"},
      {"v_without_heads",
       [](Args& a) {
         a.v = shaped(a.v, {2, 0, 16});
       },
       "v must have H and V in [1,2^31), got shape [2,0,16]"},
      {"q_dtype", [](Args& a) { a.q.dtype = DType::kInt32; },
       "q must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"k_shape",
       [](Args& a) {
         a.k = shaped(a.k, {2, 4, 8});
       },
       "k must have shape [B,HQ,K] = [2,2,8], got [2,4,8]"},
      {"v_batch",
       [](Args& a) {
         a.v = shaped(a.v, {3, 4, 16});
       },
       "v must have shape [B,H,V] = [2,4,16], got [3,4,16]"},
      {"v_dtype", [](Args& a) { a.v.dtype = DType::kFloat16; }, "v must have dtype fp32, got fp16"},
      {"o_shape",
       [](Args& a) {
         a.o = shaped(a.o, {2, 4, 8});
       },
       "o must have shape [B,H,V] = [2,4,16], got [2,4,8]"},
      {"heads_do_not_divide",
       [](Args& a) {
         a.q = shaped(a.q, {2, 3, 4});
         a.k = shaped(a.k, {2, 3, 4});
       },
       "q must have a number of heads HQ that divides H = 4, got HQ = 3"},
      {"innermost_stride",
       [](Args& a) {
         a.k.strides = {32, 16, 2};
       },
       "k must have innermost stride 1, got strides [32,16,2]"},
      {"decay_rank",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {2, 1, 4, 1});
       },
       "log_decay must have shape [H] or [B,H], got [2,1,4,1]"},
      {"decay_heads", [](Args& a) { a.log_decay = shaped(*a.log_decay, {5}); },
       "log_decay must have shape [H] = [4], got [5]"},
      {"decay_shape",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {4, 2});
       },
       "log_decay must have shape [B,H] = [2,4], got [4,2]"},
      {"decay_dtype", [](Args& a) { a.log_decay->dtype = DType::kBFloat16; },
       "log_decay must have dtype fp32, got bf16"},
      {"scale", [](Args& a) { a.scale = std::numeric_limits<double>::infinity(); },
       "scale must be finite, got inf"},
      {"state_shape",
       [](Args& a) {
         a.state = shaped(a.state, {2, 4, 16, 8});
       },
       "state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"state_dtype", [](Args& a) { a.state.dtype = DType::kFloat16; },
       "state must have dtype fp32 or bf16, got fp16"},
      {"state_device", [](Args& a) { a.state.device = Device::cuda(); },
       "state must be on cpu, got cuda:0"},
      {"state_null", [](Args& a) { a.state.data = nullptr; },
       "state must point to [2,4,8,16] elements, got a null pointer"},
      {"state_innermost_stride",
       [](Args& a) {
         a.state.strides = {512, 128, 1, 8};
       },
       "state must have innermost stride 1, got strides [512,128,1,8]"},
      {"state_over_itself", [](Args& a) { a.state.strides[0] = 0; },
       "state must not overlap itself, got shape [2,4,8,16] with strides [0,128,16,1]"},
      {"o_over_itself", [](Args& a) { a.o.strides[1] = 0; },
       "o must not overlap itself, got shape [2,4,16] with strides [64,0,1]"},
      {"o_over_v", [](Args& a) { a.o.data = a.v.data; },
       "o must not overlap v, got views that share memory"},
      {"o_over_state", [](Args& a) { a.o.data = a.state.data; },
       "o must not overlap state, got views that share memory"},
      {"state_over_k", [](Args& a) { a.k.data = a.state.data; },
       "state must not overlap k, got views that share memory"},
      {"state_over_decay", [](Args& a) { a.log_decay->data = a.state.data; },
       "state must not overlap log_decay, got views that share memory"},
  };
  return table;
}

class GlaStepRefusal : public testing::TestWithParam<Refusal<Args>> {};

TEST_P(GlaStepRefusal, NamesOpArgumentExpectedAndGot) {
  Call call;
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gla_step] " + GetParam().text, [&] { gla_step(call.args); });
}

INSTANTIATE_TEST_SUITE_P(Argument, GlaStepRefusal, testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GlaStepRefusals, ValidArgumentsPass) {
  Call call;
  EXPECT_NO_THROW(gla_step(call.args));
  call.args.log_decay = std::nullopt;
  call.args.state.dtype = DType::kBFloat16;
  EXPECT_NO_THROW(gla_step(call.args));
}

TEST(GlaStepRefusals, ADecayPerChannelIsNotBuiltYet) {
  Call call;
  std::vector<float> decay(kB * kH * kK);
  call.args.log_decay = TensorView::contiguous(decay.data(), DType::kFloat32, {kB, kH, kK});
  EXPECT_EQ(text_of<Unsupported>([&] { gla_step(call.args); }),
            "[gla_step] log_decay must have shape [H] or [B,H], got [2,4,8]: "
            "a decay per key channel is not built yet");
}

void move_to_cuda(Call& call, DType dtype) {
  for (TensorView* view : {&call.args.q, &call.args.k, &call.args.v, &call.args.o}) {
    view->device = Device::cuda();
    view->dtype = dtype;
  }
  call.args.log_decay->device = call.args.state.device = Device::cuda();
}

TEST(GlaStepRefusals, NoFp32OnCuda) {
  Call call;
  move_to_cuda(call, DType::kFloat32);
  EXPECT_EQ(text_of<InvalidArgument>([&] { gla_step(call.args); }),
            "[gla_step] q must have dtype bf16 or fp16 on cuda:0, got fp32");
}

TEST(GlaStepRefusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  Call call;
  move_to_cuda(call, DType::kBFloat16);
  const std::string text = text_of<Unsupported>([&] { gla_step(call.args); });
  EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem

// What gla_backward and gla_state_backward refuse beyond what gla_forward does
// (test_gla_refusals.cpp: the inputs' checks are shared), and in which words. Nothing is written
// before.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kH = 4, kHQ = 2, kK = 8, kV = 16;

using Args = GlaBackwardArgs;
using StateArgs = GlaStateBackwardArgs;

/// Valid arguments over memory of their own, for a test to spoil.
struct Call {
  Call() {
    args.q = memory.tensor({kB, kT, kHQ, kK});
    args.k = memory.tensor({kB, kT, kHQ, kK});
    args.v = memory.tensor({kB, kT, kH, kV});
    args.log_decay = memory.tensor({kB, kT, kH});
    args.initial_state = memory.tensor({kB, kH, kK, kV});
    args.d_o = memory.tensor({kB, kT, kH, kV});
    args.d_final_state = memory.tensor({kB, kH, kK, kV});
    args.dq = memory.tensor(args.q.shape);
    args.dk = memory.tensor(args.k.shape);
    args.dv = memory.tensor(args.v.shape);
    args.d_log_decay = memory.tensor({kB, kT, kH});
    args.d_initial_state = memory.tensor({kB, kH, kK, kV});
    state_args.q = args.q;
    state_args.d_o = args.d_o;
    state_args.log_decay = args.log_decay;
    state_args.d_state = *args.d_initial_state;
    state_args.total_log_decay = memory.tensor({kB, kH});
  }

  CallMemory memory;
  Args args;
  StateArgs state_args;
};

const std::vector<Refusal<Args>>& refusals() {
  static const std::vector<Refusal<Args>> table = {
      {"k_shape",
       [](Args& a) {
         a.k = shaped(a.k, {2, 4, 2, 8});
       },
       "k must have shape [B,T,HQ,K] = [2,5,2,8], got [2,4,2,8]"},
      {"d_o_shape",
       [](Args& a) {
         a.d_o = shaped(a.d_o, {2, 5, 4, 8});
       },
       "d_o must have shape [B,T,H,V] = [2,5,4,16], got [2,5,4,8]"},
      {"d_o_dtype", [](Args& a) { a.d_o.dtype = DType::kFloat16; },
       "d_o must have dtype fp32, got fp16"},
      {"d_o_device", [](Args& a) { a.d_o.device = Device::cuda(); },
       "d_o must be on cpu, got cuda:0"},
      {"d_o_innermost", [](Args& a) { a.d_o.strides[3] = 2; },
       "d_o must have innermost stride 1, got strides [320,64,16,2]"},
      {"d_final_shape",
       [](Args& a) {
         a.d_final_state = shaped(*a.d_final_state, {2, 4, 16, 8});
       },
       "d_final_state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"d_final_dtype", [](Args& a) { a.d_final_state->dtype = DType::kFloat16; },
       "d_final_state must have dtype fp32, got fp16"},
      {"dq_shape",
       [](Args& a) {
         a.dq = shaped(*a.dq, {2, 5, 4, 4});
       },
       "dq must have shape [B,T,HQ,K] = [2,5,2,8], got [2,5,4,4]"},
      {"dk_null", [](Args& a) { a.dk->data = nullptr; },
       "dk must point to [2,5,2,8] elements, got a null pointer"},
      {"dv_dtype", [](Args& a) { a.dv->dtype = DType::kBFloat16; },
       "dv must have dtype fp32, got bf16"},
      {"d_log_decay_shape", [](Args& a) { a.d_log_decay = shaped(*a.d_log_decay, {4}); },
       "d_log_decay must have shape [B,T,H] = [2,5,4], got [4]"},
      {"d_log_decay_alone", [](Args& a) { a.log_decay.reset(); }, "d_log_decay needs log_decay"},
      {"d_initial_strides", [](Args& a) { a.d_initial_state->strides[2] = 17; },
       "d_initial_state must be contiguous, got shape [2,4,8,16] with strides [512,128,17,1]"},
      {"scale", [](Args& a) { a.scale = std::numeric_limits<double>::infinity(); },
       "scale must be finite, got inf"},
      {"dq_over_q", [](Args& a) { a.dq->data = a.q.data; },
       "dq must not overlap q, got views that share memory"},
      {"dv_over_d_o", [](Args& a) { a.dv->data = a.d_o.data; },
       "dv must not overlap d_o, got views that share memory"},
      {"dk_over_dq", [](Args& a) { a.dk->data = a.dq->data; },
       "dk must not overlap dq, got views that share memory"},
      {"d_initial_over_d_final", [](Args& a) { a.d_initial_state->data = a.d_final_state->data; },
       "d_initial_state must not overlap d_final_state, got views that share memory"},
      {"d_log_decay_over_log_decay", [](Args& a) { a.d_log_decay->data = a.log_decay->data; },
       "d_log_decay must not overlap log_decay, got views that share memory"},
      {"dv_over_itself", [](Args& a) { a.dv->strides[1] = 0; },
       "dv must not overlap itself, got shape [2,5,4,16] with strides [320,0,16,1]"},
  };
  return table;
}

class GlaBackwardRefusal : public testing::TestWithParam<Refusal<Args>> {};

TEST_P(GlaBackwardRefusal, NamesOpArgumentExpectedAndGot) {
  Call call;
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gla_backward] " + GetParam().text,
                 [&] { gla_backward(call.args); });
  EXPECT_THROW(gla_backward_workspace_bytes(call.args, DeviceProperties::cpu()), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, GlaBackwardRefusal, testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GlaBackwardRefusals, ValidArgumentsPass) {
  Call call;
  EXPECT_NO_THROW(gla_backward(call.args));
  EXPECT_EQ(gla_backward_workspace_bytes(call.args, DeviceProperties::cpu()), 0u);
  EXPECT_NO_THROW(gla_state_backward(call.state_args));
  EXPECT_EQ(gla_state_backward_workspace_bytes(call.state_args, DeviceProperties::cpu()), 0u);
}

TEST(GlaBackwardRefusals, SequenceOffsetsOnTheCpu) {
  Call call;
  std::vector<std::int32_t> offsets = {0, 3, 2, 5};
  Args args;
  args.q = shaped(call.args.q, Dims{1, kT, kHQ, kK});
  args.k = shaped(call.args.k, Dims{1, kT, kHQ, kK});
  args.v = shaped(call.args.v, Dims{1, kT, kH, kV});
  args.d_o = shaped(call.args.d_o, Dims{1, kT, kH, kV});
  args.dv = shaped(*call.args.dv, Dims{1, kT, kH, kV});
  args.cu_seqlens = TensorView::contiguous(offsets.data(), DType::kInt32, {4});
  expect_refused(call.memory,
                 "[gla_backward] cu_seqlens must not decrease, got cu_seqlens[2] = 2 after 3",
                 [&] { gla_backward(args); });
}

TEST(GlaBackwardRefusals, ACudaCallSaysWhatIsMissing) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  Call call;
  Args args;
  args.q = call.args.q;
  args.k = call.args.k;
  args.v = call.args.v;
  args.d_o = call.args.d_o;
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.d_o}) {
    view->device = Device::cuda();
    view->dtype = DType::kBFloat16;
  }
  const std::string text = text_of<Unsupported>([&] { gla_backward(args); });
  EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
}

TEST(GlaStateBackwardRefusals, NameOpArgumentExpectedAndGot) {
  const std::vector<Refusal<StateArgs>> table = {
      {"",
       [](StateArgs& a) {
         a.d_o = shaped(a.d_o, Dims{2, 4, 4, 16});
       },
       "d_o must have shape [B,T,H,V] = [2,5,4,16], got [2,4,4,16]"},
      {"", [](StateArgs& a) { a.q.dtype = DType::kInt32; },
       "q must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"",
       [](StateArgs& a) {
         a.d_state = shaped(a.d_state, Dims{2, 4, 16, 8});
       },
       "d_state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"",
       [](StateArgs& a) {
         a.total_log_decay = shaped(a.total_log_decay, Dims{4, 2});
       },
       "total_log_decay must have shape [B,H] = [2,4], got [4,2]"},
      {"", [](StateArgs& a) { a.total_log_decay.data = a.q.data; },
       "total_log_decay must not overlap q, got views that share memory"},
      {"", [](StateArgs& a) { a.scale = std::numeric_limits<double>::quiet_NaN(); },
       "scale must be finite, got nan"},
  };
  for (const Refusal<StateArgs>& refusal : table) {
    Call call;
    refusal.spoil(call.state_args);
    expect_refused(call.memory, "[gla_state_backward] " + refusal.text,
                   [&] { gla_state_backward(call.state_args); });
  }
}

}  // namespace
}  // namespace tandem

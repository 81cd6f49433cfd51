// What gla_state_forward refuses, and in which words; nothing is written before.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kH = 4, kHQ = 2, kK = 8, kV = 16, kN = 3;

using Args = GlaStateForwardArgs;

/// Valid arguments over memory of their own, for a test to spoil.
struct Call {
  explicit Call(bool lists = false) {
    const std::int64_t B = lists ? 1 : kB, N = lists ? kN : kB;
    args.k = memory.tensor({B, kT, kHQ, kK});
    args.v = memory.tensor({B, kT, kH, kV});
    args.log_decay = memory.tensor({B, kT, kH});
    args.state = memory.tensor({N, kH, kK, kV});
    args.total_log_decay = memory.tensor({N, kH});
    if (!lists) return;
    offsets = {0, 2, 2, kT};
    args.cu_seqlens = TensorView::contiguous(offsets.data(), DType::kInt32, {kN + 1});
  }

  CallMemory memory;
  std::vector<std::int32_t> offsets;
  Args args;
};

const std::vector<Refusal<Args>>& refusals() {
  static const std::vector<Refusal<Args>> table = {
      {"k_rank",
       [](Args& a) {
         a.k = shaped(a.k, {2, 5, 16});
       },
       "k must have shape [B,T,HQ,K], got [2,5,16]"},
      {"v_rank",
       [](Args& a) {
         a.v = shaped(a.v, {2, 5, 64});
       },
       "v must have shape [B,T,H,V], got [2,5,64]"},
      {"k_without_width",
       [](Args& a) {
         a.k = shaped(a.k, {2, 5, 2, 0});
       },
       "k must have HQ and K in [1,2^31), got shape [2,5,2,0]"},
      {"k_dtype", [](Args& a) { a.k.dtype = DType::kInt32; },
       "k must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"v_time",
       [](Args& a) {
         a.v = shaped(a.v, {2, 4, 4, 16});
       },
       "v must have shape [B,T,H,V] = [2,5,4,16], got [2,4,4,16]"},
      {"v_dtype", [](Args& a) { a.v.dtype = DType::kBFloat16; },
       "v must have dtype fp32, got bf16"},
      {"v_device", [](Args& a) { a.v.device = Device::cuda(1); }, "v must be on cpu, got cuda:1"},
      {"heads_do_not_divide",
       [](Args& a) {
         a.k = shaped(a.k, {2, 5, 3, 4});
       },
       "k must have a number of heads HQ that divides H = 4, got HQ = 3"},
      {"innermost_stride", [](Args& a) { a.k.strides[3] = 2; },
       "k must have innermost stride 1, got strides [80,16,8,2]"},
      {"null", [](Args& a) { a.v.data = nullptr; },
       "v must point to [2,5,4,16] elements, got a null pointer"},
      {"decay_rank",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {5, 4});
       },
       "log_decay must have shape [H] or [B,T,H], got [5,4]"},
      {"decay_shape",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {2, 4, 4});
       },
       "log_decay must have shape [B,T,H] = [2,5,4], got [2,4,4]"},
      {"decay_dtype", [](Args& a) { a.log_decay->dtype = DType::kFloat16; },
       "log_decay must have dtype fp32, got fp16"},
      {"lists_with_batches",
       [](Args& a) { a.cu_seqlens = TensorView::contiguous(a.k.data, DType::kInt32, {3}); },
       "cu_seqlens needs B = 1, got B = 2"},
      {"lists_empty", [](Args& a) { a.cu_seqlens = shaped(*a.cu_seqlens, {0}); },
       "cu_seqlens must have shape [N+1] with N >= 0, got [0]", kWithLists},
      {"state_shape",
       [](Args& a) {
         a.state = shaped(a.state, {2, 4, 16, 8});
       },
       "state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"state_shape_lists",
       [](Args& a) {
         a.state = shaped(a.state, {1, 4, 8, 16});
       },
       "state must have shape [N,H,K,V] = [3,4,8,16], got [1,4,8,16]", kWithLists},
      {"state_dtype", [](Args& a) { a.state.dtype = DType::kBFloat16; },
       "state must have dtype fp32, got bf16"},
      {"state_strides", [](Args& a) { a.state.strides[1] = 256; },
       "state must be contiguous, got shape [2,4,8,16] with strides [512,256,16,1]"},
      {"state_missing", [](Args& a) { a.state = {}; },
       "state must have shape [B,H,K,V] = [2,4,8,16], got []"},
      {"total_shape",
       [](Args& a) {
         a.total_log_decay = shaped(a.total_log_decay, {4, 2});
       },
       "total_log_decay must have shape [B,H] = [2,4], got [4,2]"},
      {"total_shape_lists",
       [](Args& a) {
         a.total_log_decay = shaped(a.total_log_decay, {1, 4});
       },
       "total_log_decay must have shape [N,H] = [3,4], got [1,4]", kWithLists},
      {"total_null", [](Args& a) { a.total_log_decay.data = nullptr; },
       "total_log_decay must point to [2,4] elements, got a null pointer"},
      {"total_device", [](Args& a) { a.total_log_decay.device = Device::cuda(); },
       "total_log_decay must be on cpu, got cuda:0"},
      {"state_over_k", [](Args& a) { a.state.data = a.k.data; },
       "state must not overlap k, got views that share memory"},
      {"state_over_v", [](Args& a) { a.state.data = a.v.data; },
       "state must not overlap v, got views that share memory"},
      {"state_over_decay", [](Args& a) { a.state.data = a.log_decay->data; },
       "state must not overlap log_decay, got views that share memory"},
      {"total_over_decay", [](Args& a) { a.total_log_decay.data = a.log_decay->data; },
       "total_log_decay must not overlap log_decay, got views that share memory"},
      {"total_over_lists", [](Args& a) { a.total_log_decay.data = a.cu_seqlens->data; },
       "total_log_decay must not overlap cu_seqlens, got views that share memory", kWithLists},
      {"state_over_total", [](Args& a) { a.state.data = a.total_log_decay.data; },
       "state must not overlap total_log_decay, got views that share memory"},
  };
  return table;
}

class GlaStateRefusal : public testing::TestWithParam<Refusal<Args>> {};

TEST_P(GlaStateRefusal, NamesOpArgumentExpectedAndGot) {
  Call call(GetParam().lists);
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gla_state_forward] " + GetParam().text,
                 [&] { gla_state_forward(call.args); });
  EXPECT_THROW(gla_state_forward_workspace_bytes(call.args, DeviceProperties::cpu()),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, GlaStateRefusal, testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GlaStateRefusals, ValidArgumentsPass) {
  for (const bool lists : {false, true}) {
    Call call(lists);
    EXPECT_NO_THROW(gla_state_forward(call.args));
    EXPECT_EQ(gla_state_forward_workspace_bytes(call.args, DeviceProperties::cpu()), 0u);
  }
}

TEST(GlaStateRefusals, SequenceOffsetsOnTheCpu) {
  Call call(true);
  const auto forward = [&] { gla_state_forward(call.args); };
  call.offsets = {0, 3, 2, 5};
  call.args.cu_seqlens->data = call.offsets.data();
  expect_refused(call.memory,
                 "[gla_state_forward] cu_seqlens must not decrease, got cu_seqlens[2] = 2 after 3",
                 forward);
  call.offsets = {0, 2, 3, 6};
  call.args.cu_seqlens->data = call.offsets.data();
  expect_refused(call.memory,
                 "[gla_state_forward] cu_seqlens must lie in [0,T] = [0,5], got cu_seqlens[3] = 6",
                 forward);
}

TEST(GlaStateRefusals, ADecayPerChannelIsNotBuiltYet) {
  Call call;
  std::vector<float> decay(kB * kT * kH * kK);
  call.args.log_decay = TensorView::contiguous(decay.data(), DType::kFloat32, {kB, kT, kH, kK});
  EXPECT_EQ(text_of<Unsupported>([&] { gla_state_forward(call.args); }),
            "[gla_state_forward] log_decay must have shape [H] or [B,T,H], got [2,5,4,8]: "
            "a decay per key channel is not built yet");
}

TEST(GlaStateRefusals, WorkspaceOfAnotherKindOfDevice) {
  const Call call;
  EXPECT_EQ(text_of<InvalidArgument>(
                [&] { gla_state_forward_workspace_bytes(call.args, DeviceProperties::h200()); }),
            "[gla_state_forward] device must be of the tensors' type, cpu, got NVIDIA H200");
}

TEST(GlaStateRefusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  Call call;
  for (TensorView* view : {&call.args.k, &call.args.v, &*call.args.log_decay, &call.args.state,
                           &call.args.total_log_decay}) {
    view->device = Device::cuda();
  }
  EXPECT_EQ(text_of<InvalidArgument>([&] { gla_state_forward(call.args); }),
            "[gla_state_forward] k must have dtype bf16 or fp16 on cuda:0, got fp32");
  call.args.k.dtype = call.args.v.dtype = DType::kBFloat16;
  const std::string text = text_of<Unsupported>([&] { gla_state_forward(call.args); });
  EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
  EXPECT_EQ(text.find(built_with_cuda() ? "[" : "[gla_state_forward] "), 0u) << text;
}

}  // namespace
}  // namespace tandem

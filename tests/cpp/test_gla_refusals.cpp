// What gla_forward refuses, and in which words: op, argument, expected, got; nothing is written
// before.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kH = 4, kHQ = 2, kK = 8, kV = 16, kN = 3;

using Args = GlaForwardArgs;

/// Valid arguments over memory of their own, for a test to spoil.
struct Call {
  explicit Call(bool lists = false) : B(lists ? 1 : kB), states(lists ? kN : kB) {
    args.q = memory.tensor({B, kT, kHQ, kK});
    args.k = memory.tensor({B, kT, kHQ, kK});
    args.v = memory.tensor({B, kT, kH, kV});
    args.o = memory.tensor({B, kT, kH, kV});
    args.log_decay = memory.tensor({B, kT, kH});
    args.initial_state = memory.tensor({states, kH, kK, kV});
    args.final_state = memory.tensor({states, kH, kK, kV});
    if (!lists) return;
    offsets = {0, 2, 2, kT};
    args.cu_seqlens = TensorView::contiguous(offsets.data(), DType::kInt32, {kN + 1});
  }

  std::int64_t B, states;
  CallMemory memory;
  std::vector<std::int32_t> offsets;
  Args args;
};

void* shift(void* data, std::ptrdiff_t bytes) { return static_cast<char*>(data) + bytes; }

const std::vector<Refusal<Args>>& refusals() {
  static const std::vector<Refusal<Args>> table = {
      {"q_rank",
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 16});
       },
       "q must have shape [B,T,HQ,K], got [2,5,16]"},
      {"v_rank",
       [](Args& a) {
         a.v = shaped(a.v, {2, 5, 4, 4, 4});
       },
       "v must have shape [B,T,H,V], got [2,5,4,4,4]"},
      {"q_without_heads",
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 0, 8});
       },
       "q must have HQ and K in [1,2^31), got shape [2,5,0,8]"},
      {"v_without_width",
       [](Args& a) {
         a.v = shaped(a.v, {2, 5, 4, 0});
       },
       "v must have H and V in [1,2^31), got shape [2,5,4,0]"},
      {"q_dtype", [](Args& a) { a.q.dtype = DType::kInt32; },
       "q must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"k_shape",
       [](Args& a) {
         a.k = shaped(a.k, {2, 4, 2, 8});
       },
       "k must have shape [B,T,HQ,K] = [2,5,2,8], got [2,4,2,8]"},
      {"k_dtype", [](Args& a) { a.k.dtype = DType::kFloat16; }, "k must have dtype fp32, got fp16"},
      {"v_time",
       [](Args& a) {
         a.v = shaped(a.v, {2, 4, 4, 16});
       },
       "v must have shape [B,T,H,V] = [2,5,4,16], got [2,4,4,16]"},
      {"v_dtype", [](Args& a) { a.v.dtype = DType::kBFloat16; },
       "v must have dtype fp32, got bf16"},
      {"o_shape",
       [](Args& a) {
         a.o = shaped(a.o, {2, 5, 4, 8});
       },
       "o must have shape [B,T,H,V] = [2,5,4,16], got [2,5,4,8]"},
      {"o_dtype", [](Args& a) { a.o.dtype = DType::kFloat16; }, "o must have dtype fp32, got fp16"},
      {"k_device", [](Args& a) { a.k.device = Device::cuda(1); }, "k must be on cpu, got cuda:1"},
      {"heads_do_not_divide",
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 3, 4});
         a.k = shaped(a.k, {2, 5, 3, 4});
       },
       "q must have a number of heads HQ that divides H = 4, got HQ = 3"},
      {"stride_per_axis",
       [](Args& a) {
         a.k.strides = {1, 1};
       },
       "k must have one stride per axis of [2,5,2,8], got [1,1]"},
      {"negative_stride", [](Args& a) { a.v.strides[1] = -64; },
       "v must have strides >= 0, got [320,-64,16,1]"},
      {"innermost_stride",
       [](Args& a) {
         a.q.strides = {160, 32, 16, 2};
       },
       "q must have innermost stride 1, got strides [160,32,16,2]"},
      {"null", [](Args& a) { a.v.data = nullptr; },
       "v must point to [2,5,4,16] elements, got a null pointer"},
      {"misaligned_bytes", [](Args& a) { a.k.data = shift(a.k.data, 2); },
       "k must start at a multiple of its 4-byte element, got an address 2 bytes past one"},
      {"decay_rank",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {5, 4});
       },
       "log_decay must have shape [H] or [B,T,H], got [5,4]"},
      {"decay_heads", [](Args& a) { a.log_decay = shaped(*a.log_decay, {3}); },
       "log_decay must have shape [H] = [4], got [3]"},
      {"decay_shape",
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {2, 4, 5});
       },
       "log_decay must have shape [B,T,H] = [2,5,4], got [2,4,5]"},
      {"decay_dtype", [](Args& a) { a.log_decay->dtype = DType::kBFloat16; },
       "log_decay must have dtype fp32, got bf16"},
      {"decay_device", [](Args& a) { a.log_decay->device = Device::cuda(); },
       "log_decay must be on cpu, got cuda:0"},
      {"decay_null", [](Args& a) { a.log_decay->data = nullptr; },
       "log_decay must point to [2,5,4] elements, got a null pointer"},
      {"scale_nan", [](Args& a) { a.scale = std::numeric_limits<double>::quiet_NaN(); },
       "scale must be finite, got nan"},
      {"scale_inf", [](Args& a) { a.scale = -std::numeric_limits<double>::infinity(); },
       "scale must be finite, got -inf"},
      {"initial_shape",
       [](Args& a) {
         a.initial_state = shaped(*a.initial_state, {2, 4, 16, 8});
       },
       "initial_state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"initial_dtype", [](Args& a) { a.initial_state->dtype = DType::kFloat16; },
       "initial_state must have dtype fp32, got fp16"},
      {"initial_strides", [](Args& a) { a.initial_state->strides[2] = 17; },
       "initial_state must be contiguous, got shape [2,4,8,16] with strides [512,128,17,1]"},
      {"final_shape_lists",
       [](Args& a) {
         a.final_state = shaped(*a.final_state, {2, 4, 8, 16});
       },
       "final_state must have shape [N,H,K,V] = [3,4,8,16], got [2,4,8,16]", kWithLists},
      {"final_device", [](Args& a) { a.final_state->device = Device::cuda(); },
       "final_state must be on cpu, got cuda:0"},
      {"lists_with_batches",
       [](Args& a) { a.cu_seqlens = TensorView::contiguous(a.q.data, DType::kInt32, {3}); },
       "cu_seqlens needs B = 1, got B = 2"},
      {"lists_rank",
       [](Args& a) {
         a.cu_seqlens = shaped(*a.cu_seqlens, {2, 2});
       },
       "cu_seqlens must have shape [N+1], got [2,2]", kWithLists},
      {"lists_empty", [](Args& a) { a.cu_seqlens = shaped(*a.cu_seqlens, {0}); },
       "cu_seqlens must have shape [N+1] with N >= 0, got [0]", kWithLists},
      {"lists_dtype", [](Args& a) { a.cu_seqlens->dtype = DType::kFloat32; },
       "cu_seqlens must have dtype int32, got fp32", kWithLists},
      {"lists_strides", [](Args& a) { a.cu_seqlens->strides[0] = 2; },
       "cu_seqlens must be contiguous, got shape [4] with strides [2]", kWithLists},
      {"o_over_q", [](Args& a) { a.o.data = a.q.data; },
       "o must not overlap q, got views that share memory"},
      {"o_over_v", [](Args& a) { a.o.data = a.v.data; },
       "o must not overlap v, got views that share memory"},
      {"o_over_decay", [](Args& a) { a.o.data = a.log_decay->data; },
       "o must not overlap log_decay, got views that share memory"},
      {"o_over_initial", [](Args& a) { a.o.data = a.initial_state->data; },
       "o must not overlap initial_state, got views that share memory"},
      {"o_over_final", [](Args& a) { a.o.data = a.final_state->data; },
       "o must not overlap final_state, got views that share memory"},
      {"final_over_k", [](Args& a) { a.final_state->data = a.k.data; },
       "final_state must not overlap k, got views that share memory"},
      {"final_shifted_initial",
       [](Args& a) { a.final_state->data = shift(a.initial_state->data, 4); },
       "final_state must not overlap initial_state, got views that share memory"},
      {"o_over_itself", [](Args& a) { a.o.strides[1] = 0; },
       "o must not overlap itself, got shape [2,5,4,16] with strides [320,0,16,1]"},
      {"o_heads_overlap", [](Args& a) { a.o.strides[2] = 8; },
       "o must not overlap itself, got shape [2,5,4,16] with strides [320,64,8,1]"},
  };
  return table;
}

class GlaRefusal : public testing::TestWithParam<Refusal<Args>> {};

TEST_P(GlaRefusal, NamesOpArgumentExpectedAndGot) {
  Call call(GetParam().lists);
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gla_forward] " + GetParam().text, [&] { gla_forward(call.args); });
  EXPECT_THROW(gla_forward_workspace_bytes(call.args, DeviceProperties::cpu()), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, GlaRefusal, testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GlaRefusals, ValidArgumentsPass) {
  for (const bool lists : {false, true}) {
    Call call(lists);
    EXPECT_NO_THROW(gla_forward(call.args));
    EXPECT_EQ(gla_forward_workspace_bytes(call.args, DeviceProperties::cpu()), 0u);
  }
}

/// Values in device memory cannot be checked without a wait; in host memory they are.
TEST(GlaRefusals, SequenceOffsetsOnTheCpu) {
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 3, 2, 5}, {-1, 2, 3, 5}, {0, 2, 3, 6}}) {
    Call call(true);
    call.offsets = offsets;
    call.args.cu_seqlens->data = call.offsets.data();
    const CallMemory before = call.memory;
    const std::string text = text_of<InvalidArgument>([&] { gla_forward(call.args); });
    EXPECT_EQ(text.find("[gla_forward] cu_seqlens must "), 0u) << text;
    EXPECT_EQ(call.memory.tensors, before.tensors);
  }
}

TEST(GlaRefusals, ADecayPerChannelIsNotBuiltYet) {
  Call call;
  std::vector<float> decay(kB * kT * kH * kK);
  call.args.log_decay = TensorView::contiguous(decay.data(), DType::kFloat32, {kB, kT, kH, kK});
  EXPECT_EQ(text_of<Unsupported>([&] { gla_forward(call.args); }),
            "[gla_forward] log_decay must have shape [H] or [B,T,H], got [2,5,4,8]: "
            "a decay per key channel is not built yet");
}

TEST(GlaRefusals, WorkspaceOfAnotherKindOfDevice) {
  Call call;
  EXPECT_EQ(text_of<InvalidArgument>(
                [&] { gla_forward_workspace_bytes(call.args, DeviceProperties::h200()); }),
            "[gla_forward] device must be of the tensors' type, cpu, got NVIDIA H200");
}

void move_to_cuda(Call& call, DType dtype) {
  for (TensorView* view : {&call.args.q, &call.args.k, &call.args.v, &call.args.o}) {
    view->device = Device::cuda();
    view->dtype = dtype;
  }
  call.args.log_decay->device = Device::cuda();
  call.args.initial_state->device = Device::cuda();
  call.args.final_state->device = Device::cuda();
}

TEST(GlaRefusals, NoFp32OnCuda) {
  Call call;
  move_to_cuda(call, DType::kFloat32);
  EXPECT_EQ(text_of<InvalidArgument>([&] { gla_forward(call.args); }),
            "[gla_forward] q must have dtype bf16 or fp16 on cuda:0, got fp32");
}

TEST(GlaRefusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  Call call;
  move_to_cuda(call, DType::kBFloat16);
  const std::string text = text_of<Unsupported>([&] { gla_forward(call.args); });
  EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem

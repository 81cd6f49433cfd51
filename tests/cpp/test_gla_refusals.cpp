// What gla_forward refuses, and in which words: op, argument, expected, got; nothing is written
// before.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kH = 4, kHQ = 2, kK = 8, kV = 16, kN = 3;

/// Valid arguments over memory of their own, for a test to spoil.
struct Call {
  explicit Call(bool lists = false) : B(lists ? 1 : kB), states(lists ? kN : kB) {
    args.q = tensor(q, {B, kT, kHQ, kK});
    args.k = tensor(k, {B, kT, kHQ, kK});
    args.v = tensor(v, {B, kT, kH, kV});
    args.o = tensor(o, {B, kT, kH, kV});
    args.log_decay = tensor(log_decay, {B, kT, kH});
    args.initial_state = tensor(initial_state, {states, kH, kK, kV});
    args.final_state = tensor(final_state, {states, kH, kK, kV});
    if (!lists) return;
    offsets = {0, 2, 2, kT};
    args.cu_seqlens = TensorView::contiguous(offsets.data(), DType::kInt32, {kN + 1});
  }

  static TensorView tensor(std::vector<float>& data, const Dims& shape) {
    data.assign(shape.product() + 8, 0.25f);
    return TensorView::contiguous(data.data(), DType::kFloat32, shape);
  }

  std::int64_t B, states;
  std::vector<float> q, k, v, o, log_decay, initial_state, final_state;
  std::vector<std::int32_t> offsets;
  GlaForwardArgs args;
};

struct Refusal {
  const char* name;
  bool lists;
  std::function<void(GlaForwardArgs&)> spoil;
  std::string text;
};

TensorView shaped(const TensorView& view, const Dims& shape) {
  return TensorView::contiguous(view.data, view.dtype, shape, view.device);
}

void* shift(void* data, std::ptrdiff_t bytes) { return static_cast<char*>(data) + bytes; }

const std::vector<Refusal>& refusals() {
  using Args = GlaForwardArgs;
  static const std::vector<Refusal> table = {
      {"q_rank", false,
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 16});
       },
       "q must have shape [B,T,HQ,K], got [2,5,16]"},
      {"v_rank", false,
       [](Args& a) {
         a.v = shaped(a.v, {2, 5, 4, 4, 4});
       },
       "v must have shape [B,T,H,V], got [2,5,4,4,4]"},
      {"q_without_heads", false,
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 0, 8});
       },
       "q must have HQ and K in [1,2^31), got shape [2,5,0,8]"},
      {"v_without_width", false,
       [](Args& a) {
         a.v = shaped(a.v, {2, 5, 4, 0});
       },
       "v must have H and V in [1,2^31), got shape [2,5,4,0]"},
      {"q_dtype", false, [](Args& a) { a.q.dtype = DType::kInt32; },
       "q must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"k_shape", false,
       [](Args& a) {
         a.k = shaped(a.k, {2, 4, 2, 8});
       },
       "k must have shape [B,T,HQ,K] = [2,5,2,8], got [2,4,2,8]"},
      {"k_dtype", false, [](Args& a) { a.k.dtype = DType::kFloat16; },
       "k must have dtype fp32, got fp16"},
      {"v_time", false,
       [](Args& a) {
         a.v = shaped(a.v, {2, 4, 4, 16});
       },
       "v must have shape [B,T,H,V] = [2,5,4,16], got [2,4,4,16]"},
      {"v_dtype", false, [](Args& a) { a.v.dtype = DType::kBFloat16; },
       "v must have dtype fp32, got bf16"},
      {"o_shape", false,
       [](Args& a) {
         a.o = shaped(a.o, {2, 5, 4, 8});
       },
       "o must have shape [B,T,H,V] = [2,5,4,16], got [2,5,4,8]"},
      {"o_dtype", false, [](Args& a) { a.o.dtype = DType::kFloat16; },
       "o must have dtype fp32, got fp16"},
      {"k_device", false, [](Args& a) { a.k.device = Device::cuda(1); },
       "k must be on cpu, got cuda:1"},
      {"heads_do_not_divide", false,
       [](Args& a) {
         a.q = shaped(a.q, {2, 5, 3, 4});
         a.k = shaped(a.k, {2, 5, 3, 4});
       },
       "q must have a number of heads HQ that divides H = 4, got HQ = 3"},
      {"stride_per_axis", false,
       [](Args& a) {
         a.k.strides = {1, 1};
       },
       "k must have one stride per axis of [2,5,2,8], got [1,1]"},
      {"negative_stride", false, [](Args& a) { a.v.strides[1] = -64; },
       "v must have strides >= 0, got [320,-64,16,1]"},
      {"innermost_stride", false,
       [](Args& a) {
         a.q.strides = {160, 32, 16, 2};
       },
       "q must have innermost stride 1, got strides [160,32,16,2]"},
      {"null", false, [](Args& a) { a.v.data = nullptr; },
       "v must point to [2,5,4,16] elements, got a null pointer"},
      {"misaligned_bytes", false, [](Args& a) { a.k.data = shift(a.k.data, 2); },
       "k must start at a multiple of its 4-byte element, got an address 2 bytes past one"},
      {"decay_rank", false,
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {5, 4});
       },
       "log_decay must have shape [H] or [B,T,H], got [5,4]"},
      {"decay_heads", false, [](Args& a) { a.log_decay = shaped(*a.log_decay, {3}); },
       "log_decay must have shape [H] = [4], got [3]"},
      {"decay_shape", false,
       [](Args& a) {
         a.log_decay = shaped(*a.log_decay, {2, 4, 5});
       },
       "log_decay must have shape [B,T,H] = [2,5,4], got [2,4,5]"},
      {"decay_dtype", false, [](Args& a) { a.log_decay->dtype = DType::kBFloat16; },
       "log_decay must have dtype fp32, got bf16"},
      {"decay_device", false, [](Args& a) { a.log_decay->device = Device::cuda(); },
       "log_decay must be on cpu, got cuda:0"},
      {"decay_null", false, [](Args& a) { a.log_decay->data = nullptr; },
       "log_decay must point to [2,5,4] elements, got a null pointer"},
      {"scale_nan", false, [](Args& a) { a.scale = std::numeric_limits<double>::quiet_NaN(); },
       "scale must be finite, got nan"},
      {"scale_inf", false, [](Args& a) { a.scale = -std::numeric_limits<double>::infinity(); },
       "scale must be finite, got -inf"},
      {"initial_shape", false,
       [](Args& a) {
         a.initial_state = shaped(*a.initial_state, {2, 4, 16, 8});
       },
       "initial_state must have shape [B,H,K,V] = [2,4,8,16], got [2,4,16,8]"},
      {"initial_dtype", false, [](Args& a) { a.initial_state->dtype = DType::kFloat16; },
       "initial_state must have dtype fp32, got fp16"},
      {"initial_strides", false, [](Args& a) { a.initial_state->strides[2] = 17; },
       "initial_state must be contiguous, got shape [2,4,8,16] with strides [512,128,17,1]"},
      {"final_shape_lists", true,
       [](Args& a) {
         a.final_state = shaped(*a.final_state, {2, 4, 8, 16});
       },
       "final_state must have shape [N,H,K,V] = [3,4,8,16], got [2,4,8,16]"},
      {"final_device", false, [](Args& a) { a.final_state->device = Device::cuda(); },
       "final_state must be on cpu, got cuda:0"},
      {"lists_with_batches", false,
       [](Args& a) { a.cu_seqlens = TensorView::contiguous(a.q.data, DType::kInt32, {3}); },
       "cu_seqlens needs B = 1, got B = 2"},
      {"lists_rank", true,
       [](Args& a) {
         a.cu_seqlens = shaped(*a.cu_seqlens, {2, 2});
       },
       "cu_seqlens must have shape [N+1], got [2,2]"},
      {"lists_empty", true, [](Args& a) { a.cu_seqlens = shaped(*a.cu_seqlens, {0}); },
       "cu_seqlens must have shape [N+1] with N >= 0, got [0]"},
      {"lists_dtype", true, [](Args& a) { a.cu_seqlens->dtype = DType::kFloat32; },
       "cu_seqlens must have dtype int32, got fp32"},
      {"lists_strides", true, [](Args& a) { a.cu_seqlens->strides[0] = 2; },
       "cu_seqlens must be contiguous, got shape [4] with strides [2]"},
      {"o_over_q", false, [](Args& a) { a.o.data = a.q.data; },
       "o must not overlap q, got views that share memory"},
      {"o_over_v", false, [](Args& a) { a.o.data = a.v.data; },
       "o must not overlap v, got views that share memory"},
      {"o_over_decay", false, [](Args& a) { a.o.data = a.log_decay->data; },
       "o must not overlap log_decay, got views that share memory"},
      {"o_over_initial", false, [](Args& a) { a.o.data = a.initial_state->data; },
       "o must not overlap initial_state, got views that share memory"},
      {"o_over_final", false, [](Args& a) { a.o.data = a.final_state->data; },
       "o must not overlap final_state, got views that share memory"},
      {"final_over_k", false, [](Args& a) { a.final_state->data = a.k.data; },
       "final_state must not overlap k, got views that share memory"},
      {"final_shifted_initial", false,
       [](Args& a) { a.final_state->data = shift(a.initial_state->data, 4); },
       "final_state must not overlap initial_state, got views that share memory"},
      {"o_over_itself", false, [](Args& a) { a.o.strides[1] = 0; },
       "o must not overlap itself, got shape [2,5,4,16] with strides [320,0,16,1]"},
      {"o_heads_overlap", false, [](Args& a) { a.o.strides[2] = 8; },
       "o must not overlap itself, got shape [2,5,4,16] with strides [320,64,8,1]"},
  };
  return table;
}

class GlaRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(GlaRefusal, NamesOpArgumentExpectedAndGot) {
  Call call(GetParam().lists);
  GetParam().spoil(call.args);
  const Call before = call;
  try {
    gla_forward(call.args);
    FAIL() << "was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), "[gla_forward] " + GetParam().text);
  }
  EXPECT_EQ(call.o, before.o);
  EXPECT_EQ(call.final_state, before.final_state);
  EXPECT_EQ(call.initial_state, before.initial_state);
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
    const Call before = call;
    try {
      gla_forward(call.args);
      FAIL() << "was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find("[gla_forward] cu_seqlens must "), 0u)
          << error.what();
    }
    EXPECT_EQ(call.o, before.o);
    EXPECT_EQ(call.final_state, before.final_state);
  }
}

TEST(GlaRefusals, ADecayPerChannelIsNotBuiltYet) {
  Call call;
  std::vector<float> decay(kB * kT * kH * kK);
  call.args.log_decay = TensorView::contiguous(decay.data(), DType::kFloat32, {kB, kT, kH, kK});
  try {
    gla_forward(call.args);
    FAIL() << "was accepted";
  } catch (const Unsupported& error) {
    EXPECT_EQ(std::string(error.what()),
              "[gla_forward] log_decay must have shape [H] or [B,T,H], got [2,5,4,8]: "
              "a decay per key channel is not built yet");
  }
}

TEST(GlaRefusals, WorkspaceOfAnotherKindOfDevice) {
  Call call;
  try {
    gla_forward_workspace_bytes(call.args, DeviceProperties::h200());
    FAIL() << "was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "[gla_forward] device must be of the tensors' type, cpu, got NVIDIA H200");
  }
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
  try {
    gla_forward(call.args);
    FAIL() << "was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "[gla_forward] q must have dtype bf16 or fp16 on cuda:0, got fp32");
  }
}

TEST(GlaRefusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  Call call;
  move_to_cuda(call, DType::kBFloat16);
  try {
    gla_forward(call.args);
    FAIL() << "was accepted";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find(cuda_unavailable_reason()), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tandem

// What gated_scan_forward and gated_scan_backward refuse, and in which words: op, argument,
// expected, got; nothing is written before.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kD = 16, kN = 3;

void* shift(void* data, std::ptrdiff_t bytes) { return static_cast<char*>(data) + bytes; }

/// Memory of valid arguments.
struct Call {
  explicit Call(bool lists) : B(lists ? 1 : kB), states(lists ? kN : kB) {
    if (lists) {
      offsets = {0, 2, 2, kT};
      cu_seqlens = TensorView::contiguous(offsets.data(), DType::kInt32, {kN + 1});
    }
  }
  TensorView tokens() { return memory.tensor({B, kT, kD}); }
  TensorView state() { return memory.tensor({states, kD}); }

  std::int64_t B, states;
  CallMemory memory;
  std::vector<std::int32_t> offsets;
  std::optional<TensorView> cu_seqlens;
};

struct ForwardCall : Call {
  explicit ForwardCall(bool lists = false) : Call(lists) {
    args = {.x = tokens(),
            .log_decay = tokens(),
            .gate = tokens(),
            .initial_state = state(),
            .cu_seqlens = cu_seqlens,
            .out = tokens(),
            .final_state = state()};
  }
  GatedScanForwardArgs args;
};

struct BackwardCall : Call {
  explicit BackwardCall(bool lists = false) : Call(lists) {
    args = {.x = tokens(),
            .log_decay = tokens(),
            .gate = tokens(),
            .initial_state = state(),
            .cu_seqlens = cu_seqlens,
            .d_out = tokens(),
            .d_final_state = state(),
            .dx = tokens(),
            .d_log_decay = tokens(),
            .d_gate = tokens(),
            .d_initial_state = state()};
  }
  GatedScanBackwardArgs args;
};

using Forward = GatedScanForwardArgs;
using Backward = GatedScanBackwardArgs;

const std::vector<Refusal<Forward>>& forward_refusals() {
  static const std::vector<Refusal<Forward>> table = {
      {"x_rank",
       [](Forward& a) {
         a.x = shaped(a.x, {2, 5, 4, 4});
       },
       "x must have shape [B,T,D], got [2,5,4,4]"},
      {"x_without_channels",
       [](Forward& a) {
         a.x = shaped(a.x, {2, 5, 0});
       },
       "x must have D in [1,2^31), got shape [2,5,0]"},
      {"x_dtype", [](Forward& a) { a.x.dtype = DType::kInt32; },
       "x must have dtype bf16, fp16 or fp32, got int32"},
      {"x_innermost_stride",
       [](Forward& a) {
         a.x.strides = {160, 32, 2};
       },
       "x must have innermost stride 1, got strides [160,32,2]"},
      {"x_null", [](Forward& a) { a.x.data = nullptr; },
       "x must point to [2,5,16] elements, got a null pointer"},
      {"no_decay", [](Forward& a) { a.log_decay.reset(); },
       "exactly one of decay and log_decay must be given, got neither"},
      {"two_decays", [](Forward& a) { a.decay = a.gate; },
       "exactly one of decay and log_decay must be given, got both"},
      {"log_decay_shape",
       [](Forward& a) {
         a.log_decay = shaped(*a.log_decay, {2, 5, 8});
       },
       "log_decay must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"decay_shape",
       [](Forward& a) {
         a.decay = shaped(*a.log_decay, {2, 4, 16});
         a.log_decay.reset();
       },
       "decay must have shape [B,T,D] = [2,5,16], got [2,4,16]"},
      {"decay_dtype", [](Forward& a) { a.log_decay->dtype = DType::kFloat16; },
       "log_decay must have dtype fp32, got fp16"},
      {"decay_dtype_of_16_bits",
       [](Forward& a) {
         a.x.dtype = a.gate->dtype = a.out.dtype = DType::kBFloat16;
         a.log_decay->dtype = DType::kFloat16;
       },
       "log_decay must have dtype bf16 or fp32, got fp16"},
      {"decay_device", [](Forward& a) { a.log_decay->device = Device::cuda(); },
       "log_decay must be on cpu, got cuda:0"},
      {"gate_shape",
       [](Forward& a) {
         a.gate = shaped(*a.gate, {2, 5, 15});
       },
       "gate must have shape [B,T,D] = [2,5,16], got [2,5,15]"},
      {"gate_dtype", [](Forward& a) { a.gate->dtype = DType::kBFloat16; },
       "gate must have dtype fp32, got bf16"},
      {"gate_bytes", [](Forward& a) { a.gate->data = shift(a.gate->data, 2); },
       "gate must start at a multiple of its 4-byte element, got an address 2 bytes past one"},
      {"initial_shape",
       [](Forward& a) {
         a.initial_state = shaped(*a.initial_state, {16, 2});
       },
       "initial_state must have shape [B,D] = [2,16], got [16,2]"},
      {"initial_dtype", [](Forward& a) { a.initial_state->dtype = DType::kFloat16; },
       "initial_state must have dtype fp32, got fp16"},
      {"final_strides", [](Forward& a) { a.final_state->strides[0] = 17; },
       "final_state must be contiguous, got shape [2,16] with strides [17,1]"},
      {"final_shape_lists",
       [](Forward& a) {
         a.final_state = shaped(*a.final_state, {1, 16});
       },
       "final_state must have shape [N,D] = [3,16], got [1,16]", kWithLists},
      {"lists_with_batches",
       [](Forward& a) { a.cu_seqlens = TensorView::contiguous(a.x.data, DType::kInt32, {3}); },
       "cu_seqlens needs B = 1, got B = 2"},
      {"lists_dtype", [](Forward& a) { a.cu_seqlens->dtype = DType::kFloat32; },
       "cu_seqlens must have dtype int32, got fp32", kWithLists},
      {"out_shape",
       [](Forward& a) {
         a.out = shaped(a.out, {2, 5, 8});
       },
       "out must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"out_over_x", [](Forward& a) { a.out.data = a.x.data; },
       "out must not overlap x, got views that share memory"},
      {"out_over_decay", [](Forward& a) { a.out.data = a.log_decay->data; },
       "out must not overlap log_decay, got views that share memory"},
      {"out_over_gate", [](Forward& a) { a.out.data = a.gate->data; },
       "out must not overlap gate, got views that share memory"},
      {"out_over_initial", [](Forward& a) { a.out.data = a.initial_state->data; },
       "out must not overlap initial_state, got views that share memory"},
      {"out_over_itself", [](Forward& a) { a.out.strides[1] = 8; },
       "out must not overlap itself, got shape [2,5,16] with strides [80,8,1]"},
      {"final_over_out", [](Forward& a) { a.final_state->data = a.out.data; },
       "final_state must not overlap out, got views that share memory"},
      {"final_shifted_initial",
       [](Forward& a) { a.final_state->data = shift(a.initial_state->data, 4); },
       "final_state must not overlap initial_state, got views that share memory"},
  };
  return table;
}

const std::vector<Refusal<Backward>>& backward_refusals() {
  static const std::vector<Refusal<Backward>> table = {
      {"no_decay",
       [](Backward& a) {
         a.log_decay.reset();
         a.d_log_decay.reset();
       },
       "exactly one of decay and log_decay must be given, got neither"},
      {"d_out_shape",
       [](Backward& a) {
         a.d_out = shaped(a.d_out, {2, 5, 8});
       },
       "d_out must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"d_out_dtype", [](Backward& a) { a.d_out.dtype = DType::kFloat16; },
       "d_out must have dtype fp32, got fp16"},
      {"d_decay_without_decay",
       [](Backward& a) {
         a.d_decay = a.d_log_decay;
         a.d_log_decay.reset();
       },
       "d_decay needs decay"},
      {"d_log_decay_without_log_decay",
       [](Backward& a) {
         a.decay = a.log_decay;
         a.log_decay.reset();
       },
       "d_log_decay needs log_decay"},
      {"d_log_decay_dtype", [](Backward& a) { a.d_log_decay->dtype = DType::kBFloat16; },
       "d_log_decay must have dtype fp32, got bf16"},
      {"d_gate_without_gate", [](Backward& a) { a.gate.reset(); }, "d_gate needs gate"},
      {"d_gate_shape",
       [](Backward& a) {
         a.d_gate = shaped(*a.d_gate, {2, 4, 16});
       },
       "d_gate must have shape [B,T,D] = [2,5,16], got [2,4,16]"},
      {"dx_device", [](Backward& a) { a.dx->device = Device::cuda(); },
       "dx must be on cpu, got cuda:0"},
      {"d_initial_shape",
       [](Backward& a) {
         a.d_initial_state = shaped(*a.d_initial_state, {2, 8});
       },
       "d_initial_state must have shape [B,D] = [2,16], got [2,8]"},
      {"d_final_lists",
       [](Backward& a) {
         a.d_final_state = shaped(*a.d_final_state, {1, 16});
       },
       "d_final_state must have shape [N,D] = [3,16], got [1,16]", kWithLists},
      {"dx_over_x", [](Backward& a) { a.dx->data = a.x.data; },
       "dx must not overlap x, got views that share memory"},
      {"d_gate_over_d_out", [](Backward& a) { a.d_gate->data = a.d_out.data; },
       "d_gate must not overlap d_out, got views that share memory"},
      {"d_gate_over_dx", [](Backward& a) { a.d_gate->data = a.dx->data; },
       "d_gate must not overlap dx, got views that share memory"},
      {"d_initial_over_initial",
       [](Backward& a) { a.d_initial_state->data = a.initial_state->data; },
       "d_initial_state must not overlap initial_state, got views that share memory"},
  };
  return table;
}

class GatedScanForwardRefusal : public testing::TestWithParam<Refusal<Forward>> {};

TEST_P(GatedScanForwardRefusal, NamesOpArgumentExpectedAndGot) {
  ForwardCall call(GetParam().lists);
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gated_scan_forward] " + GetParam().text,
                 [&] { gated_scan_forward(call.args); });
  EXPECT_THROW(gated_scan_forward_workspace_bytes(call.args, DeviceProperties::cpu()),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, GatedScanForwardRefusal, testing::ValuesIn(forward_refusals()),
                         [](const auto& info) { return info.param.name; });

class GatedScanBackwardRefusal : public testing::TestWithParam<Refusal<Backward>> {};

TEST_P(GatedScanBackwardRefusal, NamesOpArgumentExpectedAndGot) {
  BackwardCall call(GetParam().lists);
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[gated_scan_backward] " + GetParam().text,
                 [&] { gated_scan_backward(call.args); });
  EXPECT_THROW(gated_scan_backward_workspace_bytes(call.args, DeviceProperties::cpu()),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, GatedScanBackwardRefusal, testing::ValuesIn(backward_refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GatedScanRefusals, ValidArgumentsPass) {
  for (const bool lists : {false, true}) {
    ForwardCall forward(lists);
    EXPECT_NO_THROW(gated_scan_forward(forward.args));
    EXPECT_EQ(gated_scan_forward_workspace_bytes(forward.args, DeviceProperties::cpu()), 0u);
    forward.args.final_state = forward.args.initial_state;
    EXPECT_NO_THROW(gated_scan_forward(forward.args));
    BackwardCall backward(lists);
    EXPECT_NO_THROW(gated_scan_backward(backward.args));
    EXPECT_EQ(gated_scan_backward_workspace_bytes(backward.args, DeviceProperties::cpu()), 0u);
  }
}

/// Values in device memory cannot be checked without a wait; in host memory they are.
TEST(GatedScanRefusals, SequenceOffsetsOnTheCpu) {
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 3, 2, 5}, {-1, 2, 3, 5}, {0, 2, 3, 6}}) {
    ForwardCall forward(true);
    BackwardCall backward(true);
    forward.offsets = backward.offsets = offsets;
    forward.args.cu_seqlens->data = forward.offsets.data();
    backward.args.cu_seqlens->data = backward.offsets.data();
    const CallMemory kept = forward.memory, kept_backward = backward.memory;
    std::string text = text_of<InvalidArgument>([&] { gated_scan_forward(forward.args); });
    EXPECT_EQ(text.find("[gated_scan_forward] cu_seqlens must "), 0u) << text;
    EXPECT_EQ(forward.memory.tensors, kept.tensors);
    text = text_of<InvalidArgument>([&] { gated_scan_backward(backward.args); });
    EXPECT_EQ(text.find("[gated_scan_backward] cu_seqlens must "), 0u) << text;
    EXPECT_EQ(backward.memory.tensors, kept_backward.tensors);
  }
}

TEST(GatedScanRefusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  ForwardCall call;
  for (TensorView* view : {&call.args.x, &*call.args.log_decay, &*call.args.gate,
                           &*call.args.initial_state, &call.args.out, &*call.args.final_state}) {
    view->device = Device::cuda();
  }
  const std::string text = text_of<Unsupported>([&] { gated_scan_forward(call.args); });
  EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem

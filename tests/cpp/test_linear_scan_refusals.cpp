// What linear_scan_forward and linear_scan_backward refuse, and in which words; what they share
// with gated_scan is in test_gated_scan_refusals.cpp. Nothing is written before.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5, kInput = 8, kD = 16;

struct ForwardCall {
  ForwardCall() {
    args = {.u = memory.tensor({kB, kT, kInput}),
            .weight = memory.tensor({kD, kInput}),
            .log_decay = memory.tensor({kB, kT, kD}),
            .gate = memory.tensor({kB, kT, kD}),
            .initial_state = memory.tensor({kB, kD}),
            .out = memory.tensor({kB, kT, kD}),
            .final_state = memory.tensor({kB, kD})};
  }
  CallMemory memory;
  LinearScanForwardArgs args;
};

struct BackwardCall {
  BackwardCall() {
    args = {.u = memory.tensor({kB, kT, kInput}),
            .weight = memory.tensor({kD, kInput}),
            .log_decay = memory.tensor({kB, kT, kD}),
            .gate = memory.tensor({kB, kT, kD}),
            .initial_state = memory.tensor({kB, kD}),
            .d_out = memory.tensor({kB, kT, kD}),
            .d_final_state = memory.tensor({kB, kD}),
            .du = memory.tensor({kB, kT, kInput}),
            .d_weight = memory.tensor({kD, kInput}),
            .d_log_decay = memory.tensor({kB, kT, kD}),
            .d_gate = memory.tensor({kB, kT, kD}),
            .d_initial_state = memory.tensor({kB, kD})};
  }
  CallMemory memory;
  LinearScanBackwardArgs args;
};

using Forward = LinearScanForwardArgs;
using Backward = LinearScanBackwardArgs;

const std::vector<Refusal<Forward>>& forward_refusals() {
  static const std::vector<Refusal<Forward>> table = {
      {"u_rank",
       [](Forward& a) {
         a.u = shaped(a.u, {10, 8});
       },
       "u must have shape [B,T,d], got [10,8]"},
      {"weight_rank",
       [](Forward& a) {
         a.weight = shaped(a.weight, {1, 16, 8});
       },
       "weight must have shape [D,d], got [1,16,8]"},
      {"weight_width",
       [](Forward& a) {
         a.weight = shaped(a.weight, {16, 4});
       },
       "weight must have shape [D,d] = [16,8], got [16,4]"},
      {"weight_without_channels",
       [](Forward& a) {
         a.weight = shaped(a.weight, {0, 8});
       },
       "weight must have D and d in [1,2^31), got shape [0,8]"},
      {"weight_dtype", [](Forward& a) { a.weight.dtype = DType::kBFloat16; },
       "weight must have dtype fp32, got bf16"},
      {"weight_stride",
       [](Forward& a) {
         a.weight.strides = {1, 16};
       },
       "weight must have innermost stride 1, got strides [1,16]"},
      {"u_dtype", [](Forward& a) { a.u.dtype = DType::kInt32; },
       "u must have dtype bf16 or fp16 or fp32 on cpu, got int32"},
      {"fp32_on_cuda", [](Forward& a) { a.u.device = Device::cuda(); },
       "u must have dtype bf16 or fp16 on cuda:0, got fp32"},
      {"no_decay", [](Forward& a) { a.log_decay.reset(); },
       "exactly one of decay and log_decay must be given, got neither"},
      {"decay_shape",
       [](Forward& a) {
         a.log_decay = shaped(*a.log_decay, {2, 5, 8});
       },
       "log_decay must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"out_shape",
       [](Forward& a) {
         a.out = shaped(a.out, {2, 5, 8});
       },
       "out must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"out_over_u", [](Forward& a) { a.out.data = a.u.data; },
       "out must not overlap u, got views that share memory"},
      {"final_over_weight", [](Forward& a) { a.final_state->data = a.weight.data; },
       "final_state must not overlap weight, got views that share memory"},
  };
  return table;
}

const std::vector<Refusal<Backward>>& backward_refusals() {
  static const std::vector<Refusal<Backward>> table = {
      {"du_shape",
       [](Backward& a) {
         a.du = shaped(*a.du, {2, 5, 16});
       },
       "du must have shape [B,T,d] = [2,5,8], got [2,5,16]"},
      {"d_weight_shape",
       [](Backward& a) {
         a.d_weight = shaped(*a.d_weight, {8, 16});
       },
       "d_weight must have shape [D,d] = [16,8], got [8,16]"},
      {"d_weight_dtype", [](Backward& a) { a.d_weight->dtype = DType::kFloat16; },
       "d_weight must have dtype fp32, got fp16"},
      {"d_out_shape",
       [](Backward& a) {
         a.d_out = shaped(a.d_out, {2, 5, 8});
       },
       "d_out must have shape [B,T,D] = [2,5,16], got [2,5,8]"},
      {"d_gate_without_gate", [](Backward& a) { a.gate.reset(); }, "d_gate needs gate"},
      {"du_over_u", [](Backward& a) { a.du->data = a.u.data; },
       "du must not overlap u, got views that share memory"},
      {"d_weight_over_du", [](Backward& a) { a.d_weight->data = a.du->data; },
       "d_weight must not overlap du, got views that share memory"},
      {"d_weight_over_itself", [](Backward& a) { a.d_weight->strides[0] = 4; },
       "d_weight must not overlap itself, got shape [16,8] with strides [4,1]"},
  };
  return table;
}

class LinearScanForwardRefusal : public testing::TestWithParam<Refusal<Forward>> {};

TEST_P(LinearScanForwardRefusal, NamesOpArgumentExpectedAndGot) {
  ForwardCall call;
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[linear_scan_forward] " + GetParam().text,
                 [&] { linear_scan_forward(call.args); });
  EXPECT_THROW(linear_scan_forward_workspace_bytes(call.args, DeviceProperties::cpu()),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, LinearScanForwardRefusal, testing::ValuesIn(forward_refusals()),
                         [](const auto& info) { return info.param.name; });

class LinearScanBackwardRefusal : public testing::TestWithParam<Refusal<Backward>> {};

TEST_P(LinearScanBackwardRefusal, NamesOpArgumentExpectedAndGot) {
  BackwardCall call;
  GetParam().spoil(call.args);
  expect_refused(call.memory, "[linear_scan_backward] " + GetParam().text,
                 [&] { linear_scan_backward(call.args); });
  EXPECT_THROW(linear_scan_backward_workspace_bytes(call.args, DeviceProperties::cpu()),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Argument, LinearScanBackwardRefusal,
                         testing::ValuesIn(backward_refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(LinearScanRefusals, ValidArgumentsPass) {
  ForwardCall forward;
  EXPECT_NO_THROW(linear_scan_forward(forward.args));
  EXPECT_EQ(linear_scan_forward_workspace_bytes(forward.args, DeviceProperties::cpu()), 0u);
  BackwardCall backward;
  EXPECT_NO_THROW(linear_scan_backward(backward.args));
  EXPECT_EQ(linear_scan_backward_workspace_bytes(backward.args, DeviceProperties::cpu()), 0u);
}

}  // namespace
}  // namespace tandem

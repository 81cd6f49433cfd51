// With Context::batch_invariant a sequence's results have the same bits alone, as a row of a batch
// and packed with others, whatever the number and lengths of those.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/calls/operation.h"

namespace tandem::tools {
namespace {

/// Tokens [begin, end) of a set's tensors, the rows of a batch one behind the other.
struct Tokens {
  std::int64_t sequence;
  std::int64_t begin;
  std::int64_t end;
};

/// Contiguous tensors of one case, and what a call makes of them.
struct Call {
  const Operation& operation;
  TensorSet set;
  std::vector<Tokens> sequences;
  Buffers after;

  void run(Device device) {
    const Placement placement(set, device);
    operation.call(set, placement.bases(), device, {.batch_invariant = true});
    after = placement.download();
  }
};

/// What of a tensor belongs to a sequence, as bytes from its first element on; the whole of what
/// all sequences share.
struct Part {
  std::int64_t begin;
  std::int64_t bytes;
  bool shared = false;
};
Part part_of(const Operation& operation, const NamedTensor& tensor, const Tokens& tokens) {
  const Parameter* row = nullptr;
  for (const Signature* call : operation.calls) {
    if (row == nullptr) row = call->find(tensor.name);
    if (row != nullptr && row->source != nullptr) row = call->find(row->source);
  }
  const auto has_axes = [&](std::string_view first) {
    const std::string text = row->axes_text;
    const std::string choice =
        tensor.shape.rank() == 1 ? text : text.substr(text.find('|') + 1);  // "H|B,T,H"
    return choice.starts_with(first);
  };
  const std::int64_t all = tensor.shape.product() * size_of(tensor.dtype);
  const std::int64_t rows = tensor.shape.rank() > 1 ? tensor.shape[0] * tensor.shape[1] : 0;
  if (has_axes("B,T/")) return {0, 0};  // at tokens of a packed row, not of its sequences
  // A row of each head, not of each token, where sequences are packed: tokens lie apart.
  if (has_axes("B,H,TQ") && tensor.shape[0] == 1) return {0, 0};
  if (has_axes("B,T,") || has_axes("B,TQ,") || has_axes("B,TK,")) {
    if (rows == 0) return {0, 0};
    return {all / rows * tokens.begin, all / rows * (tokens.end - tokens.begin)};
  }
  if (has_axes("N,") || has_axes("B,")) {
    return {all / tensor.shape[0] * tokens.sequence, all / tensor.shape[0]};
  }
  return {0, all, true};
}

template <class Buffer>
auto bytes_of(Buffer& buffers, const NamedTensor& tensor) {
  return buffers[tensor.buffer].data() + tensor.offset;
}

/// Makes the inputs of one sequence those of a call of its own.
void take_inputs(const Call& from, const Tokens& tokens, Call& to) {
  for (const NamedTensor& tensor : to.set.tensors) {
    if (tensor.output && tensor.name != "state") continue;
    if (tensor.name.starts_with("cu_seqlens")) continue;
    const NamedTensor& source = from.set.get(tensor.name);
    const Part part = part_of(from.operation, source, tokens);
    std::memcpy(bytes_of(to.set.buffers, tensor), bytes_of(from.set.buffers, source) + part.begin,
                part.bytes);
  }
}

/// Names the outputs of which a sequence has other bits in `all` than alone.
std::string differences(const Call& all, const Tokens& tokens, const Call& alone) {
  std::string names;
  for (const NamedTensor& tensor : alone.set.tensors) {
    if (!tensor.output) continue;
    const NamedTensor& of_all = all.set.get(tensor.name);
    const Part part = part_of(all.operation, of_all, tokens);
    if (part.shared) continue;  // summed over all sequences
    if (std::memcmp(bytes_of(alone.after, tensor), bytes_of(all.after, of_all) + part.begin,
                    part.bytes) != 0) {
      names += " " + tensor.name;
    }
  }
  return names;
}

struct Shape {
  std::string name;
  const char* op;
  std::string fields;  // of a case, beside B, T and cu_seqlens
  std::vector<std::string> directions;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

/// A case of these axes and fields.
Case case_of(const Shape& shape, const std::string& axes, const std::string& offsets = "") {
  std::string fields = shape.fields;
  fields.replace(fields.find("AXES"), 4, axes);
  return parse_cases(shape.op,
                     R"([{"name": "a", "dtype": ["bf16"], "tags": [], )" + offsets + fields + "}]",
                     "test")[0];
}

Call batch_of(const Operation& operation, const Shape& shape, DType dtype, std::int64_t B,
              std::int64_t T) {
  const bool step = operation.direction == "step";
  const std::string axes =
      R"("B": )" + std::to_string(B) + (step ? "" : R"(, "T": )" + std::to_string(T));
  Call call{operation, operation.make(case_of(shape, axes), dtype, 1), {}, {}};
  for (std::int64_t b = 0; b < B; ++b) call.sequences.push_back({b, b * T, (b + 1) * T});
  return call;
}

Call packed_of(const Operation& operation, const Shape& shape, DType dtype,
               const std::vector<std::int64_t>& offsets, std::int64_t T) {
  std::string list;
  for (const std::int64_t offset : offsets)
    list += (list.empty() ? "" : ",") + std::to_string(offset);
  Call call{operation,
            operation.make(case_of(shape, R"("B": 1, "T": )" + std::to_string(T),
                                   R"("cu_seqlens": [)" + list + "], "),
                           dtype, 2),
            {},
            {}};
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    call.sequences.push_back({static_cast<std::int64_t>(n), offsets[n], offsets[n + 1]});
  }
  return call;
}

class BatchInvariance : public testing::TestWithParam<Shape> {
 protected:
  /// Checks every sequence of a call against a call of it alone.
  static void expect_same_alone(Call all, const Shape& shape, DType dtype, Device device) {
    all.run(device);
    for (const Tokens& tokens : all.sequences) {
      Call alone = batch_of(all.operation, shape, dtype, 1, tokens.end - tokens.begin);
      take_inputs(all, tokens, alone);
      alone.run(device);
      EXPECT_EQ(differences(all, tokens, alone), "")
          << title(all.operation) << " " << to_string(dtype) << ", sequence " << tokens.sequence
          << " of " << all.sequences.size() << ", tokens " << tokens.begin << " to " << tokens.end;
    }
  }

  static void expect_invariance(const Shape& shape, const std::vector<DType>& dtypes,
                                Device device) {
    for (const std::string& direction : shape.directions) {
      const Operation& operation = find_operation(shape.op, direction);
      for (const DType dtype : dtypes) {
        if (device.type == DeviceType::kCuda && !operation.runs_on_cuda(dtype)) continue;
        if (direction == "step") {
          for (const std::int64_t B : {2, 67}) {
            expect_same_alone(batch_of(operation, shape, dtype, B, 1), shape, dtype, device);
          }
          continue;
        }
        // Lengths around those of tiles and of groups of tiles, where segments would be cut too.
        for (const std::int64_t T : {65, 1100}) {
          expect_same_alone(batch_of(operation, shape, dtype, 2, T), shape, dtype, device);
        }
        expect_same_alone(
            packed_of(operation, shape, dtype, {3, 4, 67, 67, 131, 196, 800, 1055, 2500}, 2507),
            shape, dtype, device);
      }
    }
  }
};

TEST_P(BatchInvariance, OfTheCpu) {
  expect_invariance(GetParam(), {DType::kBFloat16, DType::kFloat32}, Device::cpu());
}

using GpuBatchInvariance = BatchInvariance;
TEST_P(GpuBatchInvariance, OfTheGpu) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_invariance(GetParam(), {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                    Device::cuda());
}

std::vector<Shape> shapes() {
  const std::string gla = R"("states": "both", "decay": {"kind": "DECAY", "distribution":
      "normal_bench"}, "axes": {AXES, )";
  const auto with = [](std::string fields, const char* decay) {
    return fields.replace(fields.find("DECAY"), 5, decay);
  };
  const std::string scan = R"("states": "both", "axes": {AXES, )";
  const std::string log_decay =
      R"(}, "decay": {"kind": "log_decay", "distribution": "normal_bench"})";
  const std::vector<std::string> all = {"forward", "backward", "state", "state_backward"};
  const std::vector<std::string> both = {"forward", "backward"};
  const std::string not_kept = log_decay + R"(, "kept": "no")";
  return {
      {"gla_k64", "gla", with(gla, "per_token") + R"("H": 3, "K": 64})", all},
      {"gla_k128_grouped", "gla", with(gla, "per_token") + R"("H": 4, "HQ": 2, "K": 128})", all},
      {"gla_k40_v72", "gla", with(gla, "per_token") + R"("H": 2, "K": 40, "V": 72})", all},
      {"gla_constant", "gla", with(gla, "constant") + R"("H": 2, "K": 128, "V": 64})", all},
      {"gla_step",
       "gla",
       R"("directions": ["step"], "states": "in_place", "decay": {"kind": "per_token", "distribution":
          "normal_bench"}, "axes": {AXES, "H": 32, "K": 128})",
       {"step"}},
      {"gated_scan_d72", "gated_scan", scan + R"("D": 72)" + log_decay, both},
      {"gated_scan_d33", "gated_scan",
       scan + R"("D": 33}, "decay": {"kind": "decay", "distribution": "normal_bench"})", both},
      {"gated_scan_fp32_decay", "gated_scan",
       scan + R"("D": 40)" + log_decay + R"(, "decay_dtype": "fp32")", both},
      {"causal_conv1d_d72", "causal_conv1d", scan + R"("D": 72, "W": 4}, "bias": "same")", both},
      {"causal_conv1d_step",
       "causal_conv1d",
       R"("directions": ["step"], "axes": {AXES, "D": 72, "W": 4}, "bias": "same")",
       {"step"}},
      {"causal_conv1d_d33", "causal_conv1d", scan + R"("D": 33, "W": 3}, "weight": "fp32")", both},
      {"linear_scan_d72", "linear_scan", scan + R"("d": 64, "D": 72)" + not_kept, both},
      {"linear_scan_d33", "linear_scan", scan + R"("d": 20, "D": 33)" + not_kept, both},
      {"linear_scan_no_gate", "linear_scan",
       scan + R"("d": 64, "D": 256)" + not_kept + R"(, "gate": "none")", both},
      {"linear_scan_kept",
       "linear_scan",
       scan + R"("d": 64, "D": 72)" + log_decay,
       {"forward_backward"}},
      {"attention_causal",
       "attention",
       R"("causal": "yes", "axes": {AXES, "H": 2, "K": 64})",
       {"forward", "forward_backward"}},
      {"attention_grouped_window",
       "attention",
       R"("window_left": 100, "window_right": 30, "axes": {AXES, "H": 4, "HKV": 2, "K": 64})",
       {"forward_backward"}},
  };
}
std::string name_of(const testing::TestParamInfo<Shape>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Cpu, BatchInvariance, testing::ValuesIn(shapes()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, GpuBatchInvariance, testing::ValuesIn(shapes()), name_of);

}  // namespace
}  // namespace tandem::tools

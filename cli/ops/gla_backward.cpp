// gla's backward for the tools: its tensors, its call, its cost.
#include <fmt/format.h>

#include <optional>
#include <stdexcept>

#include "cli/calls/file_inputs.h"
#include "cli/ops/gla.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"q", "k", "v", "d_o"};
const std::vector<std::string> kOptional = {"log_decay", "initial_state", "cu_seqlens",
                                            "d_final_state"};

/// Makes contiguous outputs like these inputs.
void add_gradient(TensorSet& set, const char* output, const char* input) {
  if (!set.find(input)) return;
  const NamedTensor like = set.get(input);
  add_tensor(set, output, like.dtype, like.shape, contiguous_strides(like.shape), true);
}

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "gla backward", kInputs, kOptional);
  for (const auto& [name, text] : settings) {
    if (name != "scale") {
      throw std::runtime_error(
          fmt::format("--set {}: gla backward has no such setting (scale)", name));
    }
    set.scalars["scale"] = parse_number(name, text);
  }
  add_gradient(set, "dq", "q");
  add_gradient(set, "dk", "k");
  add_gradient(set, "dv", "v");
  add_gradient(set, "d_log_decay", "log_decay");
  add_gradient(set, "d_initial_state", "initial_state");
  return set;
}

GlaBackwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  GlaBackwardArgs args;
  args.q = views.required("q");
  args.k = views.required("k");
  args.v = views.required("v");
  args.log_decay = views.optional("log_decay");
  args.initial_state = views.optional("initial_state");
  args.cu_seqlens = views.optional("cu_seqlens");
  args.d_o = views.required("d_o");
  args.d_final_state = views.optional("d_final_state");
  args.dq = views.optional("dq");
  args.dk = views.optional("dk");
  args.dv = views.optional("dv");
  args.d_log_decay = views.optional("d_log_decay");
  args.d_initial_state = views.optional("d_initial_state");
  if (set.scalars.count("scale")) args.scale = set.scalars.at("scale");
  return args;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_backward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_backward_workspace_bytes(to_args(set, bases, device), device_properties(device));
}

/// Matrix work of the chunked algorithm at chunk C = 64, per token and head as in the forward:
/// Q K^T, W K and W^T Q are C*K multiply-adds each, dO V^T and A^T dO are C*V, and dO S^T, V dS^T,
/// K dS, Q^T dO and the states' K^T V are K*V.
Cost cost(const TensorSet& set) {
  const GlaForwardProblem problem = host_backward_problem(set).forward;
  const double K = problem.K, V = problem.V;
  constexpr double C = 64;
  const double flops = token_count(problem) * problem.H * 2 * (3 * C * K + 2 * C * V + 5 * K * V);
  return {bytes_of(set, kGlaBackward), flops};
}

std::string shape(const TensorSet& set) {
  return gla_shape(set.get("q").shape, set.get("v").shape);
}

}  // namespace

/// Makes the forward's tensors, with outputs replaced by their gradients, and the inputs'
/// gradients.
TensorSet make_gla_backward(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_gla(one, dtype, seed);
  const auto fill = [&](NamedTensor& tensor, const char* name) {
    tensor.name = name;
    tensor.output = false;
    fill_normal(tensor, set.buffers, RandomStream(seed + one.seed, name));
  };
  if (one.states == States::kInPlace) {  // no gradient is updated in place
    set.tensors.pop_back();
    const NamedTensor initial = set.get("initial_state");
    add_tensor(set, "final_state", initial.dtype, initial.shape, initial.strides, true);
  }
  for (NamedTensor& tensor : set.tensors) {
    if (tensor.name == "o") fill(tensor, "d_o");
    if (tensor.name == "final_state") fill(tensor, "d_final_state");
  }
  const std::int64_t shift =
      one.strides == Strides::kMisaligned || one.strides == Strides::kOdd ? 1 : 0;
  const auto add = [&](const char* output, const char* input) {
    const Dims shape = set.get(input).shape;
    add_tensor(set, output, dtype, shape, activation_strides(one.strides, shape, true), true,
               shift);
  };
  add("dq", "q");
  add("dk", "k");
  add("dv", "v");
  add_gradient(set, "d_log_decay", "log_decay");
  add_gradient(set, "d_initial_state", "initial_state");
  return set;
}

GlaBackwardProblem host_backward_problem(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

const Operation kGlaBackward = {.name = "gla",
                                .direction = "backward",
                                .function = "gla_backward",
                                .inputs = kInputs,
                                .optional_inputs = kOptional,
                                .outputs = {"dq", "dk", "dv", "d_log_decay", "d_initial_state"},
                                .make = make_gla_backward,
                                .from_file = from_file,
                                .call = call,
                                .workspace_bytes = workspace_bytes,
                                .expect = expect_gla_backward,
                                .cost = cost,
                                .shape = shape};

}  // namespace tandem::tools

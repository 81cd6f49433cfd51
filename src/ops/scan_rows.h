// What the tables of the scans (gated_scan, linear_scan) share, and the parts of their problems
// that those rows become.
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "ops/gated_scan_problem.h"
#include "ops/signature.h"
#include "ops/views.h"

namespace tandem {

/// The inputs beside x, forward and backward.
template <class Args>
void append_scan_inputs(std::vector<Parameter>& table) {
  table.push_back(input<&Args::decay>("decay", "B,T,D", Element::kSameOrFp32));
  table.push_back(
      input<&Args::log_decay>("log_decay", "B,T,D", Element::kSameOrFp32).instead("decay"));
  table.push_back(input<&Args::gate>("gate", "B,T,D"));
  table.push_back(
      input<&Args::initial_state>("initial_state", "N,D", Element::kFp32, Layout::kContiguous));
}

/// A scan's forward call; `first` are the inputs that x is made of.
template <class Args>
std::vector<Parameter> scan_forward_table(std::vector<Parameter> first) {
  std::vector<Parameter> table = std::move(first);
  append_scan_inputs<Args>(table);
  table.push_back(
      output<&Args::final_state>("final_state", "N,D", Element::kFp32, Layout::kContiguous)
          .or_in("initial_state"));
  table.push_back(cu_seqlens<&Args::cu_seqlens>());
  table.push_back(output<&Args::out>("out", "B,T,D"));
  return table;
}

/// A scan's backward call; `gradients` are those by `first`.
template <class Args>
std::vector<Parameter> scan_backward_table(std::vector<Parameter> first,
                                           const std::vector<Parameter>& gradients) {
  std::vector<Parameter> table = std::move(first);
  append_scan_inputs<Args>(table);
  table.push_back(cu_seqlens<&Args::cu_seqlens>());
  table.push_back(input<&Args::d_out>("d_out", "B,T,D"));
  table.push_back(
      input<&Args::d_final_state>("d_final_state", "N,D", Element::kFp32, Layout::kContiguous));
  table.insert(table.end(), gradients.begin(), gradients.end());
  table.push_back(gradient<&Args::d_decay>("d_decay", "decay"));
  table.push_back(gradient<&Args::d_log_decay>("d_log_decay", "log_decay"));
  table.push_back(gradient<&Args::d_gate>("d_gate", "gate"));
  table.push_back(gradient<&Args::d_initial_state>("d_initial_state", "initial_state", false));
  return table;
}

static_assert(kKeptStateTokens == 128, "the tables say T/128");

/// What a forward keeps for its backward.
template <class Args>
Parameter kept_states_output() {
  return output<&Args::states>("states", "B,T/128,D", Element::kFp32, Layout::kContiguous);
}
template <class Args>
Parameter kept_states_input() {
  return input<&Args::states>("states", "B,T/128,D", Element::kFp32, Layout::kContiguous);
}

template <class Args>
void set_decay(const Args& args, ScanRecurrence& scan) {
  scan.log_decay = args.log_decay.has_value();
  const TensorView& decay = scan.log_decay ? *args.log_decay : *args.decay;
  scan.decay_dtype = decay.dtype;
  scan.decay = token_tensor(decay);
}

/// The recurrence of checked arguments; `tokens` is [B,T,...].
template <class Args>
ScanRecurrence scan_recurrence(const Args& args, const TensorView& tokens, std::int64_t D) {
  ScanRecurrence scan;
  scan.dtype = tokens.dtype;
  scan.device = tokens.device;
  scan.B = tokens.shape[0];
  scan.T = tokens.shape[1];
  scan.N = sequence_count(args.cu_seqlens, scan.B);
  scan.D = static_cast<int>(D);
  set_decay(args, scan);
  scan.gate = token_tensor(args.gate);
  scan.initial_state = state_data(args.initial_state);
  scan.cu_seqlens = offsets_data(args.cu_seqlens);
  return scan;
}

template <class Args>
ScanGradients scan_gradients(const Args& args) {
  ScanGradients gradients;
  gradients.d_out = token_tensor(args.d_out);
  gradients.d_final_state = state_data(args.d_final_state);
  gradients.states = state_data(args.states);
  gradients.d_decay = token_tensor(args.log_decay ? args.d_log_decay : args.d_decay);
  gradients.d_gate = token_tensor(args.d_gate);
  gradients.d_initial_state = state_data(args.d_initial_state);
  return gradients;
}

}  // namespace tandem

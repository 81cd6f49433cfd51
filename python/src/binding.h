// How torch passes a call: the arguments and results of its schema as lists to go through, and all
// tables as a text for Python. Nothing here sees torch.
#pragma once

#include <string>
#include <vector>

#include "ops/signature.h"

namespace tandem::extension {

/// One argument of torch's schema: a row of the table, or the flag that asks for an output.
struct Argument {
  const Parameter* row;
  std::string flag;  // "" where the row itself is passed

  std::string name() const { return flag.empty() ? row->name : flag; }
};

/// One result of torch's schema.
struct Result {
  struct Choice {
    const Parameter* row;
    const Parameter* source;  // of a gradient: its input, else null
  };
  std::vector<Choice> choices;  // two where inputs stand for each other: of the one that is given
  int flag = -1;                // the argument that asks for it; -1: it is always there
  int fp32_flag = -1;           // the argument that asks for fp32; -1: the table says its dtype

  const Parameter& row() const { return *choices.front().row; }
};

struct Binding {
  explicit Binding(const Signature& signature);

  /// Whether torch, which takes 64 arguments at most, is passed numbers and flags as two lists
  /// behind the tensors: the places among `arguments` of those that are given, and their values.
  bool is_packed() const { return arguments.size() > 64; }
  /// How many arguments torch's schema has.
  std::size_t passed() const;

  /// "gated_scan_forward(Tensor x, ..., bool output_final_state, ...) -> (Tensor, Tensor?)".
  std::string schema() const;

  const Signature* signature;
  bool is_step;  // of one token: called directly, its tensors may have the whole op's time axis
  std::vector<Argument> arguments;
  std::vector<Result> results;
};

/// The bindings of signatures(), in that order.
const std::vector<Binding>& bindings();

/// All of them as JSON; tandem/_tables.py says what it reads.
std::string tables_as_json();

}  // namespace tandem::extension

// What blocks check themselves: of tensors that reach no op, and across ops.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blocks/buffers.h"
#include "core/check.h"
#include "core/real.h"
#include "tandem/blocks/saved.h"
#include "tandem/tensor.h"

namespace tandem {

/// Checks a vector of weights, or the gradient of one, beside x.
inline void check_vector(const Argument& vector, const char* axes, std::int64_t size,
                         const TensorView& x) {
  const DType real = real_dtype(x.dtype), dtype = vector.view.dtype;
  check_shape(vector, axes, {size});
  if (dtype != real && dtype != x.dtype) {
    refuse(vector.op, std::string(vector.name) + " must have dtype " + to_string(x.dtype) +
                          (real == x.dtype ? "" : " or fp32") + ", got " + to_string(dtype));
  }
  check_device(vector, x.device);
  check_data(vector);
  check_alignment(vector);
  check_contiguous(vector);
}

/// Checks what a block takes for its tokens, an input or an output. `axes` are "[B,T,d]".
inline void check_tokens(const Argument& tokens, const char* axes, int rank) {
  check_rank(tokens, axes, rank);
  check_data(tokens);
  check_alignment(tokens);
  check_contiguous(tokens);
}

/// Checks the tokens of a step, [B,d], and returns them as [B,1,d].
inline TensorView checked_token(const Argument& token) {
  check_tokens(token, "[B,d]", 2);
  return reshaped(token.view, {token.view.shape[0], 1, token.view.shape[1]});
}

/// Checks the tokens of a backward, [B,T,d]: d_out, and dx where it is wanted.
inline void check_token_gradients(const char* call, const TensorView& x, const TensorView& d_out,
                                  const std::optional<TensorView>& dx) {
  const Argument given = {call, "d_out", d_out};
  check_tokens(given, "[B,T,d]", 3);
  check_shape(given, "x's", x.shape);
  if (!dx) return;
  const Argument wanted = {call, "dx", *dx};
  check_tokens(wanted, "[B,T,d]", 3);
  check_shape(wanted, "x's", x.shape);
  check_dtype(wanted, x.dtype);
  check_device(wanted, x.device);
}

inline void check_eps(const char* call, double eps) {
  if (std::isfinite(eps) && eps >= 0) return;
  refuse(call, "eps must be finite and not negative, got " + std::to_string(eps));
}

/// Checks memory that a forward saves `bytes` in, and returns it as a tensor.
inline TensorView checked_saved(const char* call, const SavedMemory& saved, std::size_t bytes,
                                Device device) {
  if (saved.bytes < bytes) {
    refuse(call, "saved must have at least " + std::to_string(bytes) + " bytes, got " +
                     std::to_string(saved.bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(saved.data) % Buffers::kAlignment != 0) {
    refuse(call, "saved must be aligned to 256 bytes");
  }
  const TensorView view = TensorView::contiguous(
      saved.data, DType::kInt32, {static_cast<std::int64_t>(bytes / sizeof(std::int32_t))}, device);
  check_data({call, "saved", view});
  return view;
}

/// Tensors by their names, as a call's checks take them.
class Arguments {
 public:
  explicit Arguments(const char* call) : call_(call) {}

  void add(const char* name, const TensorView& view) { all_.push_back({call_, name, view}); }
  void add(const char* name, const std::optional<TensorView>& view) {
    if (view) add(name, *view);
  }
  const std::vector<Argument>& all() const { return all_; }

 private:
  const char* call_;
  std::vector<Argument> all_;
};

/// Checks that outputs share no memory with each other nor with inputs.
inline void check_apart(const std::vector<Argument>& outputs, const std::vector<Argument>& inputs) {
  for (const Argument& input : inputs) check_data(input);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_data(outputs[i]);
    for (const Argument& input : inputs) check_disjoint(outputs[i], input);
    for (std::size_t j = 0; j < i; ++j) check_disjoint(outputs[i], outputs[j]);
  }
}

}  // namespace tandem

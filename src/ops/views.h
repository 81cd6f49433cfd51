// Checked views as the fields of problems: data and strides. An absent one has null data.
#pragma once

#include <cstdint>
#include <optional>

#include "core/strided_tensor.h"
#include "tandem/tensor.h"

namespace tandem {

/// [B,T,heads,dim].
inline StridedTensor strided_tensor(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}

/// [B,T,dim].
inline TokenTensor token_tensor(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1]};
}

inline MatrixTensor matrix_tensor(const TensorView& view) { return {view.data, view.strides[0]}; }

inline StridedTensor strided_tensor(const std::optional<TensorView>& view) {
  return view ? strided_tensor(*view) : StridedTensor{};
}

inline TokenTensor token_tensor(const std::optional<TensorView>& view) {
  return view ? token_tensor(*view) : TokenTensor{};
}

inline MatrixTensor matrix_tensor(const std::optional<TensorView>& view) {
  return view ? matrix_tensor(*view) : MatrixTensor{};
}

/// A contiguous tensor of fp32, or of fp64 in a problem of that (gla_problem.h).
inline float* state_data(const std::optional<TensorView>& view) {
  return view ? static_cast<float*>(view->data) : nullptr;
}

inline const std::int32_t* offsets_data(const std::optional<TensorView>& cu_seqlens) {
  return cu_seqlens ? static_cast<const std::int32_t*>(cu_seqlens->data) : nullptr;
}

/// How many sequences a call has.
inline std::int64_t sequence_count(const std::optional<TensorView>& cu_seqlens, std::int64_t B) {
  return cu_seqlens ? cu_seqlens->shape[0] - 1 : B;
}

}  // namespace tandem

#include "cuda/attention/operands.h"

#include <utility>

#include "cuda/runtime/copy.h"

namespace tandem::cuda::attention {
namespace {

bool is_empty(const TileExtents& extents) {
  return extents.batch == 0 || extents.time == 0 || extents.heads == 0 || extents.dim == 0;
}

/// Columns of a row of 16-bit elements that is a multiple of 16 bytes.
std::int64_t padded(std::int64_t columns) { return ceil_div(columns, 8) * 8; }

}  // namespace

void Operands::add(StridedTensor& tensor, const TileExtents& extents, bool output,
                   std::string misfit) {
  operands_.push_back({&tensor, extents, output, std::move(misfit), tensor});
}

void Operands::add_input(const char* name, StridedTensor& tensor, const TileExtents& extents) {
  if (tensor.data == nullptr || is_empty(extents)) return;
  add(tensor, extents, false, plan_tile(name, tensor, dtype_, extents, 1).problem);
}

void Operands::add_output(const char* name, StridedTensor& tensor, const TileExtents& extents) {
  if (tensor.data == nullptr || is_empty(extents)) return;
  add(tensor, extents, true, plan_stored_tile(name, tensor, dtype_, extents, 1).problem);
}

std::string Operands::misfit() const {
  for (const Operand& operand : operands_) {
    if (!operand.misfit.empty()) return operand.misfit;
  }
  return "";
}

void Operands::plan_copies(WorkspaceLayout& workspace) {
  for (Operand& operand : operands_) {
    if (operand.misfit.empty()) continue;
    const auto [B, T, heads, dim] = operand.extents;
    const std::int64_t row = heads * padded(dim);
    operand.offset = workspace.add(B * T * row * size_of(dtype_));
    *operand.tensor = {nullptr, T * row, row, padded(dim)};
  }
}

void Operands::copy_inputs(const std::string& name, const ScratchMemory& scratch, void* stream) {
  for (const Operand& operand : operands_) {
    if (operand.misfit.empty()) continue;
    operand.tensor->data = scratch.at<char>(operand.offset);
    if (operand.output) continue;
    const auto [B, T, heads, dim] = operand.extents;
    launch_copy(
        name.c_str(),
        {operand.given, *operand.tensor, B, T, static_cast<int>(heads), static_cast<int>(dim)},
        stream);
  }
}

void Operands::copy_outputs(const std::string& name, void* stream) const {
  for (const Operand& operand : operands_) {
    if (operand.misfit.empty() || !operand.output) continue;
    const auto [B, T, heads, dim] = operand.extents;
    launch_copy(
        name.c_str(),
        {*operand.tensor, operand.given, B, T, static_cast<int>(heads), static_cast<int>(dim)},
        stream);
  }
}

CUtensorMap encode_rows(const StridedTensor& tensor, DType dtype, const TileExtents& extents,
                        int rows, const void* any) {
  if (!is_empty(extents)) return encode(plan_tile("tensor", tensor, dtype, extents, rows));
  const StridedTensor one{const_cast<void*>(any), 64, 64, 64};
  return encode(plan_tile("tensor", one, dtype, {1, 1, 1, 8}, rows));
}

}  // namespace tandem::cuda::attention

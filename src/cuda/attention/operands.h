// The activations of a call as its kernels have them: where they lie or, of a variant that copies,
// in the workspace, their rows at multiples of 16 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/runtime/plan.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/runtime/workspace.h"
#include "ops/attention_problem.h"

namespace tandem::cuda::attention {

/// The tensors [B,T,heads,dim] of a problem, which is changed where copies are made.
class Operands {
 public:
  explicit Operands(DType dtype) : dtype_(dtype) {}

  /// Adds a tensor; not one that is null.
  void add_input(const char* name, StridedTensor& tensor, const TileExtents& extents);
  void add_output(const char* name, StridedTensor& tensor, const TileExtents& extents);

  /// Says why kernels cannot do without copies, "" when they can.
  std::string misfit() const;

  /// Lays copies of what does not fit out in the workspace.
  void plan_copies(WorkspaceLayout& workspace);

  /// Puts the copies into the problem, and fills those of inputs. `name` is the variant's, for
  /// errors.
  void copy_inputs(const std::string& name, const ScratchMemory& scratch, void* stream);
  void copy_outputs(const std::string& name, void* stream) const;

 private:
  struct Operand {
    StridedTensor* tensor;
    TileExtents extents;
    bool output;
    std::string misfit;      // why kernels cannot have it where it lies
    StridedTensor given;     // the caller's
    std::size_t offset = 0;  // of its copy
  };

  void add(StridedTensor& tensor, const TileExtents& extents, bool output, std::string misfit);

  DType dtype_;
  std::vector<Operand> operands_;
};

/// Encodes the map of a tensor by which its rows are copied into shared memory, `rows` at a time.
/// Of one without elements, which nobody reads, it is that of any others.
CUtensorMap encode_rows(const StridedTensor& tensor, DType dtype, const TileExtents& extents,
                        int rows, const void* any);

}  // namespace tandem::cuda::attention

#include "batched_matmul.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "cublaslt.h"
#include "cuda/runtime/cuda_check.h"

namespace tandem::bench {
namespace {

/// Returns a device's handle, which lives as long as the process.
cublasLtHandle_t handle_of_current_device() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  int device = 0;
  cuda::cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = handles.try_emplace(device, nullptr);
  if (at->second == nullptr) cublaslt().check(cublaslt().Create(&at->second), "cublasLtCreate");
  return at->second;
}

/// Describes one operand as cuBLASLt sees it: row-major [rows,columns] is column-major
/// [columns,rows].
CublasLtOwner<cublasLtMatrixLayout_t> layout(const BatchedProduct& product, std::int64_t rows,
                                             std::int64_t columns, int batch) {
  const CublasLt& lt = cublaslt();
  CublasLtOwner<cublasLtMatrixLayout_t> made(lt.MatrixLayoutDestroy);
  lt.check(lt.MatrixLayoutCreate(&made.handle, product.dtype, columns, rows, columns),
           "cublasLtMatrixLayoutCreate");
  const std::int64_t stride = rows * columns;
  lt.check(lt.MatrixLayoutSetAttribute(made.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                       sizeof(batch)),
           "cublasLtMatrixLayoutSetAttribute");
  lt.check(lt.MatrixLayoutSetAttribute(made.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                       &stride, sizeof(stride)),
           "cublasLtMatrixLayoutSetAttribute");
  return made;
}

void multiply_at_once(const BatchedProduct& p, void* workspace, cudaStream_t stream) {
  const CublasLt& lt = cublaslt();
  const cublasLtHandle_t handle = handle_of_current_device();
  CublasLtOwner<cublasLtMatmulDesc_t> product(lt.MatmulDescDestroy);
  lt.check(lt.MatmulDescCreate(&product.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "cublasLtMatmulDescCreate");
  // Row-major d = a b is column-major d^T = b^T a^T: b goes first.
  const auto operation = [&](cublasLtMatmulDescAttributes_t which, const BatchedOperand& operand) {
    const cublasOperation_t value = operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    lt.check(lt.MatmulDescSetAttribute(product.handle, which, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
  };
  operation(CUBLASLT_MATMUL_DESC_TRANSA, p.b);
  operation(CUBLASLT_MATMUL_DESC_TRANSB, p.a);
  const auto operand_layout = [&](const BatchedOperand& operand, std::int64_t rows,
                                  std::int64_t columns) {
    if (operand.transposed) std::swap(rows, columns);
    return layout(p, rows, columns, static_cast<int>(p.batch));
  };
  const auto a = operand_layout(p.a, p.M, p.K);
  const auto b = operand_layout(p.b, p.K, p.N);
  const auto d = layout(p, p.M, p.N, static_cast<int>(p.batch));

  CublasLtOwner<cublasLtMatmulPreference_t> preference(lt.MatmulPreferenceDestroy);
  lt.check(lt.MatmulPreferenceCreate(&preference.handle), "cublasLtMatmulPreferenceCreate");
  lt.check(
      lt.MatmulPreferenceSetAttribute(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &kMatmulWorkspaceBytes, sizeof(kMatmulWorkspaceBytes)),
      "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  lt.check(lt.MatmulAlgoGetHeuristic(handle, product.handle, b.handle, a.handle, d.handle, d.handle,
                                     preference.handle, 1, &found, &count),
           "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) throw CudaError("[cublaslt] no algorithm for a batched product");
  const float beta = 0.0f;
  lt.check(lt.Matmul(handle, product.handle, &p.alpha, p.b.data, b.handle, p.a.data, a.handle,
                     &beta, p.d, d.handle, p.d, d.handle, &found.algo, workspace,
                     kMatmulWorkspaceBytes, stream),
           "cublasLtMatmul");
}

const void* advance(const void* data, std::int64_t elements) {
  return static_cast<const char*>(data) + elements * 2;
}

}  // namespace

void multiply(const BatchedProduct& product, void* workspace, cudaStream_t stream) {
  // why: kernels that put the batch on a grid's z axis end at 65535.
  constexpr std::int64_t kMostAtOnce = 32768;
  for (std::int64_t first = 0; first < product.batch; first += kMostAtOnce) {
    BatchedProduct part = product;
    part.batch = std::min(kMostAtOnce, product.batch - first);
    part.a.data = advance(product.a.data, first * product.M * product.K);
    part.b.data = advance(product.b.data, first * product.K * product.N);
    part.d = const_cast<void*>(advance(product.d, first * product.M * product.N));
    multiply_at_once(part, workspace, stream);
  }
}

}  // namespace tandem::bench

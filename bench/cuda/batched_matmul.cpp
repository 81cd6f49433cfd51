#include "batched_matmul.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "cublaslt.h"
#include "cuda/runtime/cuda_check.h"
#include "status.h"

namespace tandem::bench {
namespace {

using cuda::cuda_check;

int current_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Returns a device's handle, which lives as long as the process.
cublasLtHandle_t handle_of_current_device() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = handles.try_emplace(current_device(), nullptr);
  if (at->second == nullptr) cublaslt().check(cublaslt().Create(&at->second), "cublasLtCreate");
  return at->second;
}

/// A matrix of each batch entry as it lies in memory, by rows.
struct Stored {
  cudaDataType_t dtype;
  std::int64_t rows, columns, row_stride;

  std::int64_t batch_stride() const { return rows * row_stride; }
  std::int64_t bytes() const { return batch_stride() * (dtype == CUDA_R_32F ? 4 : 2); }
};

Stored stored(cudaDataType_t dtype, std::int64_t rows, std::int64_t columns,
              std::int64_t row_stride) {
  return {dtype, rows, columns, row_stride == 0 ? columns : row_stride};
}

Stored stored(const BatchedProduct& p, const BatchedOperand& operand, std::int64_t rows,
              std::int64_t columns) {
  if (operand.transposed) std::swap(rows, columns);
  return stored(p.dtype, rows, columns, operand.row_stride);
}

Stored stored_a(const BatchedProduct& p) { return stored(p, p.a, p.M, p.K); }
Stored stored_b(const BatchedProduct& p) { return stored(p, p.b, p.K, p.N); }
Stored stored_d(const BatchedProduct& p) {
  return stored(p.fp32 ? CUDA_R_32F : p.dtype, p.M, p.N, p.d_row_stride);
}
Stored stored_c(const BatchedProduct& p) {
  Stored c = stored_d(p);
  if (p.c != nullptr) c.row_stride = p.c_row_stride == 0 ? p.N : p.c_row_stride;
  return c;
}

/// Returns the largest power of two up to 256 that divides all addresses.
std::uint32_t alignment(const BatchedProduct& p) {
  std::uintptr_t bits = 256;
  for (const void* data : {p.a.data, p.b.data, p.c, p.bias, static_cast<const void*>(p.d)}) {
    bits |= reinterpret_cast<std::uintptr_t>(data);
  }
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Describes a matrix as cuBLASLt sees it: row-major [rows,columns] is column-major [columns,rows].
CublasLtOwner<cublasLtMatrixLayout_t> layout(const Stored& matrix, std::int64_t batch) {
  const CublasLt& lt = cublaslt();
  CublasLtOwner<cublasLtMatrixLayout_t> made(lt.MatrixLayoutDestroy);
  lt.check(lt.MatrixLayoutCreate(&made.handle, matrix.dtype, matrix.columns, matrix.rows,
                                 matrix.row_stride),
           "cublasLtMatrixLayoutCreate");
  const auto set = [&](cublasLtMatrixLayoutAttribute_t which, const auto& value) {
    lt.check(lt.MatrixLayoutSetAttribute(made.handle, which, &value, sizeof(value)),
             "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.batch_stride());
  return made;
}

/// A product in cuBLASLt's terms. Row-major d = a b is column-major d^T = b^T a^T: b goes first.
class Matmul {
 public:
  explicit Matmul(const BatchedProduct& product) : p_(product) {
    lt_.check(lt_.MatmulDescCreate(&description_.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
    const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
      lt_.check(lt_.MatmulDescSetAttribute(description_.handle, which, &value, sizeof(value)),
                "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p_.bias == nullptr) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p_.bias);
  }

  /// Returns what the heuristic proposes, its favourite first.
  std::vector<cublasLtMatmulAlgo_t> algorithms() const {
    constexpr int kMost = 8;
    CublasLtOwner<cublasLtMatmulPreference_t> preference(lt_.MatmulPreferenceDestroy);
    lt_.check(lt_.MatmulPreferenceCreate(&preference.handle), "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      lt_.check(lt_.MatmulPreferenceSetAttribute(preference.handle, which, &value, sizeof(value)),
                "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMatmulWorkspaceBytes);
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(which, alignment(p_));
    }
    std::array<cublasLtMatmulHeuristicResult_t, kMost> found{};
    int count = 0;
    lt_.check(
        lt_.MatmulAlgoGetHeuristic(handle_, description_.handle, b_.handle, a_.handle, c_.handle,
                                   d_.handle, preference.handle, kMost, found.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(found[i].algo);
    }
    if (algorithms.empty()) throw CudaError("[cublaslt] no algorithm for a product");
    return algorithms;
  }

  /// Writes to `d`, which is laid out as the product's.
  void enqueue(const cublasLtMatmulAlgo_t& algorithm, void* d, void* workspace,
               cudaStream_t stream) const {
    const float beta = p_.accumulate || p_.c != nullptr ? 1.0f : 0.0f;
    lt_.check(lt_.Matmul(handle_, description_.handle, &p_.alpha, p_.b.data, b_.handle, p_.a.data,
                         a_.handle, &beta, p_.c != nullptr ? p_.c : p_.d, c_.handle, d, d_.handle,
                         &algorithm, workspace, kMatmulWorkspaceBytes, stream),
              "cublasLtMatmul");
  }

 private:
  const CublasLt& lt_ = cublaslt();
  const cublasLtHandle_t handle_ = handle_of_current_device();
  const BatchedProduct& p_;
  CublasLtOwner<cublasLtMatmulDesc_t> description_{lt_.MatmulDescDestroy};
  CublasLtOwner<cublasLtMatrixLayout_t> a_ = layout(stored_a(p_), p_.batch);
  CublasLtOwner<cublasLtMatrixLayout_t> b_ = layout(stored_b(p_), p_.batch);
  CublasLtOwner<cublasLtMatrixLayout_t> c_ = layout(stored_c(p_), p_.batch);
  CublasLtOwner<cublasLtMatrixLayout_t> d_ = layout(stored_d(p_), p_.batch);
};

std::size_t cold_bytes() {
  int l2 = 0;
  cuda_check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, current_device()),
             "cudaDeviceGetAttribute");
  return std::size_t{5} * static_cast<std::size_t>(l2);
}

/// Times the algorithms in turn, and returns the one of the least median.
cublasLtMatmulAlgo_t fastest(const BatchedProduct& p, const Matmul& matmul, void* workspace,
                             cudaStream_t stream) {
  const std::vector<cublasLtMatmulAlgo_t> algorithms = matmul.algorithms();
  if (algorithms.size() == 1) return algorithms.front();
  constexpr int kRounds = 5;
  const Buffer cold(cold_bytes());
  // why not p.d: with `accumulate` every trial would be added to it.
  const Buffer d(static_cast<std::size_t>(stored_d(p).bytes() * p.batch));
  std::vector<std::array<Event, kRounds>> starts(algorithms.size()), ends(algorithms.size());
  for (int round = -1; round < kRounds; ++round) {  // the first loads the kernels
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      // why: besides emptying the L2 it lets the host run ahead, so that no launch is in the time.
      cuda_check(cudaMemsetAsync(cold.data(), 0, cold.bytes(), stream), "cudaMemsetAsync");
      if (round >= 0) starts[i][round].record(stream);
      matmul.enqueue(algorithms[i], d.data(), workspace, stream);
      if (round >= 0) ends[i][round].record(stream);
    }
  }
  cuda_check(cudaStreamSynchronize(stream), "cublasLtMatmul");
  std::vector<double> medians;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    std::array<double, kRounds> us;
    for (int round = 0; round < kRounds; ++round) {
      us[round] = ends[i][round].microseconds_since(starts[i][round]);
    }
    std::ranges::nth_element(us, us.begin() + kRounds / 2);
    medians.push_back(us[kRounds / 2]);
  }
  return algorithms[std::ranges::min_element(medians) - medians.begin()];
}

/// Returns the algorithm of a product's shape, chosen at its first call.
cublasLtMatmulAlgo_t algorithm_of(const BatchedProduct& p, const Matmul& matmul, void* workspace,
                                  cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<std::array<std::int64_t, 17>, cublasLtMatmulAlgo_t> kept;
  const std::array<std::int64_t, 17> shape = {current_device(),
                                              p.dtype,
                                              p.batch,
                                              p.M,
                                              p.N,
                                              p.K,
                                              p.a.transposed,
                                              p.b.transposed,
                                              stored_a(p).row_stride,
                                              stored_b(p).row_stride,
                                              stored_d(p).row_stride,
                                              p.fp32,
                                              p.accumulate,
                                              p.c != nullptr,
                                              stored_c(p).row_stride,
                                              p.bias != nullptr,
                                              alignment(p)};
  const std::lock_guard lock(mutex);
  if (const auto found = kept.find(shape); found != kept.end()) return found->second;
  cudaStreamCaptureStatus capture{};
  cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) {
    throw CudaError("[cublaslt] a shape's first product cannot be captured: it is timed");
  }
  return kept[shape] = fastest(p, matmul, workspace, stream);
}

void multiply_at_once(const BatchedProduct& p, void* workspace, cudaStream_t stream) {
  const Matmul matmul(p);
  matmul.enqueue(algorithm_of(p, matmul, workspace, stream), p.d, workspace, stream);
}

const void* advance(const void* data, std::int64_t bytes) {
  return static_cast<const char*>(data) + bytes;
}

}  // namespace

void multiply(const BatchedProduct& product, void* workspace, cudaStream_t stream) {
  // why: kernels that put the batch on a grid's z axis end at 65535.
  constexpr std::int64_t kMostAtOnce = 32768;
  for (std::int64_t first = 0; first < product.batch; first += kMostAtOnce) {
    BatchedProduct part = product;
    part.batch = std::min(kMostAtOnce, product.batch - first);
    part.a.data = advance(product.a.data, first * stored_a(product).bytes());
    part.b.data = advance(product.b.data, first * stored_b(product).bytes());
    if (part.c != nullptr) part.c = advance(product.c, first * stored_c(product).bytes());
    part.d = const_cast<void*>(advance(product.d, first * stored_d(product).bytes()));
    multiply_at_once(part, workspace, stream);
  }
}

}  // namespace tandem::bench

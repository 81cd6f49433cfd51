// transformer_block on a GPU: against its fp64 definition, and its step as a captured graph that is
// replayed token by token.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cpp/random_transformer_block.h"
#include "reference/transformer_block.h"
#include "tandem/device.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

void require(cudaError_t status) {
  if (status != cudaSuccess) throw CudaError(cudaGetErrorString(status));
}

/// Tensors on the GPU, copied from the host and back.
class OnGpu {
 public:
  OnGpu() = default;
  ~OnGpu() {
    for (void* one : memory_) cudaFree(one);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  TensorView operator()(const TensorView& host) {
    const auto bytes = static_cast<std::size_t>(host.shape.product() * size_of(host.dtype));
    void*& data = memory_.emplace_back(nullptr);
    require(cudaMalloc(&data, bytes));
    require(cudaMemcpy(data, host.data, bytes, cudaMemcpyDefault));
    return TensorView::contiguous(data, host.dtype, host.shape, Device::cuda());
  }
  std::optional<TensorView> operator()(const std::optional<TensorView>& host) {
    return host ? std::optional((*this)(*host)) : std::nullopt;
  }
  KeyValueCache operator()(const KeyValueCache& host) {
    return {(*this)(host.k), (*this)(host.v), (*this)(host.lengths)};
  }
  TransformerBlock operator()(const TransformerBlock& host) {
    TransformerBlock block = host;
    for (TensorView TransformerBlock::*one :
         {&TransformerBlock::input_layernorm, &TransformerBlock::q_proj, &TransformerBlock::k_proj,
          &TransformerBlock::v_proj, &TransformerBlock::rope_cos, &TransformerBlock::rope_sin,
          &TransformerBlock::o_proj, &TransformerBlock::post_attention_layernorm,
          &TransformerBlock::gate_proj, &TransformerBlock::up_proj, &TransformerBlock::down_proj}) {
      block.*one = (*this)(host.*one);
    }
    for (std::optional<TensorView> TransformerBlock::*one :
         {&TransformerBlock::q_bias, &TransformerBlock::k_bias, &TransformerBlock::v_bias,
          &TransformerBlock::q_norm, &TransformerBlock::k_norm, &TransformerBlock::o_bias}) {
      block.*one = (*this)(host.*one);
    }
    return block;
  }

 private:
  std::deque<void*> memory_;
};

/// Fills a host tensor from the GPU.
void download(const TensorView& to, const TensorView& from) {
  require(cudaDeviceSynchronize());
  const auto bytes = static_cast<std::size_t>(to.shape.product() * size_of(to.dtype));
  require(cudaMemcpy(to.data, from.data, bytes, cudaMemcpyDefault));
}

class GpuTransformerBlock : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
    if (device_properties(Device::cuda()).compute_major != 9) GTEST_SKIP() << "no Hopper GPU";
  }
};

const std::vector<BlockSizes> kSizes = {
    {.d = 256, .H = 4, .HKV = 2, .K = 64, .F = 512, .positions = 256},
    {.d = 384, .H = 3, .HKV = 3, .K = 128, .F = 640, .positions = 256, .biases = true},
    {.d = 256, .H = 4, .HKV = 1, .K = 128, .F = 320, .positions = 256, .norms = true}};

TEST_F(GpuTransformerBlock, IsItsDefinition) {
  unsigned seed = 10;
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kBFloat16, sizes, ++seed);
    if (seed % 2 == 0) random.block.window = 50;
    const TensorView x = random.normal({2, 150, sizes.d}, 0, 1), out = random.zeros(x.shape);
    OnGpu gpu;
    const TensorView there = gpu(x), out_there = gpu(out);
    transformer_block_forward({.block = gpu(random.block), .x = there, .out = out_there});
    download(out, out_there);
    const double error = difference(values_of(out), reference::transformer_block(random.block, x));
    EXPECT_LT(error, 8e-3) << seed;
    RecordProperty("error" + std::to_string(seed), std::to_string(error));
  }
}

TEST_F(GpuTransformerBlock, AReplayedStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t B = 3, kPrompt = 70, kTokens = 90;
  unsigned seed = 20;
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kBFloat16, sizes, ++seed);
    const std::int64_t d = sizes.d;
    const TensorView x = random.normal({B, kTokens, d}, 0, 1);
    const std::vector<double> expected = reference::transformer_block(random.block, x);
    const TensorView prompt = random.zeros({B, kPrompt, d}), token = random.zeros({B, d});
    const auto take = [&](const TensorView& to, std::int64_t first, std::int64_t count) {
      for (std::int64_t i = 0; i < to.shape.product(); ++i) {
        const std::int64_t b = i / (count * d), inside = i % (count * d);
        static_cast<BFloat16*>(to.data)[i] =
            static_cast<BFloat16*>(x.data)[(b * kTokens + first) * d + inside];
      }
    };
    OnGpu gpu;
    const TransformerBlock block = gpu(random.block);
    const KeyValueCache host_cache = random.cache(B, 128), cache = gpu(host_cache);
    take(prompt, 0, kPrompt);
    const TensorView prompt_there = gpu(prompt);
    transformer_block_forward(
        {.block = block, .x = prompt_there, .cache = cache, .out = prompt_there});

    const TensorView there = gpu(token), out = gpu(token);
    const TransformerBlockStepArgs args = {.block = block, .x = there, .cache = cache, .out = out};
    const std::size_t bytes =
        transformer_block_step_workspace_bytes(args, device_properties(Device::cuda()));
    const TensorView workspace = gpu(random.zeros(DType::kFloat32, {std::int64_t(bytes / 4 + 1)}));
    cudaStream_t stream = nullptr;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const Context context = {.stream = {stream}, .workspace = {workspace.data, bytes}};
    take(token, kPrompt, 1);
    require(cudaMemcpy(there.data, token.data, B * d * 2, cudaMemcpyDefault));
    // A call of its own: it loads the kernels, which a capture must not.
    transformer_block_step(args, context);
    require(cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    transformer_block_step(args, context);
    require(cudaStreamEndCapture(stream, &graph));
    std::size_t nodes = 0;
    require(cudaGraphGetNodes(graph, nullptr, &nodes));
    RecordProperty("launches" + std::to_string(seed), std::to_string(nodes));
    require(cudaGraphInstantiate(&executable, graph, 0));
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      take(token, t, 1);
      if (t > kPrompt) {
        require(cudaMemcpy(there.data, token.data, B * d * 2, cudaMemcpyDefault));
        require(cudaGraphLaunch(executable, stream));
      }
      download(token, out);
      std::vector<double> of_definition;
      for (std::int64_t b = 0; b < B; ++b) {
        const auto row = expected.begin() + (b * kTokens + t) * d;
        of_definition.insert(of_definition.end(), row, row + d);
      }
      ASSERT_LT(difference(values_of(token), of_definition), 1e-2) << seed << " token " << t;
    }
    download(host_cache.lengths, cache.lengths);
    EXPECT_EQ(static_cast<std::int32_t*>(host_cache.lengths.data)[B - 1], kTokens);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

}  // namespace
}  // namespace tandem::tools

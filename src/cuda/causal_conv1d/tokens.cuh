// What a thread of causal_conv1d reads and writes: its channels of a token, of a state, of the
// taps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/causal_conv1d/place.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::causal_conv1d {

/// Neighbouring channels of a token, as they are stored. why words: 16-bit elements would each take
/// a register.
template <class Element, int kChannels>
struct alignas(kChannels * sizeof(Element)) Stored {
  static constexpr int kWords = kChannels * sizeof(Element) / 4;
  static_assert(kChannels % 2 == 0);
  std::uint32_t words[kWords];

  __device__ void unpack(float (&values)[kChannels]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(Element) == 4) {
        values[i] = __uint_as_float(words[i]);
      } else {
        const float2 pair = unpack_pair<Element>(words[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
      }
    }
  }

  __device__ void pack(const float (&values)[kChannels]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(Element) == 4) {
        words[i] = __float_as_uint(values[i]);
      } else {
        words[i] = pack_pair<Element>(values[2 * i], values[2 * i + 1]);
      }
    }
  }
};

template <class Element>
struct Stored<Element, 1> {
  Element element;

  __device__ void unpack(float (&values)[1]) const { values[0] = static_cast<float>(element); }
  __device__ void pack(const float (&values)[1]) { element = static_cast<Element>(values[0]); }
};

template <class Element, int kChannels>
__device__ Stored<Element, kChannels>* token_at(const TokenTensor& x, std::int64_t b, int t,
                                                int channel) {
  return reinterpret_cast<Stored<Element, kChannels>*>(
      static_cast<Element*>(x.data) + b * x.batch_stride + t * x.time_stride + channel);
}

template <class Element, int kChannels>
__device__ void load_token(const TokenTensor& x, std::int64_t b, int t, int channel,
                           float (&values)[kChannels]) {
  const Stored<Element, kChannels> stored = *token_at<Element, kChannels>(x, b, t, channel);
  stored.unpack(values);
}

template <class Element, int kChannels>
__device__ void store_token(const TokenTensor& x, std::int64_t b, int t, int channel,
                            const float (&values)[kChannels]) {
  Stored<Element, kChannels> stored;
  stored.pack(values);
  *token_at<Element, kChannels>(x, b, t, channel) = stored;
}

/// Returns make(W, silu), whose arguments are constants.
template <class Make>
auto with_constants(const CausalConv1d& p, const Make& make) {
  const auto with_silu = [&](auto silu) {
    return p.W == 4   ? make(std::integral_constant<int, 4>{}, silu)
           : p.W == 3 ? make(std::integral_constant<int, 3>{}, silu)
                      : make(std::integral_constant<int, 2>{}, silu);
  };
  return p.silu ? with_silu(std::true_type{}) : with_silu(std::false_type{});
}

template <class Element>
__device__ float load_tap(const ConvTaps& taps, std::int64_t channel, int w) {
  const std::int64_t at = channel * taps.channel_stride + w;
  return taps.dtype == DType::kFloat32
             ? static_cast<const float*>(taps.data)[at]
             : static_cast<float>(static_cast<const Element*>(taps.data)[at]);
}

/// A thread's channels of the weight and of the bias, which is 0 where there is none.
template <class Element, int kW, int kChannels>
struct Taps {
  float weight[kW][kChannels];
  float bias[kChannels];

  __device__ void load(const CausalConv1d& p, int channel) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int w = 0; w < kW; ++w) weight[w][c] = load_tap<Element>(p.weight, channel + c, w);
      bias[c] = p.bias.data != nullptr ? load_tap<Element>(p.bias, channel + c, 0) : 0.0f;
    }
  }

  /// The same, of channels that the strips of a CTA share: each is read once. All threads.
  __device__ void load(const CausalConv1d& p, const Place& place, int columns) {
    using Line = Stored<float, kChannels>;
    __shared__ Line shared[(kW + 1) * 32];
    float* values = reinterpret_cast<float*>(shared);
    const int channels = columns * kChannels;
    const int first = place.channel - place.column * kChannels;
    const int count = min(channels, p.D - first);
    for (int i = threadIdx.x; i < count * kW; i += blockDim.x) {
      values[i % kW * channels + i / kW] = load_tap<Element>(p.weight, first + i / kW, i % kW);
    }
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      values[kW * channels + i] =
          p.bias.data != nullptr ? load_tap<Element>(p.bias, first + i, 0) : 0.0f;
    }
    __syncthreads();
    if (!place.active) return;
#pragma unroll
    for (int w = 0; w < kW; ++w) shared[w * columns + place.column].unpack(weight[w]);
    shared[kW * columns + place.column].unpack(bias);
  }
};

template <class Element>
__device__ Element* state_at(const ConvState& state, std::int64_t n, std::int64_t channel, int j) {
  return static_cast<Element*>(state.data) + n * state.sequence_stride +
         channel * state.channel_stride + j * state.token_stride;
}

/// Loads token j of a state; a null one is 0.
template <class Element, int kChannels>
__device__ void load_state(const ConvState& state, int n, int channel, int j,
                           float (&values)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    values[c] = state.data != nullptr
                    ? static_cast<float>(*state_at<Element>(state, n, channel + c, j))
                    : 0.0f;
  }
}

template <class Element, int kChannels>
__device__ void store_state(const ConvState& state, int n, int channel, int j,
                            const float (&values)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    *state_at<Element>(state, n, channel + c, j) = static_cast<Element>(values[c]);
  }
}

/// Loads input t of a span: one of its tokens or, before them, of its initial state.
template <class Element, int kW, int kChannels>
__device__ void load_input(const CausalConv1dForwardProblem& p, const Span& span, int t,
                           int channel, float (&values)[kChannels]) {
  if (t >= span.begin) {
    load_token<Element>(p.x, span.b, t, channel, values);
  } else {
    load_state<Element>(p.initial_state, span.n, channel, t - span.begin + kW - 1, values);
  }
}

/// A thread's channels of one token after another. why one pointer that moves: addresses of several
/// tokens would take twice as many registers, and their products with the stride instructions.
template <class Element, int kChannels>
class Cursor {
 public:
  __device__ Cursor(const TokenTensor& x, std::int64_t b, int t, int channel)
      : at_(static_cast<Element*>(x.data) + b * x.batch_stride + t * x.time_stride + channel),
        stride_(x.time_stride) {}

  __device__ Stored<Element, kChannels>& operator*() const {
    return *reinterpret_cast<Stored<Element, kChannels>*>(at_);
  }
  __device__ void next() { at_ += stride_; }

 private:
  Element* at_;
  std::int64_t stride_;
};

/// The kW - 1 inputs before a token.
template <class Element, int kW, int kChannels>
struct History {
  float x[kW - 1][kChannels] = {};

  /// Loads those before token t of a span; of tokens outside of all they are not used.
  __device__ void load(const CausalConv1dForwardProblem& p, const Span& span, int t, int channel) {
    if (span.outside) return;
    if (t - (kW - 1) >= span.begin) {
#pragma unroll
      for (int j = 0; j < kW - 1; ++j) {
        load_token<Element>(p.x, span.b, t - (kW - 1) + j, channel, x[j]);
      }
      return;
    }
    // why not unrolled: addresses of a state's elements would take the registers of the whole walk.
#pragma unroll 1
    for (int j = 0; j < kW - 1; ++j) {
      float token[kChannels];
      load_input<Element, kW>(p, span, t - (kW - 1) + j, channel, token);
      push(token);
    }
  }

  __device__ void push(const float (&token)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int j = 0; j + 1 < kW - 1; ++j) x[j][c] = x[j + 1][c];
      x[kW - 2][c] = token[c];
    }
  }

  /// The sum before the activation, in one order.
  __device__ float convolve(const Taps<Element, kW, kChannels>& taps, float token, int c) const {
    float z = taps.bias[c];
#pragma unroll
    for (int j = 0; j < kW - 1; ++j) z = fmaf(taps.weight[j][c], x[j][c], z);
    return fmaf(taps.weight[kW - 1][c], token, z);
  }
};

/// 1 / (1 + e^-z), flushed to 0 below -87. why not Sigmoid: it takes twice the instructions.
__device__ inline float sigmoid(float z) { return reciprocal(1.0f + fast_exp2(z * -kLog2E)); }
__device__ inline float silu(float z) { return z * sigmoid(z); }
__device__ inline float silu_slope(float z) {
  const float s = sigmoid(z);
  return fmaf(s, fmaf(-z, s, z), s);
}

}  // namespace tandem::cuda::causal_conv1d

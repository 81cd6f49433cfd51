// A prompt in one call, then token by token from the state that it left: on the CPU, in fp32. On a
// GPU the views are of its memory with Device::cuda(0), the dtype is bf16 or fp16, and the Context
// that calls take holds the stream.
#include <tandem/tandem.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

using tandem::DType, tandem::TensorView;

namespace {

constexpr std::int64_t kPrompt = 192, kTokens = 256, kHeads = 4, kWidth = 32;
constexpr std::int64_t kToken = kHeads * kWidth;  // numbers of one token

std::vector<float> random(std::int64_t count, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

/// Tokens [1,T,H,D] from `begin` on.
TensorView tokens(std::vector<float>& of, std::int64_t begin, std::int64_t count) {
  return TensorView::contiguous(of.data() + begin * kToken, DType::kFloat32,
                                {1, count, kHeads, kWidth});
}

/// One token [1,H,D], as a step takes it.
TensorView token(std::vector<float>& of, std::int64_t which) {
  return TensorView::contiguous(of.data() + which * kToken, DType::kFloat32, {1, kHeads, kWidth});
}

int decode() {
  std::mt19937 generator(1);
  auto q = random(kTokens * kToken, generator), k = random(kTokens * kToken, generator);
  auto v = random(kTokens * kToken, generator);
  // RetNet's decays: 1 - 2^-5, 1 - 2^-6 and so on, one per head.
  std::vector<float> log_decay(kHeads);
  for (int head = 0; head < kHeads; ++head) {
    log_decay[static_cast<std::size_t>(head)] = std::log1p(-std::exp2(-5.0F - float(head)));
  }
  const auto decay = TensorView::contiguous(log_decay.data(), DType::kFloat32, {kHeads});
  std::vector<float> memory(static_cast<std::size_t>(kHeads * kWidth * kWidth));
  const auto state =
      TensorView::contiguous(memory.data(), DType::kFloat32, {1, kHeads, kWidth, kWidth});

  std::vector<float> at_once(v.size()), in_steps(v.size());
  tandem::gla_forward({.q = tokens(q, 0, kTokens),
                       .k = tokens(k, 0, kTokens),
                       .v = tokens(v, 0, kTokens),
                       .log_decay = decay,
                       .o = tokens(at_once, 0, kTokens)});

  tandem::gla_forward({.q = tokens(q, 0, kPrompt),
                       .k = tokens(k, 0, kPrompt),
                       .v = tokens(v, 0, kPrompt),
                       .log_decay = decay,
                       .o = tokens(in_steps, 0, kPrompt),
                       .final_state = state});
  for (std::int64_t t = kPrompt; t < kTokens; ++t) {
    tandem::gla_step({.q = token(q, t),
                      .k = token(k, t),
                      .v = token(v, t),
                      .log_decay = decay,
                      .state = state,
                      .o = token(in_steps, t)});
  }

  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < at_once.size(); ++i) {
    largest = std::fmax(largest, std::fabs(at_once[i]));
    difference = std::fmax(difference, std::fabs(at_once[i] - in_steps[i]));
  }
  std::printf("outputs up to %.3g; at once and in steps they differ by up to %.1e\n", largest,
              difference);
  return difference < 1e-5 * largest ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return decode();
  } catch (const std::exception& error) {  // names op, argument, what is expected and what was got
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// What a block's training call leaves on a GPU, against fp64 and against itself replayed.
#pragma once

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "cpp/random_tensors.h"
#include "on_gpu.h"

namespace tandem::tools {

/// Expects the outputs that a captured forward and backward left `there` to be those of `exact`,
/// and replayed to have the same bits. `host` takes them. `limit(name)`: of an output's error,
/// asked in the order of for_each_output.
template <class Training, class Limit>
void expect_outputs(const std::string& which, const CapturedCall& training, const Training& host,
                    const Training& there, const Training& exact, Limit limit) {
  std::vector<std::vector<double>> first;
  for_each_output(host, there, [&](const char*, const TensorView& to, const TensorView& from) {
    copy(to, from);
    first.push_back(values_of(to));
  });
  for_each_output(host, exact,
                  [&](const char* name, const TensorView& got, const TensorView& right) {
                    EXPECT_LT(difference(values_of(got), values_of(right)), limit(name))
                        << which << " " << name;
                  });
  for_each_output(there, there, [](const char*, const TensorView& to, const TensorView&) {
    require(cudaMemset(to.data, 0xff, to.shape.product() * size_of(to.dtype)));
  });
  require(cudaDeviceSynchronize());
  training.replay();
  auto one = first.begin();
  for_each_output(host, there, [&](const char* name, const TensorView& to, const TensorView& from) {
    copy(to, from);
    EXPECT_EQ(values_of(to), *one++) << which << " " << name << ", replayed";
  });
}

/// The errors of what `got` holds, in the order of for_each_output.
template <class Training>
std::vector<double> errors_of(const Training& got, const Training& exact) {
  std::vector<double> errors;
  for_each_output(got, exact, [&](const char*, const TensorView& a, const TensorView& b) {
    errors.push_back(difference(values_of(a), values_of(b)));
  });
  return errors;
}

}  // namespace tandem::tools

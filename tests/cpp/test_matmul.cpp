// Compares both providers of cpu/matmul.h, and every instruction set of the built-in one, with a
// double loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/float16.h"
#include "cpu/matmul.h"
#include "tandem/error.h"

namespace tandem::cpu {
namespace {

using Function = std::function<void(const MatmulArgs&)>;

struct Named {
  std::string name;
  Function function;
};

/// What this build and machine can run.
std::vector<Named> implementations() {
  std::vector<Named> all;
  if (matmul_unavailable_reason(MatmulProvider::kOneDnn).empty()) {
    all.push_back(
        {"onednn", [](const MatmulArgs& args) { matmul(MatmulProvider::kOneDnn, args); }});
  }
  all.push_back(
      {"builtin", [](const MatmulArgs& args) { matmul(MatmulProvider::kBuiltin, args); }});
  for (const Isa isa : supported_isas()) {
    all.push_back({"builtin isa " + std::to_string(static_cast<int>(isa)),
                   [isa](const MatmulArgs& args) { matmul_builtin(args, isa); }});
  }
  return all;
}

struct Shape {
  std::int64_t M, N, K;
};

constexpr float kCanary = -12345.0f;

/// One product with padded strides and canaries around C, compared with the definition.
class Product {
 public:
  Product(const Shape& shape, DType dtype, bool a_transposed, bool b_transposed, unsigned seed)
      : shape_(shape), dtype_(dtype) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    a_ = operand(shape.M, shape.K, a_transposed, 3, random, normal);
    b_ = operand(shape.K, shape.N, b_transposed, 5, random, normal);
    c_stride_ = shape.N + 2;
    start_.assign(shape.M * c_stride_, kCanary);
    for (std::int64_t m = 0; m < shape.M; ++m) {
      for (std::int64_t n = 0; n < shape.N; ++n) start_[m * c_stride_ + n] = normal(random);
    }
  }

  void check(const Named& implementation, float alpha, bool accumulate) const {
    std::vector<float> c = start_;
    implementation.function({.M = shape_.M,
                             .N = shape_.N,
                             .K = shape_.K,
                             .dtype = dtype_,
                             .a = pointer(a_),
                             .b = pointer(b_),
                             .c = c.data(),
                             .c_stride = c_stride_,
                             .alpha = alpha,
                             .accumulate = accumulate});
    for (std::int64_t m = 0; m < shape_.M; ++m) {
      for (std::int64_t n = 0; n < c_stride_; ++n) {
        const float got = c[m * c_stride_ + n];
        if (n >= shape_.N) {
          ASSERT_EQ(got, kCanary) << implementation.name << ": wrote beside C at row " << m;
          continue;
        }
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < shape_.K; ++k) {
          const double product = double{at(a_, m, k)} * at(b_, k, n);
          sum += product;
          magnitude += std::abs(product);
        }
        const double old = accumulate ? start_[m * c_stride_ + n] : 0.0;
        const double tolerance = 1e-6 * (std::abs(alpha) * magnitude + std::abs(old)) + 1e-30;
        ASSERT_NEAR(got, alpha * sum + old, tolerance)
            << implementation.name << " M " << shape_.M << " N " << shape_.N << " K " << shape_.K
            << " transposed " << a_.transposed << b_.transposed << " alpha " << alpha
            << " accumulate " << accumulate << " at (" << m << "," << n << ")";
      }
    }
  }

 private:
  struct Operand {
    std::vector<float> values;  // as rounded
    std::vector<BFloat16> rounded;
    std::int64_t stride;
    bool transposed;
  };

  Operand operand(std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t padding,
                  std::mt19937& random, std::normal_distribution<float>& normal) const {
    if (transposed) std::swap(rows, columns);
    Operand operand{{}, {}, columns + padding, transposed};
    for (std::int64_t i = 0; i < rows * operand.stride; ++i) {
      const bool inside = i % operand.stride < columns;
      float value = inside ? normal(random) : std::nanf("");  // padding must not be used
      if (dtype_ == DType::kBFloat16) {
        operand.rounded.push_back(from_float<BFloat16>(value));
        value = to_float(operand.rounded.back());
      }
      operand.values.push_back(value);
    }
    return operand;
  }

  float at(const Operand& operand, std::int64_t i, std::int64_t j) const {
    if (operand.transposed) std::swap(i, j);
    return operand.values[i * operand.stride + j];
  }

  MatmulOperand pointer(const Operand& operand) const {
    const void* data = operand.values.data();
    if (dtype_ == DType::kBFloat16) data = operand.rounded.data();
    return {data, operand.stride, operand.transposed};
  }

  Shape shape_;
  DType dtype_;
  Operand a_, b_;
  std::int64_t c_stride_;
  std::vector<float> start_;
};

TEST(Matmul, OddShapes) {
  const std::vector<Shape> shapes = {{1, 1, 1},     {1, 64, 7},   {7, 1, 64},   {64, 64, 64},
                                     {3, 5, 2},     {9, 33, 17},  {64, 40, 96}, {63, 127, 65},
                                     {13, 31, 300}, {5, 16, 513}, {8, 32, 1},   {17, 130, 4},
                                     {2, 3, 1000}};
  unsigned seed = 1;
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (int transposed = 0; transposed < 4; ++transposed) {
        const Product product(shape, dtype, transposed & 1, transposed & 2, seed++);
        for (const Named& implementation : implementations()) {
          product.check(implementation, 1.0f, false);
          product.check(implementation, 1.0f, true);
          product.check(implementation, -0.37f, true);
          product.check(implementation, 2.5f, false);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Matmul, EmptyAxes) {
  for (const MatmulProvider provider : {MatmulProvider::kOneDnn, MatmulProvider::kBuiltin}) {
    float c[2] = {1.0f, 2.0f};
    MatmulArgs args;
    args.M = 1;
    args.N = 2;
    args.c = c;
    args.c_stride = 2;
    args.accumulate = true;
    matmul(provider, args);
    EXPECT_EQ(c[0], 1.0f);
    args.accumulate = false;
    matmul(provider, args);
    EXPECT_EQ(c[0], 0.0f);
    EXPECT_EQ(c[1], 0.0f);
    args.M = 0;
    matmul(provider, args);
  }
}

/// What matmul_rows() relies on: the built-in loop adds up a row of C in one order, whatever M.
TEST(Matmul, BuiltinRowsDoNotDependOnTheirNumber) {
  constexpr std::int64_t kMost = 64, N = 70, K = 300;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> a(kMost * K), b(N * K);
  for (auto* values : {&a, &b}) {
    for (float& value : *values) value = normal(random);
  }
  for (const Isa isa : supported_isas()) {
    for (const bool transposed : {false, true}) {
      const auto multiply = [&](std::int64_t M) {
        std::vector<float> c(M * N);
        matmul_builtin({.M = M,
                        .N = N,
                        .K = K,
                        .a = {a.data(), K},
                        .b = {b.data(), transposed ? K : N, transposed},
                        .c = c.data(),
                        .c_stride = N},
                       isa);
        return c;
      };
      const std::vector<float> all = multiply(kMost);
      for (std::int64_t M = 1; M < kMost; ++M) {
        const std::vector<float> c = multiply(M);
        ASSERT_TRUE(std::equal(c.begin(), c.end(), all.begin()))
            << "M " << M << " isa " << static_cast<int>(isa) << " transposed " << transposed;
      }
    }
  }
}

TEST(Matmul, RowsOfAProductWhoseBitsMustNotDependOnTheirNumber) {
  for (const auto& [rows, builtin] : {std::pair{1, 8}, {8, 8}, {9, 16}, {57, 60}, {60, 60}}) {
    EXPECT_EQ(matmul_rows(MatmulProvider::kOneDnn, rows, 60), 60);
    EXPECT_EQ(matmul_rows(MatmulProvider::kBuiltin, rows, 60), builtin);
  }
}

TEST(Matmul, FromSeveralThreadsAtOnce) {
  for (const Named& implementation : implementations()) {
    const Product product({64, 48, 64}, DType::kBFloat16, true, false, 7);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int repeat = 0; repeat < 4; ++repeat)
          product.check(implementation, 1.0f, repeat % 2 == 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

/// Sets a variable for the length of a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (old_.empty()) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, old_.c_str(), 1);
    }
  }

 private:
  const char* name_;
  std::string old_;
};

TEST(Matmul, EnvironmentChoosesTheProvider) {
  const bool has_onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn).empty();
  {
    const ScopedVariable variable("TANDEM_CPU_MATMUL", "builtin");
    EXPECT_EQ(default_matmul_provider(), MatmulProvider::kBuiltin);
  }
  {
    const ScopedVariable variable("TANDEM_CPU_MATMUL", "onednn");
    if (has_onednn) {
      EXPECT_EQ(default_matmul_provider(), MatmulProvider::kOneDnn);
    } else {
      EXPECT_THROW(default_matmul_provider(), Unsupported);
    }
  }
  const ScopedVariable variable("TANDEM_CPU_MATMUL", "fast");
  try {
    default_matmul_provider();
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "[environment] TANDEM_CPU_MATMUL must be onednn or builtin, got fast");
  }
}

}  // namespace
}  // namespace tandem::cpu

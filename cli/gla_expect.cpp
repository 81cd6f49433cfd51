// gla's outputs against the fp64 definition.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <vector>

#include "gla.h"
#include "reference/gla.h"

namespace tandem::tools {
namespace {

/// One sequence and head, and what the definition gives for it.
struct Head {
  std::int64_t b = 0, n = 0;
  int h = 0;
  TokenRange tokens;
  std::vector<double> o;      // [tokens,V]
  std::vector<double> state;  // [K,V]
};

void define(const GlaForwardProblem& problem, Head& head) {
  GlaForwardProblem one = problem;  // this head alone, as a batch of one sequence
  const int hq = head.h / (problem.H / problem.HQ);
  const auto move = [&](StridedTensor& x, int h) {
    x.data = static_cast<std::byte*>(x.data) +
             (head.b * x.batch_stride + head.tokens.begin * x.time_stride + h * x.head_stride) *
                 size_of(problem.dtype);
  };
  move(one.q, hq);
  move(one.k, hq);
  move(one.v, head.h);
  if (one.log_decay.data) {
    const DecayTensor& g = problem.log_decay;
    one.log_decay.data +=
        head.b * g.batch_stride + head.tokens.begin * g.time_stride + head.h * g.head_stride;
  }
  const std::int64_t state = static_cast<std::int64_t>(problem.K) * problem.V;
  if (one.initial_state) one.initial_state += (head.n * problem.H + head.h) * state;
  one.cu_seqlens = nullptr;
  one.B = one.N = 1;
  one.H = one.HQ = 1;
  one.T = head.tokens.end - head.tokens.begin;
  head.o.resize(one.T * problem.V);
  head.state.resize(state);
  reference::gla_forward_one(one, 0, 0, head.o.data(), head.state.data());
}

/// Sums of squares of a difference and of what is right; NaN in a value stays.
struct Squares {
  double wrong = 0, right = 0;
  std::int64_t count = 0;

  void add(double value, double expected) {
    wrong += (value - expected) * (value - expected);
    right += expected * expected;
    ++count;
  }
  /// Root of wrong / scale. Where the definition is 0 throughout, anything else is infinitely
  /// wrong.
  double relative(double scale) const {
    if (wrong == 0) return 0;
    return right == 0 ? std::numeric_limits<double>::infinity()
                      : std::fabs(std::sqrt(wrong / scale));  // no "-nan"
  }
};

/// One output: over all heads, and the worst head. A head is measured by its own size or, if that
/// is smaller, by the size of an average head: a single q.k that cancels to nearly 0 is no error.
OutputError judge(const char* output, const std::vector<Squares>& heads, double limit) {
  Squares all;
  for (const Squares& head : heads) {
    all.wrong += head.wrong;
    all.right += head.right;
    all.count += head.count;
  }
  OutputError error{output, all.relative(all.right), 0, limit, false};
  for (const Squares& head : heads) {
    const double average =
        all.right * static_cast<double>(head.count) / std::max<double>(all.count, 1);
    const double value = head.relative(std::max(head.right, average));
    if (!(value <= error.worst_head) && !std::isnan(error.worst_head)) error.worst_head = value;
  }
  // A head may be a little worse than the whole: rounding errors of few values average out less.
  error.passed = error.value <= limit && error.worst_head <= 4 * limit;
  return error;
}

class GlaExpectation : public Expectation {
 public:
  GlaExpectation(const TensorSet& set, bool sampled) : problem_(host_problem(set)) {
    for (std::int64_t n = 0; n < problem_.N; ++n) {
      for (int h = 0; h < problem_.H; ++h) {
        Head head;
        head.n = n;
        head.h = h;
        head.b = problem_.cu_seqlens ? 0 : n;
        head.tokens = tokens_of(problem_, n);
        for (std::int64_t t = head.tokens.begin;
             problem_.cu_seqlens && h == 0 && t < head.tokens.end; ++t) {
          inside_.insert(t);
        }
        heads_.push_back(std::move(head));
      }
    }
    if (sampled) sample();
    const std::int64_t count = static_cast<std::int64_t>(heads_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(problem_, heads_[i]);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double by_dtype = problem_.dtype == DType::kBFloat16  ? 3e-3
                            : problem_.dtype == DType::kFloat16 ? 5e-4
                                                                : 1e-5;
    std::vector<OutputError> errors = {judge("o", compare_o(set.get("o"), after), by_dtype)};
    if (const NamedTensor* state = set.find("final_state")) {
      const double limit = problem_.log_decay.data ? by_dtype : 1e-5;
      errors.push_back(judge("final_state", compare_state(*state, after), limit));
    }
    return errors;
  }

 private:
  /// Keeps the first and last head and some between: about a second of work on two cores.
  void sample() {
    double tokens = 0;
    for (const Head& head : heads_) {
      tokens += static_cast<double>(head.tokens.end - head.tokens.begin);
    }
    const double average = tokens / std::max<double>(heads_.size(), 1);
    const double cost = average * problem_.K * problem_.V;
    const std::size_t wanted = std::max<std::size_t>(4, static_cast<std::size_t>(4e8 / (cost + 1)));
    if (heads_.size() <= wanted) return;
    std::vector<Head> kept;
    for (std::size_t i = 0; i < wanted; ++i) {
      kept.push_back(heads_[i * (heads_.size() - 1) / (wanted - 1)]);
    }
    heads_ = std::move(kept);
  }

  std::vector<Squares> compare_o(const NamedTensor& o, const Buffers& after) const {
    const std::byte* data = after[o.buffer].data() + o.offset;
    const int V = problem_.V;
    std::vector<Squares> heads;
    for (const Head& head : heads_) {
      Squares squares;
      for (std::int64_t t = head.tokens.begin; t < head.tokens.end; ++t) {
        const std::int64_t row = head.b * o.strides[0] + t * o.strides[1] + head.h * o.strides[2];
        for (int j = 0; j < V; ++j) {
          squares.add(load(o.dtype, data, row + j), head.o[(t - head.tokens.begin) * V + j]);
        }
      }
      heads.push_back(squares);
    }
    Squares outside;  // 0 at tokens outside every sequence
    for (std::int64_t t = 0; problem_.cu_seqlens && t < problem_.T; ++t) {
      for (int h = 0; h < problem_.H && inside_.count(t) == 0; ++h) {
        for (int j = 0; j < V; ++j) {
          outside.add(load(o.dtype, data, t * o.strides[1] + h * o.strides[2] + j), 0);
        }
      }
    }
    heads.push_back(outside);
    return heads;
  }

  std::vector<Squares> compare_state(const NamedTensor& state, const Buffers& after) const {
    const std::byte* data = after[state.buffer].data() + state.offset;
    const std::int64_t size = static_cast<std::int64_t>(problem_.K) * problem_.V;
    std::vector<Squares> heads;
    for (const Head& head : heads_) {
      Squares squares;
      const std::int64_t first = (head.n * problem_.H + head.h) * size;
      for (std::int64_t i = 0; i < size; ++i) {
        squares.add(load(DType::kFloat32, data, first + i), head.state[i]);
      }
      heads.push_back(squares);
    }
    return heads;
  }

  GlaForwardProblem problem_;
  std::vector<Head> heads_;
  std::set<std::int64_t> inside_;  // with cu_seqlens: tokens of some sequence
};

}  // namespace

std::unique_ptr<Expectation> expect_gla(const TensorSet& set, bool sampled) {
  return std::make_unique<GlaExpectation>(set, sampled);
}

}  // namespace tandem::tools

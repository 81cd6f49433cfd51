// gla for the tools: its tensors from a case or a file, its call, its definition, its cost.
#include "tandem/ops/gla.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "operation.h"
#include "ops/gla.h"
#include "reference/gla.h"

namespace tandem::tools {
namespace {

/// Strides of an activation [B,T,heads,D]; `shared` is how many heads one stored head serves.
Dims activation_strides(Strides kind, const Dims& shape, bool output) {
  const std::int64_t T = std::max<std::int64_t>(shape[1], 1), heads = shape[2], D = shape[3];
  const auto gaps = [&](std::int64_t head, std::int64_t token, std::int64_t batch) {
    const std::int64_t head_stride = D + head, time_stride = heads * head_stride + token;
    return Dims{T * time_stride + batch, time_stride, head_stride, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {heads * T * D, D, T * D, 1};
    case Strides::kPadded: return gaps(16, 32, 64);
    case Strides::kOdd: return gaps(3, 5, 7);
    case Strides::kBroadcast:
      if (!output) return {T * D, D, 0, 1};
      [[fallthrough]];
    default: return contiguous_strides(shape);
  }
}

Dims decay_strides(Strides kind, const Dims& shape) {
  if (shape.rank() == 1) {
    return {kind == Strides::kOdd || kind == Strides::kPadded ? 3
            : kind == Strides::kBroadcast                     ? 0
                                                              : 1};
  }
  const std::int64_t T = std::max<std::int64_t>(shape[1], 1), H = shape[2];
  switch (kind) {
    case Strides::kTransposed: return {H * T, 1, T};
    case Strides::kOdd:
    case Strides::kPadded: return {T * (2 * H + 1) + 3, 2 * H + 1, 2};
    case Strides::kBroadcast: return {0, H, 1};
    default: return contiguous_strides(shape);
  }
}

float log_sigmoid(float x) { return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))); }

/// The decay at linear index `i` of [B,T,H] or [H]; `t` is 0 for a constant decay.
float decay_value(DecayDistribution distribution, const RandomStream& random, std::int64_t i,
                  std::int64_t t, bool constant) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float normal = log_sigmoid(random.normal(2 * i)) / 16;
  const float uniform = random.uniform(2 * i + 1);
  // A constant decay has so few values that chance might leave out the special one.
  const bool special = constant ? i % 3 == 1 : uniform < 1.0f / 16;
  switch (distribution) {
    case DecayDistribution::kNormal: return normal;
    case DecayDistribution::kNormalBench: return log_sigmoid(random.normal(2 * i) + 2);
    case DecayDistribution::kStrong: return -2 - 18 * uniform;
    case DecayDistribution::kReset: return special ? -kInf : normal;
    case DecayDistribution::kResetEdges: return t % 64 == 0 || t % 64 == 63 ? -kInf : normal;
    case DecayDistribution::kAllReset: return -kInf;
    case DecayDistribution::kMinus20: return -20;
    case DecayDistribution::kHuge: return special ? -1e30f : normal;
    case DecayDistribution::kZero: return 0;
    case DecayDistribution::kAlternating: return t % 2 == 0 ? 0 : -20;
    case DecayDistribution::kPositive: return 0.02f * uniform;
  }
  return 0;
}

/// q, k and v in one buffer, each row of a token holding all three.
void add_packed(TensorSet& set, DType dtype, const Dims& qk, const Dims& v) {
  const std::int64_t width = 2 * qk[2] * qk[3] + v[2] * v[3];
  const std::int64_t T = qk[1];
  NamedTensor row{"q", dtype, {qk[0], T, width}, {T * width, width, 1}, 0, 0, false};
  row.buffer = set.buffers.size();
  set.buffers.emplace_back(2 * kGuardBytes + span_bytes(row));
  std::int64_t offset = kGuardBytes;
  const auto slice = [&](const char* name, const Dims& shape) {
    set.tensors.push_back(
        {name, dtype, shape, {T * width, width, shape[3], 1}, row.buffer, offset, false});
    offset += shape[2] * shape[3] * size_of(dtype);
  };
  slice("q", qk);
  slice("k", qk);
  slice("v", v);
}

TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  const std::int64_t B = one.axis("B"), T = one.axis("T"), H = one.axis("H"), HQ = one.axis("HQ");
  const std::int64_t K = one.axis("K"), V = one.axis("V");
  const std::int64_t N = one.cu_seqlens ? static_cast<std::int64_t>(one.cu_seqlens->size()) - 1 : B;
  const Dims qk{B, T, HQ, K}, v{B, T, H, V}, state{N, H, K, V};
  const std::int64_t shift =
      one.strides == Strides::kMisaligned || one.strides == Strides::kOdd ? 1 : 0;
  TensorSet set;
  if (one.scale) set.scalars["scale"] = *one.scale;

  const auto activation = [&](const char* name, const Dims& shape, bool output) {
    add_tensor(set, name, dtype, shape, activation_strides(one.strides, shape, output), output,
               shift);
  };
  if (one.strides == Strides::kPacked) {
    add_packed(set, dtype, qk, v);
  } else {
    activation("q", qk, false);
    activation("k", qk, false);
    activation("v", v, false);
  }
  // why no smaller k: errors are relative, so a state that grows with T is no harder; fp16 stays in
  // range.
  for (const char* name : {"q", "k", "v"}) {
    fill_normal(set.get(name), set.buffers, RandomStream(seed + one.seed, name));
  }
  if (one.decay != DecayKind::kNone) {
    const bool constant = one.decay == DecayKind::kConstant;
    const Dims shape = constant ? Dims{H} : Dims{B, T, H};
    const NamedTensor& decay = add_tensor(set, "log_decay", DType::kFloat32, shape,
                                          decay_strides(one.strides, shape), false, shift);
    std::byte* data = set.buffers[decay.buffer].data() + decay.offset;
    const RandomStream random(seed + one.seed, "log_decay");
    for_each_element(decay, [&](std::int64_t offset, std::int64_t i) {
      store(DType::kFloat32, data, offset,
            decay_value(one.distribution, random, i, constant ? 0 : i / H % T, constant));
    });
  }
  if (one.cu_seqlens) {
    const NamedTensor& offsets =
        add_tensor(set, "cu_seqlens", DType::kInt32, {N + 1}, {1}, false, shift);
    std::memcpy(set.buffers[offsets.buffer].data() + offsets.offset, one.cu_seqlens->data(),
                one.cu_seqlens->size() * sizeof(std::int32_t));
  }
  activation("o", v, true);
  const bool in_place = one.states == States::kInPlace;
  if (one.states == States::kInitial || one.states == States::kBoth || in_place) {
    NamedTensor initial = add_tensor(set, "initial_state", DType::kFloat32, state,
                                     contiguous_strides(state), false, shift);
    fill_normal(initial, set.buffers, RandomStream(seed + one.seed, "initial_state"));
    if (in_place) {
      initial.name = "final_state";
      initial.output = true;
      set.tensors.push_back(initial);
    }
  }
  if (one.states == States::kFinal || one.states == States::kBoth) {
    add_tensor(set, "final_state", DType::kFloat32, state, contiguous_strides(state), true, shift);
  }
  return set;
}

bool parse_bool(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw std::runtime_error(fmt::format("--set {}: must be true or false, got {}", name, text));
}

double parse_number(const std::string& name, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (text.empty() || used != text.size()) {
    throw std::runtime_error(fmt::format("--set {}: must be a number, got {}", name, text));
  }
  return value;
}

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set;
  for (const FileTensor& from : file.tensors) {
    const bool known = from.name == "q" || from.name == "k" || from.name == "v" ||
                       from.name == "log_decay" || from.name == "initial_state" ||
                       from.name == "cu_seqlens";
    if (!known) {
      throw std::runtime_error(fmt::format(
          "{}: tensor {}: is no input of gla (q, k, v, log_decay, initial_state, cu_seqlens)",
          file.path, from.name));
    }
    const NamedTensor& to =
        add_tensor(set, from.name, from.dtype, from.shape, contiguous_strides(from.shape), false);
    std::memcpy(set.buffers[to.buffer].data() + to.offset, from.data.data(), span_bytes(to));
  }
  for (const char* name : {"q", "k", "v"}) {
    if (!set.find(name))
      throw std::runtime_error(fmt::format("{}: tensor {}: is missing", file.path, name));
  }
  bool wants_state = set.find("initial_state") != nullptr;
  for (const auto& [name, text] : settings) {
    if (name == "scale") {
      set.scalars["scale"] = parse_number(name, text);
    } else if (name == "output_final_state") {
      wants_state = parse_bool(name, text);
    } else {
      throw std::runtime_error(
          fmt::format("--set {}: gla has no such setting (scale, output_final_state)", name));
    }
  }
  const Dims q = set.get("q").shape;
  const NamedTensor v = set.get("v");
  add_tensor(set, "o", v.dtype, v.shape, contiguous_strides(v.shape), true);
  // Shapes that do not fit together are refused by the call itself.
  if (!wants_state || q.rank() != 4 || v.shape.rank() != 4) return set;
  const NamedTensor* offsets = set.find("cu_seqlens");
  const bool lists = offsets != nullptr && offsets->shape.rank() == 1 && offsets->shape[0] > 0;
  const Dims state{lists ? offsets->shape[0] - 1 : q[0], v.shape[2], q[3], v.shape[3]};
  std::int64_t bytes = sizeof(float);
  for (const std::int64_t extent : state) {
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > std::int64_t{1} << 42) {
      throw std::runtime_error(file.path + ": final_state " + to_string(state) + " is too large");
    }
  }
  add_tensor(set, "final_state", DType::kFloat32, state, contiguous_strides(state), true);
  return set;
}

GlaForwardArgs bind(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const auto required = [&](const char* name) {
    const NamedTensor& tensor = set.get(name);
    return view(tensor, bases[tensor.buffer], device);
  };
  const auto optional = [&](const char* name) {
    return set.find(name) ? std::optional(required(name)) : std::nullopt;
  };
  GlaForwardArgs args;
  args.q = required("q");
  args.k = required("k");
  args.v = required("v");
  args.o = required("o");
  args.log_decay = optional("log_decay");
  args.initial_state = optional("initial_state");
  args.cu_seqlens = optional("cu_seqlens");
  args.final_state = optional("final_state");
  if (set.scalars.count("scale")) args.scale = set.scalars.at("scale");
  return args;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_forward(bind(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_forward_workspace_bytes(bind(set, bases, device), device_properties(device));
}

/// The checked problem over the set's own buffers. The definition only reads.
GlaForwardProblem host_problem(const TensorSet& set) {
  std::vector<void*> bases;
  for (const HostBuffer& buffer : set.buffers)
    bases.push_back(const_cast<std::byte*>(buffer.data()));
  return make_problem(bind(set, bases, Device::cpu()));
}

/// One sequence and head, and what the definition gives for it.
struct Head {
  std::int64_t b = 0, n = 0, begin = 0, end = 0;
  int h = 0;
  std::vector<double> o;      // [end-begin,V]
  std::vector<double> state;  // [K,V]
};

/// The tokens of sequence n: cu_seqlens clamped into [0,T].
void find_tokens(const GlaForwardProblem& problem, Head& head) {
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(problem.cu_seqlens[i], 0, problem.T);
  };
  head.b = problem.cu_seqlens ? 0 : head.n;
  head.begin = problem.cu_seqlens ? boundary(head.n) : 0;
  head.end = problem.cu_seqlens ? std::max(head.begin, boundary(head.n + 1)) : problem.T;
}

void define(const GlaForwardProblem& problem, Head& head) {
  GlaForwardProblem one = problem;  // this head alone, as a batch of one sequence
  const int hq = head.h / (problem.H / problem.HQ);
  const auto move = [&](StridedTensor& x, int h) {
    x.data = static_cast<std::byte*>(x.data) +
             (head.b * x.batch_stride + head.begin * x.time_stride + h * x.head_stride) *
                 size_of(problem.dtype);
  };
  move(one.q, hq);
  move(one.k, hq);
  move(one.v, head.h);
  if (one.log_decay.data) {
    const DecayTensor& g = problem.log_decay;
    one.log_decay.data +=
        head.b * g.batch_stride + head.begin * g.time_stride + head.h * g.head_stride;
  }
  const std::int64_t state = static_cast<std::int64_t>(problem.K) * problem.V;
  if (one.initial_state) one.initial_state += (head.n * problem.H + head.h) * state;
  one.cu_seqlens = nullptr;
  one.B = one.N = 1;
  one.H = one.HQ = 1;
  one.T = head.end - head.begin;
  head.o.resize(one.T * problem.V);
  head.state.resize(state);
  reference::gla_forward_one(one, 0, 0, head.o.data(), head.state.data());
}

/// Sums of squares of a difference and of what is right; NaN in a value stays.
struct Squares {
  double wrong = 0, right = 0;

  void add(double value, double expected) {
    wrong += (value - expected) * (value - expected);
    right += expected * expected;
  }
  void add(const Squares& other) { wrong += other.wrong, right += other.right; }
  /// Where the definition is 0 throughout, anything else is infinitely wrong.
  double relative() const {
    if (wrong == 0) return 0;
    return right == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(wrong / right);
  }
};

struct Sum {
  Squares all;
  double worst = 0;

  void add(const Squares& head) {
    all.add(head);
    const double relative = head.relative();
    if (!(relative <= worst)) worst = relative;
  }
};

class GlaExpectation : public Expectation {
 public:
  GlaExpectation(const TensorSet& set, bool sampled) : problem_(host_problem(set)) {
    for (std::int64_t n = 0; n < problem_.N; ++n) {
      for (int h = 0; h < problem_.H; ++h) {
        Head head;
        head.n = n;
        head.h = h;
        find_tokens(problem_, head);
        for (std::int64_t t = head.begin; problem_.cu_seqlens && h == 0 && t < head.end; ++t) {
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
    const double cost = static_cast<double>(problem_.T) * problem_.K * problem_.V;
    const std::size_t wanted = std::max<std::size_t>(4, static_cast<std::size_t>(4e8 / (cost + 1)));
    if (heads_.size() <= wanted) return;
    std::vector<Head> kept;
    for (std::size_t i = 0; i < wanted; ++i) {
      kept.push_back(heads_[i * (heads_.size() - 1) / (wanted - 1)]);
    }
    heads_ = std::move(kept);
  }

  /// A head may be a little worse than the whole: rounding errors of few values average out less.
  static OutputError judge(const char* output, const Sum& sum, double limit) {
    const double value = sum.all.relative();
    return {output, value, sum.worst, limit, value <= limit && sum.worst <= 4 * limit};
  }

  Sum compare_o(const NamedTensor& o, const Buffers& after) const {
    const std::byte* data = after[o.buffer].data() + o.offset;
    const int V = problem_.V;
    Sum sum;
    for (const Head& head : heads_) {
      Squares squares;
      for (std::int64_t t = head.begin; t < head.end; ++t) {
        const std::int64_t row = head.b * o.strides[0] + t * o.strides[1] + head.h * o.strides[2];
        for (int j = 0; j < V; ++j) {
          squares.add(load(o.dtype, data, row + j), head.o[(t - head.begin) * V + j]);
        }
      }
      sum.add(squares);
    }
    Squares outside;  // 0 at tokens outside every sequence
    for (std::int64_t t = 0; problem_.cu_seqlens && t < problem_.T; ++t) {
      for (int h = 0; h < problem_.H && inside_.count(t) == 0; ++h) {
        for (int j = 0; j < V; ++j) {
          outside.add(load(o.dtype, data, t * o.strides[1] + h * o.strides[2] + j), 0);
        }
      }
    }
    sum.add(outside);
    return sum;
  }

  Sum compare_state(const NamedTensor& state, const Buffers& after) const {
    const std::byte* data = after[state.buffer].data() + state.offset;
    const std::int64_t size = static_cast<std::int64_t>(problem_.K) * problem_.V;
    Sum sum;
    for (const Head& head : heads_) {
      Squares squares;
      const std::int64_t first = (head.n * problem_.H + head.h) * size;
      for (std::int64_t i = 0; i < size; ++i) {
        squares.add(load(DType::kFloat32, data, first + i), head.state[i]);
      }
      sum.add(squares);
    }
    return sum;
  }

  GlaForwardProblem problem_;
  std::vector<Head> heads_;
  std::set<std::int64_t> inside_;  // with cu_seqlens: tokens of some sequence
};

std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
  return std::make_unique<GlaExpectation>(set, sampled);
}

/// Matrix work of the chunked algorithm at chunk C = 64. Per chunk and head: Q K^T is C*C*K
/// multiply-adds, Q S and K^T V are C*K*V each, (Q K^T) V is C*C*V; counted per token, so a partial
/// chunk counts partly.
Cost cost(const TensorSet& set) {
  const GlaForwardProblem problem = host_problem(set);
  const double K = problem.K, V = problem.V;
  constexpr double C = 64;
  double tokens = 0;
  for (std::int64_t n = 0; n < problem.N; ++n) {
    Head head;
    head.n = n;
    find_tokens(problem, head);
    tokens += static_cast<double>(head.end - head.begin);
  }
  Cost cost;
  cost.flops = tokens * problem.H * 2 * (C * K + 2 * K * V + C * V);
  for (const NamedTensor& tensor : set.tensors) {
    double elements = 1;  // of a broadcast axis only one is read
    for (int i = 0; i < tensor.shape.rank(); ++i) {
      elements *= tensor.strides[i] == 0 ? 1.0 : static_cast<double>(tensor.shape[i]);
    }
    cost.bytes += elements * static_cast<double>(size_of(tensor.dtype));
  }
  return cost;
}

std::string shape(const TensorSet& set) {
  const Dims& q = set.get("q").shape;
  const Dims& v = set.get("v").shape;
  const std::string heads =
      q[2] == v[2] ? fmt::format("H{}", v[2]) : fmt::format("H{}/{}", v[2], q[2]);
  return fmt::format("B{} T{} {} K{} V{}", q[0], q[1], heads, q[3], v[3]);
}

}  // namespace

const Operation kGlaOperation = {"gla",           "forward", make, from_file, call,
                                 workspace_bytes, expect,    cost, shape};

}  // namespace tandem::tools

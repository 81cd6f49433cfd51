#include "cli/cases/random_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/cases/draw.h"

namespace tandem::tools {

std::vector<std::int32_t> draw_offsets(Draw& draw, std::int64_t T, std::int64_t N) {
  std::vector<std::int32_t> offsets(N + 1);
  for (std::int32_t& offset : offsets) offset = static_cast<std::int32_t>(draw.in(0, T));
  if (draw.one_in(2)) offsets.front() = 0;
  if (draw.one_in(2)) offsets.back() = static_cast<std::int32_t>(T);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

namespace {

/// Sets what a recurrence has. Decays that leave nothing of the state are left out: what remains of
/// it is rounding.
void draw_recurrence(Draw& draw, const CaseSchema& schema, Case& one) {
  one.decay = schema.decay_kinds[draw.in(0, std::ssize(schema.decay_kinds) - 1)].second;
  if (one.decay != DecayKind::kNone) {
    using enum DecayDistribution;
    one.distribution = draw.of({kNormal, kNormalBench, kStrong, kReset, kResetHalf, kResetEdges,
                                kMinus20, kHuge, kZero, kAlternating, kPositive, kPhases});
    // Growth over more tokens than these leaves fp16's range, and fp32's digits.
    constexpr std::int64_t kMostGrowing = 300;
    const bool grows = one.distribution == kPositive && one.axis("T") > kMostGrowing;
    if (grows) one.distribution = kNormal;
  }
  const auto has = [&](const char* field) { return schema.has_field(field); };
  if (has("decay_dtype")) one.fp32_decay = draw.one_in(2);
  if (has("gate")) one.gate = draw.one_in(2);
  if (has("state_dtype")) one.state_dtype = draw.of({DType::kFloat32, DType::kBFloat16});
  if (has("saved_states")) one.saved_states = draw.one_in(4);
  if (has("scale") && draw.one_in(4)) one.scale = draw.of({0.5, 1.0, -0.25});
  one.states =
      draw.of({States::kNone, States::kInitial, States::kFinal, States::kBoth, States::kInPlace});
}

/// Sets all but the axes.
void draw_fields(Draw& draw, const CaseSchema& schema, Case& one) {
  if (schema.is_recurrence()) draw_recurrence(draw, schema, one);
  one.strides =
      draw.of({Strides::kContiguous, Strides::kPacked, Strides::kTransposed, Strides::kPadded,
               Strides::kMisaligned, Strides::kOdd, Strides::kBroadcast});
  if (schema.draw_fields != nullptr) schema.draw_fields(draw, one);
}

bool may_be_packed(const std::string& direction) {
  return direction != "step" && direction != "decay" && !direction.starts_with("carry");
}

bool is_empty(const Case& one) {
  return std::ranges::any_of(one.axes, [](const auto& axis) { return axis.second == 0; }) ||
         (one.cu_seqlens && token_count(one) == 0);
}

}  // namespace

bool multiplies(const std::string& axis) { return axis != "HQ" && axis != "HKV" && axis != "TK"; }

Case draw_case(const std::string& op, const std::string& direction, DType dtype,
               std::int64_t largest, std::uint64_t seed) {
  const auto schema = std::ranges::find(case_schemas(), op, &CaseSchema::op);
  Draw draw(seed);
  // why once: of what is drawn hardly anything but the empty may fit `largest` and be judgeable.
  const bool may_be_empty = draw.one_in(10);
  while (true) {
    Case one;
    one.name = fmt::format("random_{}", seed);
    one.directions = {direction};
    one.dtypes = {dtype};
    one.tags = {"random"};
    one.seed = static_cast<std::uint64_t>(draw.in(0, 1 << 30));
    one.axes = schema->draw_axes(draw);
    std::erase_if(one.axes, [&](const auto& axis) {
      return std::ranges::count(schema->axes, axis.first) == 0 &&
             std::ranges::count(schema->optional_axes, axis.first) == 0;
    });
    if (direction == "step") one.axes["T"] = 1;
    std::int64_t size = 1;
    for (const auto& [axis, extent] : one.axes) {
      if (multiplies(axis)) size *= std::max<std::int64_t>(extent, 1);
    }
    if (size > largest) continue;
    draw_fields(draw, *schema, one);
    const bool packs = schema->is_recurrence() && may_be_packed(direction) && !one.saved_states;
    if (packs && draw.one_in(2)) {
      one.axes["B"] = 1;
      one.cu_seqlens = draw_offsets(draw, one.axis("T"), draw.in(0, 5));
    }
    if (is_empty(one) && !may_be_empty) continue;
    if (schema->judgeable(one)) return one;
  }
}

}  // namespace tandem::tools

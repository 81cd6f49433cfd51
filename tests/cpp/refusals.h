// For the tests of what calls refuse: valid arguments of any call to spoil, by its table, and a
// look at what was written before it was refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/signature.h"
#include "tandem/tandem.h"

namespace tandem {

/// Expects a call to throw InvalidArgument with this text.
inline void expect_refused(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "was accepted: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), text);
  }
}

/// Extents that tell the axes apart where checks could mix them up.
inline std::int64_t extent(const std::string& axis, bool lists) {
  static const std::map<std::string, std::int64_t> extents = {
      {"T", 5},  {"TQ", 5}, {"TK", 6}, {"HKV", 2},
      {"HQ", 2}, {"H", 4},  {"K", 8},  {"V", 16},
      {"d", 12}, {"D", 24}, {"F", 20}, {"d_in", 24},
      {"W", 4},  {"P", 6},  {"J", 2},  {"d_in/group_width", 6}};
  if (axis == "B") return lists ? 1 : 2;
  if (axis == "N") return lists ? 3 : 2;
  if (axis == "M") return 5;
  if (axis == "T/128" || axis == "T/64") return 1;
  const std::int64_t segment = axis.back() - '0';
  if (axis == "C" + std::to_string(segment)) return 16 + 8 * segment;
  if (axis == "W" + std::to_string(segment)) return 8;
  if (segment >= 0 && segment <= 9) return 2 + segment;  // heads of 8 columns
  return extents.at(axis);
}

/// Sets the numbers that a call needs: projection's even segments are l2_normalize, odd ones silu;
/// rms_norm_gemm's even segments have heads that end in a norm and a rotation.
inline void set_numbers(const Signature& signature, void* args) {
  for (const Parameter& row : signature.parameters()) {
    const std::string name = row.name;
    if (name == "activation") continue;  // gemm_swiglu's has a default
    const bool is_even = (name.back() - '0') % 2 == 0;
    if (name.starts_with("activation")) {
      row.set_value(args,
                    static_cast<double>(is_even ? Activation::kL2Normalize : Activation::kSilu));
    }
    if (name.starts_with("head_width") && is_even) row.set_value(args, 8);
    if (name.starts_with("rotates") && is_even) row.set_value(args, 1);
    if (name == "group_width") row.set_value(args, 4);
    if (name == "norm") row.set_value(args, static_cast<double>(OutputNorm::kLayerNorm));
  }
}

/// Whether a segment has such a tensor beside these numbers.
inline bool fits_numbers(const Parameter& row) {
  const std::string name = row.name;
  const bool is_even = (name.back() - '0') % 2 == 0;
  if (name.starts_with("slope")) return !is_even;
  for (const char* of_heads : {"inverse_norm", "head_", "d_head_", "pre_norm"}) {
    if (name.starts_with(of_heads)) return is_even;
  }
  return true;
}

/// Valid arguments of a call, every tensor given but the second of each alternative, in memory of
/// their own.
class Call {
 public:
  Call(const Signature& signature, bool lists) : signature_(signature), lists_(lists) {
    // why: any tensor of these calls, moved to another's place, overlaps that one alone.
    constexpr std::size_t kRoom = 4096;
    args_ = signature.make_args();
    set_numbers(signature, args());
    for (const Parameter& row : signature.parameters()) {
      if (row.number || is_alternative(row) || !fits_numbers(row)) continue;
      if (lists && std::string(row.name) == "saved_states") continue;  // of dense batches alone
      if (is_int32(row.element)) {
        offsets_.push_back({0, 2, 2, 5});
        offsets_.back().resize(kRoom);
      }
      if (row.element == Element::kOffsets) {
        if (lists)
          row.set_view(args(), TensorView::contiguous(offsets_.back().data(), DType::kInt32, {4}));
      } else if (row.element == Element::kPositions) {
        // Rows and batches have them in place of sequences.
        if (!lists) {
          row.set_view(args(), TensorView::contiguous(offsets_.back().data(), DType::kInt32,
                                                      shape(row.axes.back())));
        }
      } else {
        memory_.push_back(std::make_unique<std::vector<float>>(kRoom, 0.25f));
        row.set_view(args(), TensorView::contiguous(memory_.back()->data(), DType::kFloat32,
                                                    shape(row.axes.back())));
      }
    }
  }

  const Signature& signature() const { return signature_; }
  void* args() const { return args_.get(); }
  bool lists() const { return lists_; }
  bool has(const Parameter& row) const { return !row.number && row.view(args()) != nullptr; }
  TensorView view(const Parameter& row) const { return *row.view(args()); }

  /// Whether the row belongs to the second of two inputs of which one is given.
  bool is_alternative(const Parameter& row) const {
    if (row.instead_of != nullptr) return true;
    const Parameter* source = row.source ? signature_.find(row.source) : nullptr;
    return source != nullptr && source->instead_of != nullptr;
  }

  Dims shape(const Axes& axes) const {
    std::vector<std::int64_t> extents;
    for (int i = 0; i < axes.rank; ++i) {
      extents.push_back(extent(signature_.axes()[axes.index[i]], lists_));
    }
    return Dims(extents);
  }

  /// "[B,T,H]".
  std::string axes_text(const Axes& axes) const {
    std::string text;
    for (int i = 0; i < axes.rank; ++i) {
      const std::string name = signature_.axes()[axes.index[i]];
      text += (i ? "," : "[") + (name == "N" && !lists_ ? "B" : name);
    }
    return text + "]";
  }

  /// Runs the call, which must be refused and have written nothing; returns the words.
  std::string refusal() const {
    std::vector<std::vector<float>> before;
    for (const auto& tensor : memory_) before.push_back(*tensor);
    std::string text;
    try {
      signature_.run(args(), {}, {});
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) EXPECT_EQ(*memory_[i], before[i]);
    return text;
  }

  /// Checks that the call and its workspace query are refused in these words after "[call] ".
  void expect_refused(const std::string& text) const {
    SCOPED_TRACE(text);
    EXPECT_EQ(refusal(), "[" + std::string(signature_.name()) + "] " + text);
    EXPECT_THROW(signature_.workspace_bytes(args(), DeviceProperties::cpu(), {}), InvalidArgument);
  }

 private:
  const Signature& signature_;
  bool lists_;
  std::shared_ptr<void> args_;
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
  std::vector<std::vector<std::int32_t>> offsets_;
};

/// The rows of cu_seqlens, in the table's order.
inline std::vector<const Parameter*> offsets_of(const Signature& signature) {
  std::vector<const Parameter*> rows;
  for (const Parameter& row : signature.parameters()) {
    if (!row.number && row.element == Element::kOffsets) rows.push_back(&row);
  }
  return rows;
}

inline bool takes_lists(const Signature& signature) { return !offsets_of(signature).empty(); }

/// Calls check(signature, lists) for every call without, and where it takes them with, cu_seqlens.
template <class Check>
void for_each_call(const Check& check) {
  for (const Signature* signature : signatures()) {
    for (const bool lists : {false, true}) {
      if (lists && !takes_lists(*signature)) continue;
      SCOPED_TRACE(testing::Message() << signature->name() << (lists ? " with cu_seqlens" : ""));
      check(*signature, lists);
    }
  }
}

/// Calls check(call, row) with fresh arguments for every tensor that they have.
template <class Check>
void for_each_tensor(const Check& check) {
  for_each_call([&](const Signature& signature, bool lists) {
    for (const Parameter& row : signature.parameters()) {
      Call call(signature, lists);
      if (!call.has(row) || is_int32(row.element)) continue;
      SCOPED_TRACE(row.name);
      check(call, row);
    }
  });
}

inline void spoil(const Call& call, const Parameter& row,
                  const std::function<void(TensorView&)>& change) {
  TensorView view = call.view(row);
  change(view);
  row.set_view(call.args(), view);
}

inline TensorView shaped(const TensorView& view, const Dims& shape) {
  return TensorView::contiguous(view.data, view.dtype, shape, view.device);
}

}  // namespace tandem

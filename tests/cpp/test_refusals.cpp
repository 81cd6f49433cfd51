// What every call refuses of every tensor in its table, and in which words; nothing is written
// before. What an op refuses beyond its table is in test_<op>.cpp, of gla in test_gla_refusals.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

/// Whether other tensors are measured by this one: the inputs that name axes first.
bool names_axes(const Call& call, const Parameter& row) {
  const auto may_name = [&](const Parameter& one) {
    return call.has(one) && one.role == Role::kInput && one.axes.size() == 1;
  };
  if (!may_name(row)) return false;
  std::vector<bool> known(call.signature().axes().size());
  for (const Parameter& other : call.signature().parameters()) {
    if (&other == &row) break;
    if (!may_name(other)) continue;
    const Axes& axes = other.axes.front();
    for (int i = 0; i < axes.rank; ++i) known[axes.index[i]] = true;
  }
  const Axes& axes = row.axes.front();
  for (int i = 0; i < axes.rank; ++i) {
    const std::string& axis = call.signature().axes()[axes.index[i]];
    const bool derived = axis == "N" || axis.find_first_of("/-") != std::string::npos;
    if (!known[axes.index[i]] && !derived) return true;
  }
  return false;
}

TEST(Refusals, ValidArgumentsPass) {
  for_each_call([](const Signature& signature, bool lists) {
    const Call call(signature, lists);
    EXPECT_NO_THROW(signature.run(call.args(), {}, {}));
    EXPECT_EQ(signature.workspace_bytes(call.args(), DeviceProperties::cpu(), {}), 0u);
  });
}

TEST(Refusals, Rank) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const Dims shape = call.view(row).shape;
    // One axis too few; of a choice of ranks, one that is none of them.
    std::vector<std::int64_t> extents(shape.begin() + 1, shape.end());
    if (row.axes.size() > 1 && extents.size() == 1) extents = {1, 2, 1, 2, 1};
    const Dims wrong(extents);
    spoil(call, row, [&](TensorView& view) { view = shaped(view, wrong); });
    const std::string got = ", got " + to_string(wrong);
    if (row.axes.size() > 1 && row.source == nullptr) {
      call.expect_refused(std::string(row.name) + " must have shape " +
                          call.axes_text(row.axes[0]) + " or " + call.axes_text(row.axes[1]) + got);
      return;
    }
    const std::string axes = call.axes_text(row.axes.back());
    const bool names = names_axes(call, row);
    call.expect_refused(std::string(row.name) + " must have shape " + axes +
                        (names ? "" : " = " + to_string(shape)) + got);
  });
}

TEST(Refusals, Shape) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const TensorView right = call.view(row);
    for (int axis = 0; axis < right.shape.rank(); ++axis) {
      if (names_axes(call, row)) continue;
      Dims wrong = right.shape;
      wrong[axis] -= 1;
      spoil(call, row, [&](TensorView& view) { view = shaped(right, wrong); });
      call.expect_refused(std::string(row.name) + " must have shape " +
                          call.axes_text(row.axes.back()) + " = " + to_string(right.shape) +
                          ", got " + to_string(wrong));
    }
  });
}

TEST(Refusals, WidthsOfZero) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (!names_axes(call, row)) return;
    Dims wrong = call.view(row).shape;
    const Axes& axes = row.axes.front();
    std::string names;
    for (int i = 0; i < axes.rank; ++i) {
      const std::string& name = call.signature().axes()[axes.index[i]];
      if (!may_be_empty(name)) names += (names.empty() ? "" : " and ") + name;
    }
    if (names.empty()) return;
    wrong[axes.rank - 1] = 0;
    spoil(call, row, [&](TensorView& view) { view = shaped(view, wrong); });
    call.expect_refused(std::string(row.name) + " must have " + names + " in [1,2^31), got shape " +
                        to_string(wrong));
  });
}

TEST(Refusals, DType) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const bool is_first = &row == &call.signature().parameters().front();
    spoil(call, row,
          [&](TensorView& view) { view.dtype = is_first ? DType::kInt32 : DType::kFloat16; });
    const std::string expected = is_first ? "bf16, fp16, fp32 or fp64 on cpu"
                                 : row.element == Element::kFp32OrBf16 ? "fp32 or bf16"
                                                                       : "fp32";
    call.expect_refused(std::string(row.name) + " must have dtype " + expected + ", got " +
                        (is_first ? "int32" : "fp16"));
  });
}

TEST(Refusals, OneOfAnotherDTypeBesideFp64) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const Parameter& first = call.signature().parameters().front();
    if (&row == &first) return;
    for (const Parameter& other : call.signature().parameters()) {
      if (!call.has(other) || is_int32(other.element) || &other == &row) continue;
      spoil(call, other, [](TensorView& view) { view.dtype = DType::kFloat64; });
    }
    call.expect_refused(std::string(row.name) + " must have dtype fp64, got fp32");
  });
}

TEST(Refusals, Fp64BesideFp32) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (&row == &call.signature().parameters().front()) return;
    spoil(call, row, [](TensorView& view) { view.dtype = DType::kFloat64; });
    const char* expected = row.element == Element::kFp32OrBf16 ? "fp32 or bf16" : "fp32";
    call.expect_refused(std::string(row.name) + " must have dtype " + expected + ", got fp64");
  });
}

TEST(Refusals, Fp64OnCuda) {
  for_each_call([](const Signature& signature, bool lists) {
    const Call call(signature, lists);
    for (const Parameter& row : signature.parameters()) {
      if (!call.has(row)) continue;
      spoil(call, row, [&](TensorView& view) {
        view.device = Device::cuda();
        if (!is_int32(row.element)) view.dtype = DType::kFloat64;
      });
    }
    const Parameter& first = signature.parameters().front();
    call.expect_refused(
        std::string(first.name) + " must have dtype " +
        (first.element == Element::kMatrix ? "bf16 or fp16" : "bf16, fp16 or fp32") +
        " on cuda:0, got fp64");
  });
}

TEST(Refusals, Fp32OnCuda) {
  for_each_call([](const Signature& signature, bool lists) {
    const Call call(signature, lists);
    for (const Parameter& row : signature.parameters()) {
      if (call.has(row)) spoil(call, row, [](TensorView& view) { view.device = Device::cuda(); });
    }
    const Parameter& first = signature.parameters().front();
    if (first.element != Element::kMatrix) return;
    call.expect_refused(std::string(first.name) +
                        " must have dtype bf16 or fp16 on cuda:0, got fp32");
  });
}

TEST(Refusals, Device) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (&row == &call.signature().parameters().front()) return;  // it says where the others are
    spoil(call, row, [](TensorView& view) { view.device = Device::cuda(1); });
    call.expect_refused(std::string(row.name) + " must be on cpu, got cuda:1");
  });
}

TEST(Refusals, NullAndMisalignedData) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const TensorView right = call.view(row);
    spoil(call, row, [](TensorView& view) { view.data = nullptr; });
    call.expect_refused(std::string(row.name) + " must point to " + to_string(right.shape) +
                        " elements, got a null pointer");
    spoil(call, row, [&](TensorView& view) { view.data = static_cast<char*>(right.data) + 2; });
    call.expect_refused(std::string(row.name) +
                        " must start at a multiple of its 4-byte element, got an address 2 bytes "
                        "past one");
  });
}

/// Every axis of every call in all the tensors that have it, far beyond any memory: refused, or
/// planned for without an overflow (which the sanitizers would see).
TEST(Refusals, ExtremeExtents) {
  for_each_call([](const Signature& signature, bool lists) {
    for (int axis = 0; axis < std::ssize(signature.axes()); ++axis) {
      for (const int power : {30, 31, 40, 50, 56, 57, 58, 59, 60, 61, 62}) {
        SCOPED_TRACE(testing::Message() << signature.axes()[axis] << " 2^" << power);
        Call call(signature, lists);
        bool fits = true;
        for (const Parameter& row : signature.parameters()) {
          if (!call.has(row) || is_int32(row.element)) continue;
          const Axes& axes = row.axes.back();
          TensorView view = call.view(row);
          for (int i = 0; i < axes.rank; ++i) {
            if (axes.index[i] == axis) view.shape[i] = (std::int64_t{1} << power) + 1;
          }
          view = shaped(view, view.shape);
          fits = fits && view.shape.product() < std::numeric_limits<std::int64_t>::max() / 4;
          row.set_view(call.args(), view);
        }
        try {
          const std::size_t bytes =
              signature.workspace_bytes(call.args(), DeviceProperties::cpu(), {});
          EXPECT_TRUE(fits);
          EXPECT_LT(bytes, std::size_t{1} << 63);
        } catch (const InvalidArgument&) {  // of which axis, the tests above say
        }
      }
    }
  });
}

TEST(Refusals, ExtremeStrides) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const TensorView right = call.view(row);
    if (row.layout == Layout::kContiguous) return;
    spoil(call, row, [&](TensorView& view) { view.strides[0] = std::int64_t{1} << 62; });
    const TensorView view = call.view(row);
    if (right.shape[0] == 1) return;  // not a stride that is gone
    call.expect_refused(std::string(row.name) + " must have less than 2^63 bytes, got shape " +
                        to_string(view.shape) + " with strides " + to_string(view.strides));
  });
}

TEST(Refusals, Strides) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    const TensorView right = call.view(row);
    const int last = right.shape.rank() - 1;
    const auto change = [&](int axis, std::int64_t stride) {
      spoil(call, row, [&](TensorView& view) {
        view = right;
        view.strides[axis] = stride;
      });
      return to_string(call.view(row).strides);
    };
    std::string got = change(0, -8);
    call.expect_refused(std::string(row.name) + " must have strides >= 0, got " + got);
    if (row.layout == Layout::kRows) {
      got = change(last, 2);
      call.expect_refused(std::string(row.name) + " must have innermost stride 1, got strides " +
                          got);
    }
    if (row.layout == Layout::kContiguous) {
      int axis = 0;
      while (right.shape[axis] == 1) ++axis;  // of one element no stride is taken
      got = change(axis, right.strides[axis] + 1);
      call.expect_refused(std::string(row.name) + " must be contiguous, got shape " +
                          to_string(right.shape) + " with strides " + got);
    }
    const Dims too_few(std::vector<std::int64_t>(last, 1));
    spoil(call, row, [&](TensorView& view) {
      view = right;
      view.strides = too_few;
    });
    call.expect_refused(std::string(row.name) + " must have one stride per axis of " +
                        to_string(right.shape) + ", got " + to_string(too_few));
  });
}

TEST(Refusals, OutputsOverThemselves) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (!row.is_output() || row.layout == Layout::kContiguous) return;
    if (call.view(row).shape.rank() == 1) return;  // its one stride is 1
    const int axis = call.view(row).shape[0] > 1 ? 0 : 1;
    spoil(call, row, [&](TensorView& view) { view.strides[axis] = 0; });
    const TensorView view = call.view(row);
    call.expect_refused(std::string(row.name) + " must not overlap itself, got shape " +
                        to_string(view.shape) + " with strides " + to_string(view.strides));
  });
}

TEST(Refusals, OutputsOverInputs) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (!row.is_output()) return;
    for (const Parameter& input : call.signature().parameters()) {
      if (!call.has(input) || input.role != Role::kInput) continue;
      const bool may_be = row.may_be != nullptr && std::string(row.may_be) == input.name;
      spoil(call, row, [&](TensorView& view) {
        view.data = static_cast<char*>(call.view(input).data) + (may_be ? 4 : 0);
      });
      call.expect_refused(std::string(row.name) + " must not overlap " + input.name +
                          ", got views that share memory");
      if (!may_be) continue;
      spoil(call, row, [&](TensorView& view) { view.data = call.view(input).data; });
      EXPECT_NO_THROW(call.signature().run(call.args(), {}, {})) << "in place";
    }
  });
}

TEST(Refusals, OutputsOverOutputs) {
  for_each_tensor([](const Call& call, const Parameter& row) {
    if (!row.is_output()) return;
    const TensorView right = call.view(row);
    for (const Parameter& other : call.signature().parameters()) {
      if (!call.has(other) || !other.is_output() || &other == &row) continue;
      spoil(call, row, [&](TensorView& view) { view.data = call.view(other).data; });
      // A gradient is named before the outputs in front of it, others before those behind.
      const bool row_first = (&row < &other) != (row.role == Role::kGradient);
      const Parameter& named = row_first ? row : other;
      const Parameter& second = row_first ? other : row;
      call.expect_refused(std::string(named.name) + " must not overlap " + second.name +
                          ", got views that share memory");
      spoil(call, row, [&](TensorView& view) { view = right; });
    }
  });
}

TEST(Refusals, GradientsOfInputsThatAreNotThere) {
  for_each_call([](const Signature& signature, bool lists) {
    for (const Parameter& row : signature.parameters()) {
      if (!row.needs_source || !signature.find(row.source)->optional) continue;
      if (!fits_numbers(row)) continue;
      const Call call(signature, lists);
      if (call.is_alternative(row)) {
        const Parameter* like = signature.find(signature.find(row.source)->instead_of);
        row.set_view(call.args(), call.view(*like));
      } else {
        signature.find(row.source)->unset(call.args());
        if (signature.find(row.source)->name == std::string("decay")) continue;  // below
      }
      call.expect_refused(std::string(row.name) + " needs " + row.source);
    }
  });
}

TEST(Refusals, AlternativesBothOrNeither) {
  for_each_call([](const Signature& signature, bool lists) {
    for (const Parameter& row : signature.parameters()) {
      if (row.instead_of == nullptr) continue;
      const Call call(signature, lists);
      const Parameter& other = *signature.find(row.instead_of);
      const std::string text =
          std::string("exactly one of ") + other.name + " and " + row.name + " must be given, got ";
      row.set_view(call.args(), call.view(other));
      call.expect_refused(text + "both");
      row.unset(call.args());
      other.unset(call.args());
      call.expect_refused(text + "neither");
    }
  });
}

TEST(Refusals, NumbersThatAreNotFinite) {
  for_each_call([](const Signature& signature, bool lists) {
    for (const Parameter& row : signature.parameters()) {
      if (!row.number || row.is_flag || row.is_choice_of_two) continue;
      const Call call(signature, lists);
      row.set_value(call.args(), std::numeric_limits<double>::quiet_NaN());
      if (row.whole) {
        EXPECT_NE(call.refusal().find(std::string(row.name) + " must be "), std::string::npos);
        continue;
      }
      call.expect_refused(std::string(row.name) + " must be finite, got nan");
      row.set_value(call.args(), -std::numeric_limits<double>::infinity());
      call.expect_refused(std::string(row.name) + " must be finite, got -inf");
    }
  });
}

TEST(Refusals, SequenceOffsets) {
  for_each_call([](const Signature& signature, bool lists) {
    if (!takes_lists(signature)) return;
    const Parameter& first = signature.parameters().front();
    const bool has_batch = first.axes.front().index[0] == 0;
    if (!lists && !has_batch) return;
    for (const Parameter* row : offsets_of(signature)) {
      const Call call(signature, lists);
      const std::string name = row->name;
      std::int32_t values[] = {0, 2, 2, 5};
      const auto set = [&](const Dims& shape) {
        row->set_view(call.args(), TensorView::contiguous(values, DType::kInt32, shape));
      };
      if (!lists) {
        set({3});
        call.expect_refused(name + " needs B = 1, got B = 2");
        continue;
      }
      set({2, 2});
      call.expect_refused(name + " must have shape [N+1], got [2,2]");
      set({0});
      call.expect_refused(name + " must have shape [N+1] with N >= 0, got [0]");
      set({4});
      spoil(call, *row, [](TensorView& view) { view.dtype = DType::kFloat32; });
      call.expect_refused(name + " must have dtype int32, got fp32");
      set({4});
      spoil(call, *row, [](TensorView& view) { view.strides[0] = 2; });
      call.expect_refused(name + " must be contiguous, got shape [4] with strides [2]");
    }
  });
}

/// Values in device memory cannot be checked without a wait; in host memory they are, by the call.
TEST(Refusals, ValuesOfSequenceOffsets) {
  const std::pair<std::vector<std::int32_t>, const char*> wrong[] = {
      {{0, 3, 2, 5}, "must not decrease, got cu_seqlens[2] = 2 after 3"},
      {{-1, 2, 3, 5}, "must "},
      {{0, 2, 3, 7}, "must "}};
  for_each_call([&](const Signature& signature, bool lists) {
    if (!lists) return;
    for (const Parameter* row : offsets_of(signature)) {
      for (auto [values, text] : wrong) {
        const Call call(signature, lists);
        row->set_view(call.args(), TensorView::contiguous(values.data(), DType::kInt32, {4}));
        std::string expected = text;
        if (const auto at = expected.find("cu_seqlens"); at != std::string::npos) {
          expected.replace(at, std::strlen("cu_seqlens"), row->name);
        }
        const std::string begin = "[" + std::string(signature.name()) + "] " + row->name + " ";
        EXPECT_EQ(call.refusal().rfind(begin + expected, 0), 0u) << call.refusal();
      }
    }
  });
}

TEST(Refusals, WorkspaceOfAnotherKindOfDevice) {
  for_each_call([](const Signature& signature, bool lists) {
    const Call call(signature, lists);
    try {
      signature.workspace_bytes(call.args(), DeviceProperties::h200(), {});
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "[" + std::string(signature.name()) +
                                  "] device must be of the tensors' type, cpu, got NVIDIA H200");
    }
  });
}

TEST(Refusals, ACudaCallWithoutADeviceSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  for_each_call([](const Signature& signature, bool lists) {
    const Call call(signature, lists);
    const bool narrow = signature.parameters().front().element == Element::kMatrix;
    for (const Parameter& row : signature.parameters()) {
      if (!call.has(row)) continue;
      const Parameter* input = row.source != nullptr ? signature.find(row.source) : nullptr;
      const Parameter* source = input != nullptr ? input : &row;
      const bool activation = source->element == Element::kMatrix ||
                              source->element == Element::kSame ||
                              source->element == Element::kSameOrFp32;
      spoil(call, row, [&](TensorView& view) {
        view.device = Device::cuda();
        if (narrow && activation) view.dtype = DType::kBFloat16;
      });
    }
    try {
      signature.run(call.args(), {}, {});
      ADD_FAILURE() << "was accepted";
    } catch (const Unsupported& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(cuda_unavailable_reason()), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace tandem

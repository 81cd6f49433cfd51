// For the tests of what an op refuses: valid arguments to spoil, the words of the refusal, and a
// look at what was written before.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem {

/// What spoils valid arguments, and how the message goes on after "[op] ".
template <class Args>
struct Refusal {
  const char* name;
  std::function<void(Args&)> spoil;
  std::string text;
  bool lists = false;  // the arguments to spoil have cu_seqlens
};

constexpr bool kWithLists = true;

/// Memory of the tensors of a call.
struct CallMemory {
  std::vector<std::vector<float>> tensors;

  TensorView tensor(const Dims& shape) {
    // why: any tensor of these tests, moved here, overlaps this one only, wherever the heap has the
    // others.
    constexpr std::size_t kRoom = 2048;
    tensors.emplace_back(kRoom, 0.25f);
    return TensorView::contiguous(tensors.back().data(), DType::kFloat32, shape);
  }
};

inline TensorView shaped(const TensorView& view, const Dims& shape) {
  return TensorView::contiguous(view.data, view.dtype, shape, view.device);
}

/// What the call throws as Error; one that throws nothing fails the test.
template <class Error, class Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

/// The call must be refused with this text, and have written nothing.
template <class Call>
void expect_refused(const CallMemory& memory, const std::string& text, const Call& call) {
  const auto before = memory.tensors;
  EXPECT_EQ(text_of<InvalidArgument>(call), text);
  EXPECT_EQ(memory.tensors, before);
}

}  // namespace tandem

// Checks shared by every op's validation; each throws InvalidArgument "[op] argument expected,
// got".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tandem/error.h"
#include "tandem/tensor.h"

namespace tandem {

/// An argument under check: what the messages call it, and its view.
struct Argument {
  const char* op;
  const char* name;
  const TensorView& view;
};

/// Throws InvalidArgument("[op] text").
[[noreturn]] void refuse(const char* op, const std::string& text);

/// Checks the shape; `axes` names the expected one in letters, e.g. "[B,T,H,V]".
void check_shape(const Argument& argument, const char* axes, const Dims& expected);
void check_rank(const Argument& argument, const char* axes, int rank);
void check_dtype(const Argument& argument, DType expected);
void check_device(const Argument& argument, Device expected);
/// Checks extents, strides and that sizes in bytes fit 63 bits; null data is accepted only where
/// there are no elements.
void check_data(const Argument& argument);
/// Checks that data is aligned to the element's size.
void check_alignment(const Argument& argument);
/// Checks that the innermost axis has stride 1.
void check_unit_innermost_stride(const Argument& argument);
void check_contiguous(const Argument& argument);
/// Checks that no two indices of an output name the same element (stride 0 along an axis, ...).
void check_no_self_overlap(const Argument& output);
/// Checks that the two cannot share memory. Views interleaved in one buffer (equal outer strides,
/// disjoint inside one period) pass.
void check_disjoint(const Argument& output, const Argument& other);

}  // namespace tandem

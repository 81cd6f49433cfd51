// Reading and writing safetensors files. The reader trusts nothing: every error is a
// std::runtime_error that names the file and the field, and comes before any tensor is returned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/tensors/tensors.h"
#include "tandem/tensor.h"

namespace tandem::tools {

/// A tensor of a file, row-major, in memory of its own.
struct FileTensor {
  std::string name;
  DType dtype;  // I64 arrives as int32, after a range check
  Dims shape;
  HostBuffer data;
};

struct SafetensorsFile {
  std::string path;
  std::vector<FileTensor> tensors;

  const FileTensor* find(std::string_view name) const;
};

/// Reads a file. Dtypes BF16, F16, F32, I32 and I64 (values must fit int32); rank at most
/// Dims::kMaxRank.
SafetensorsFile read_safetensors(const std::string& path);

/// A tensor to write: any strides, in host memory.
struct NamedView {
  std::string name;
  TensorView view;
};

/// Writes a file beside `path` and renames it: the file is whole or not there.
void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors);

/// Writes text beside `path` and renames.
void write_file(const std::string& path, const std::string& text);

}  // namespace tandem::tools

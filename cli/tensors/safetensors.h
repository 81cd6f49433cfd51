// Reading and writing safetensors files. The reader trusts nothing: every error is a
// std::runtime_error that names the file and the field, and comes before any tensor is returned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/files/files.h"
#include "cli/tensors/tensors.h"
#include "tandem/tensor.h"

namespace tandem::tools {

/// What the header says of a tensor, checked.
struct FileEntry {
  std::string name;
  DType dtype;  // I64 arrives as int32, after a range check
  Dims shape;
  std::uint64_t begin, end;  // its bytes in the file
  bool wide;                 // I64 in the file
};

/// A file whose header was read and checked, and no data yet. Dtypes BF16, F16, F32, F64, I32 and
/// I64 (values must fit int32); rank at most Dims::kMaxRank.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<FileEntry>& entries() const { return entries_; }
  /// Reads a tensor, row-major, into memory for its shape and dtype.
  void read(const FileEntry& entry, std::byte* data) const;

 private:
  InputFile file_;
  std::vector<FileEntry> entries_;  // by name
};

/// A tensor of a file, row-major, in memory of its own.
struct FileTensor {
  std::string name;
  DType dtype;
  Dims shape;
  HostBuffer data;
};

struct SafetensorsFile {
  std::string path;
  std::vector<FileTensor> tensors;

  const FileTensor* find(std::string_view name) const;
};

/// Reads a file whole.
SafetensorsFile read_safetensors(const std::string& path);

/// A tensor to write: any strides, in host memory.
struct NamedView {
  std::string name;
  TensorView view;
};

void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors);

}  // namespace tandem::tools

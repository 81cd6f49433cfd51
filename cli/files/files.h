// Files as the program reads and writes them. Every error is a std::runtime_error that names the
// file and says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::tools {

/// A file open for reading; no folder.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Returns the bytes of the file, which must be one that can be read at any place.
  std::uint64_t size() const;
  void read(std::uint64_t at, void* data, std::size_t bytes) const;
  /// Reads up to the end, from any file: a pipe too.
  std::string read_text() const;

 private:
  std::string path_;
  int descriptor_;
};

std::string read_text(const std::string& path);

/// Takes the next bytes of a file.
using Put = std::function<void(std::string_view bytes)>;

/// Writes what `fill` puts. A regular file is replaced whole or stays as it was, and keeps its
/// mode; a link stays, and what it names is written; devices and pipes are written as they are.
void write_file(const std::string& path, const std::function<void(const Put& put)>& fill);
void write_file(const std::string& path, const std::string& text);

/// Refuses a path that write_file() could not write once its folders are made: before work whose
/// results it is for.
void require_writable(const std::string& path);

/// Makes the folder that the file lies in, and those around it.
void make_folder_of(const std::string& path);

}  // namespace tandem::tools

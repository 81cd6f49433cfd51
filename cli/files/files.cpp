#include "cli/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const char* what, int error) {
  throw std::runtime_error(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(error)));
}

/// Follows links to what they name, which need not be there.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel
  fs::path target = path;
  std::error_code none;
  for (int i = 0; fs::is_symlink(target, none); ++i) {
    if (i == kMostLinks) refuse(path, "written", ELOOP);
    target = target.parent_path() / fs::read_symlink(target);
  }
  return target.string();
}

/// A file open for writing; errors name the file that the user named.
class OutputFile {
 public:
  OutputFile(std::string name, const std::string& path, int flags)
      : name_(std::move(name)),
        descriptor_(open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666)) {
    if (descriptor_ < 0) refuse(name_, "written", errno);
  }
  ~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void put(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) refuse(name_, "written", errno);
      if (written > 0) bytes.remove_prefix(written);
    }
  }
  void set_mode(mode_t mode) const {
    if (fchmod(descriptor_, mode) != 0) refuse(name_, "written", errno);
  }
  /// why not left to the destructor: some file systems say only here that the disk is full.
  void close() {
    if (::close(std::exchange(descriptor_, -1)) != 0) refuse(name_, "written", errno);
  }

 private:
  std::string name_;
  int descriptor_;
};

void fill_and_close(OutputFile& file, const std::function<void(const Put& put)>& fill) {
  fill([&](std::string_view bytes) { file.put(bytes); });
  file.close();
}

/// Removes a file that was not renamed.
struct Temporary {
  explicit Temporary(std::string path) : path(std::move(path)) {}
  ~Temporary() { unlink(path.c_str()); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  std::string path;
};

}  // namespace

InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) refuse(path_, "opened", errno);
  struct stat facts {};
  if (fstat(descriptor_, &facts) != 0 || !S_ISDIR(facts.st_mode)) return;
  close(descriptor_);
  refuse(path_, "opened", EISDIR);
}

InputFile::~InputFile() { close(descriptor_); }

std::uint64_t InputFile::size() const {
  const off_t end = lseek(descriptor_, 0, SEEK_END);
  if (end < 0) refuse(path_, "read", errno);
  return static_cast<std::uint64_t>(end);
}

void InputFile::read(std::uint64_t at, void* data, std::size_t bytes) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, bytes, static_cast<off_t>(at));
    if (got < 0 && errno != EINTR) refuse(path_, "read", errno);
    if (got == 0) throw std::runtime_error(path_ + ": became shorter while it was read");
    if (got < 0) continue;
    to += got;
    at += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

std::string InputFile::read_text() const {
  std::string text;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = ::read(descriptor_, part.data(), part.size());
    if (got < 0 && errno != EINTR) refuse(path_, "read", errno);
    if (got == 0) return text;
    if (got > 0) text.append(part.data(), got);
  }
}

std::string read_text(const std::string& path) { return InputFile(path).read_text(); }

void write_file(const std::string& path, const std::function<void(const Put& put)>& fill) {
  struct stat old {};
  const bool exists = stat(path.c_str(), &old) == 0;
  if (!exists && errno != ENOENT) refuse(path, "written", errno);
  if (exists && !S_ISREG(old.st_mode)) {
    OutputFile file(path, path, 0);
    fill_and_close(file, fill);
    return;
  }
  // why asked: renaming needs no permission of the file that it replaces.
  if (exists && access(path.c_str(), W_OK) != 0) refuse(path, "written", errno);
  const std::string target = behind_links(path);
  const Temporary temporary(fmt::format("{}.{}.tmp", target, getpid()));
  OutputFile file(path, temporary.path, O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (exists) file.set_mode(old.st_mode & 07777);
  fill_and_close(file, fill);
  if (std::rename(temporary.path.c_str(), target.c_str()) != 0) refuse(path, "written", errno);
}

void write_file(const std::string& path, const std::string& text) {
  write_file(path, [&](const Put& put) { put(text); });
}

void require_writable(const std::string& path) {
  std::error_code none;
  const fs::file_status status = fs::status(path, none);
  if (fs::is_directory(status)) refuse(path, "written", EISDIR);
  if (fs::exists(status) && access(path.c_str(), W_OK) != 0) refuse(path, "written", errno);
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // a device or pipe
  fs::path folder = fs::absolute(behind_links(path)).parent_path();
  while (!fs::exists(folder, none) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, none)) refuse(path, "written", ENOTDIR);
  if (access(folder.c_str(), W_OK | X_OK) != 0) refuse(path, "written", errno);
}

void make_folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse(folder.string(), "made", error.value());
}

}  // namespace tandem::tools

#include "cli/recorded_command.h"

#include <algorithm>
#include <cctype>

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

/// Finds the folder around this one that holds bench/results; "" where none does.
fs::path checkout_around(const fs::path& folder) {
  for (fs::path at = folder;; at = at.parent_path()) {
    if (fs::is_directory(at / "bench/results")) return at;
    if (at == at.parent_path()) return "";
  }
}

std::string recorded_path(const fs::path& path, const fs::path& checkout) {
  const fs::path inside = path.lexically_relative(checkout);
  const bool outside = checkout.empty() || inside.empty() || *inside.begin() == "..";
  return (outside ? path.filename() : inside).string();
}

/// Takes an argument for a path when it, or the value after an option's "=", has a slash.
std::string recorded_argument(const std::string& argument, const fs::path& folder,
                              const fs::path& checkout) {
  const std::size_t equals = argument.starts_with('-') ? argument.find('=') : std::string::npos;
  const std::size_t begin = equals == std::string::npos ? 0 : equals + 1;
  std::string value = argument.substr(begin);
  if (value.find('/') == std::string::npos) return argument;
  while (value.size() > 1 && value.ends_with('/')) value.pop_back();
  return argument.substr(0, begin) + recorded_path(fs::weakly_canonical(folder / value), checkout);
}

/// Quotes for a shell, as Python's shlex.quote does.
std::string quoted(const std::string& argument) {
  const bool plain = std::all_of(argument.begin(), argument.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  });
  if (plain && !argument.empty()) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? "'\"'\"'" : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string recorded_command(const std::vector<std::string>& arguments, const fs::path& folder) {
  const fs::path here = fs::weakly_canonical(folder);
  const fs::path checkout = checkout_around(here);
  std::string command = "tandem";
  for (const std::string& argument : arguments) {
    command += " " + quoted(recorded_argument(argument, here, checkout));
  }
  return command;
}

}  // namespace tandem::tools

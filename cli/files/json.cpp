#include "cli/files/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace tandem::tools {
namespace {

constexpr std::size_t kMostLevels = 32;

/// The JSON library's words without its tag, and without what it quotes of the text.
std::string reason_of(const std::string& what) {
  const std::size_t tag = what.find("] ");
  const std::string reason = tag == std::string::npos ? what : what.substr(tag + 2);
  return reason.substr(0, std::min(reason.find("; last read: '"), reason.find(" parsing '")));
}

/// Walks JSON before it is kept. why: the library keeps the last of two equal names, and takes any
/// depth, at which what walks the value runs out of stack. Its parser with a callback would look at
/// all names again behind each.
template <class Json>
class Limits : public Json::json_sax_t {
 public:
  explicit Limits(const std::string& place) : place_(place) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(typename Json::number_integer_t) override { return true; }
  bool number_unsigned(typename Json::number_unsigned_t) override { return true; }
  bool number_float(typename Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(typename Json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (names_.back().insert(name).second) return true;
    throw std::runtime_error(fmt::format("{}: duplicate name {}", place_, shown(name)));
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    refuse(reason_of(error.what()));
    return false;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw std::runtime_error(fmt::format("{}: not valid JSON: {}", place_, reason));
  }
  bool open() {
    if (names_.size() == kMostLevels) {
      refuse(fmt::format("nested deeper than {} levels", kMostLevels));
    }
    names_.emplace_back();
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& place_;
  std::vector<std::set<std::string>> names_;  // of each level that is open
};

bool is_kind(const nlohmann::ordered_json& value, Kind kind) {
  switch (kind) {
    case Kind::kText: return value.is_string();
    case Kind::kNumber: return value.is_number();
    case Kind::kObject: return value.is_object();
  }
  return false;
}

constexpr const char* kKindNames[] = {"a string", "a number", "an object"};  // as Kind

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& place) {
  Limits<Json> limits(place);
  Json::sax_parse(text, &limits);
  return Json::parse(text);
}

template nlohmann::json parse_json(std::string_view text, const std::string& place);
template nlohmann::ordered_json parse_json(std::string_view text, const std::string& place);

std::string shown(std::string_view text) {
  constexpr int kMostCharacters = 80;
  std::string safe;
  int characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool continues = (byte & 0xc0) == 0x80;  // a character of several bytes
    if (!continues && characters++ == kMostCharacters) return safe + "...";
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte < 0x20 || byte == 0x7f) {
      safe += fmt::format("\\u{:04x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      safe += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      safe += text[i];
    }
  }
  return safe;
}

void require_kind(const nlohmann::ordered_json& object, const std::vector<const char*>& fields,
                  Kind kind, const std::string& place) {
  for (const char* field : fields) {
    const auto at = object.find(field);
    if (at == object.end() || at->is_null() || is_kind(*at, kind)) continue;
    throw std::runtime_error(fmt::format("{}: {}: must be {}, got {}", place, field,
                                         kKindNames[static_cast<int>(kind)], shown_json(*at)));
  }
}

}  // namespace tandem::tools

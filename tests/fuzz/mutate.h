// Inputs for readers of files: good ones, changed at random by a seed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tandem::tools {

class Mutator {
 public:
  /// `good`: inputs to begin with. `words`: what the format is made of.
  Mutator(std::uint64_t seed, std::vector<std::string> good, std::vector<std::string> words)
      : random_(seed), good_(std::move(good)), words_(std::move(words)) {}

  /// Returns one of the good inputs after one to eight changes, most often few.
  std::string next() {
    std::string text = any(good_);
    do {
      change(text);
    } while (below(8) >= 3);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    return text;
  }

 private:
  static constexpr std::size_t kMostBytes = 1 << 16;

  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& any(const std::vector<std::string>& texts) {
    return texts[below(texts.size())];
  }

  void change(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t some = std::min(below(1 + below(64)) + 1, text.size() - at);
    switch (below(9)) {
      case 0: text.replace(at, some, any(words_)); break;
      case 1: text.insert(at, any(words_)); break;
      case 2: text.erase(at, some); break;
      case 3: text.insert(below(text.size() + 1), text.substr(at, some)); break;
      case 4: text.resize(at); break;
      case 5: text.insert(at, 1, static_cast<char>(random_())); break;
      case 6: replace_value(text, at); break;
      case 7: {  // the tail of another
        const std::string& other = any(good_);
        text = text.substr(0, at) + other.substr(std::min(other.size(), at));
        break;
      }
      default:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << below(8));
    }
  }

  /// Replaces the value behind the next colon, quotes and all: the text stays JSON.
  void replace_value(std::string& text, std::size_t from) {
    const std::size_t colon = text.find(':', from);
    if (colon == std::string::npos) return;
    const std::size_t end = text.find_first_of(",}", colon);
    if (end == std::string::npos) return;
    text.replace(colon + 1, end - colon - 1, any(words_));
  }

  std::mt19937_64 random_;
  std::vector<std::string> good_;
  std::vector<std::string> words_;
};

}  // namespace tandem::tools

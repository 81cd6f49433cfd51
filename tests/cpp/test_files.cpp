// Files are written whole or not at all, through links, and never in place of a device; what is
// wrong with them is said with its reason. JSON from files: its limits, and what messages show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "cli/files/files.h"
#include "cli/files/json.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was wrong";
}

class Files : public testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / ("tandem_files_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t count() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(Files, LinksStayAndTheirTargetIsWritten) {
  fs::create_directories(folder_ / "deep");
  write_file(path("deep/old"), "old");
  fs::create_symlink("deep/old", path("link"));
  fs::create_symlink("link", path("link_to_link"));
  write_file(path("link_to_link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link_to_link")) && fs::is_symlink(path("link")));
  EXPECT_FALSE(fs::is_symlink(path("deep/old")));
  EXPECT_EQ(read_text(path("deep/old")), "new");

  fs::create_symlink("deep/none", path("dangling"));
  write_file(path("dangling"), "made");
  EXPECT_TRUE(fs::is_symlink(path("dangling")));
  EXPECT_EQ(read_text(path("deep/none")), "made");

  fs::create_symlink("round", path("round"));
  EXPECT_THAT(message_of([&] { write_file(path("round"), ""); }),
              HasSubstr(path("round") + ": cannot be written: Too many levels of symbolic links"));
}

TEST_F(Files, TheModeIsKept) {
  write_file(path("a"), "old");
  fs::permissions(path("a"), fs::perms(0640));
  write_file(path("a"), "new");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms(0640));
  EXPECT_EQ(read_text(path("a")), "new");
}

TEST_F(Files, PipesAndDevicesAreWrittenAsTheyAre) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_text(path("fifo")); });
  write_file(path("fifo"), "through");
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(path("fifo")));
  fs::create_symlink("/dev/full", path("full"));
  EXPECT_EQ(message_of([&] { write_file(path("full"), "x"); }),
            path("full") + ": cannot be written: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

/// What can be written is said to be so, and is left as it is.
TEST_F(Files, WritableIsWhatCanBeWritten) {
  write_file(path("old"), "old");
  fs::create_symlink("new", path("dangling"));
  for (const std::string& where : {path("old"), path("new"), path("none/yet/new"), path("dangling"),
                                   std::string("/dev/null")}) {
    EXPECT_EQ(message_of([&] { require_writable(where); }), "nothing was wrong") << where;
  }
  EXPECT_EQ(read_text(path("old")), "old");
  EXPECT_EQ(count(), 2u);
}

TEST_F(Files, AFailedWriteLeavesTheOldFile) {
  write_file(path("a"), "old");
  EXPECT_EQ(message_of([&] {
              write_file(path("a"), [](const Put& put) {
                put("half");
                throw std::runtime_error("stop");
              });
            }),
            "stop");
  EXPECT_EQ(read_text(path("a")), "old");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, ReasonsAreSaid) {
  write_file(path("file"), "");
  const std::pair<std::string, std::string> wrong[] = {
      {path("none/a"), "No such file or directory"},
      {path("file/a"), "Not a directory"},
      {folder_.string(), "Is a directory"}};
  for (const auto& [where, reason] : wrong) {
    EXPECT_EQ(message_of([&] { read_text(where); }), where + ": cannot be opened: " + reason);
    EXPECT_EQ(message_of([&] { write_file(where, "x"); }),
              where + ": cannot be written: " + reason);
  }
  for (const auto& [where, reason] : {std::pair(path("file/a"), "Not a directory"),
                                      std::pair(path("file/a/b"), "Not a directory"),
                                      std::pair(folder_.string(), "Is a directory")}) {
    EXPECT_EQ(message_of([&] { require_writable(where); }),
              where + ": cannot be written: " + reason);
  }
  EXPECT_EQ(message_of([&] { make_folder_of(path("file/a/b")); }),
            path("file/a") + ": cannot be made: Not a directory");
  if (geteuid() == 0) return;  // root may read and write anything
  fs::permissions(path("file"), fs::perms(0));
  EXPECT_EQ(message_of([&] { read_text(path("file")); }),
            path("file") + ": cannot be opened: Permission denied");
  EXPECT_EQ(message_of([&] { write_file(path("file"), "x"); }),
            path("file") + ": cannot be written: Permission denied");
  EXPECT_EQ(message_of([&] { require_writable(path("file")); }),
            path("file") + ": cannot be written: Permission denied");
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(JsonOfFiles, DepthIsLimited) {
  using Json = nlohmann::json;
  EXPECT_NO_THROW(parse_json<Json>(nested(32), "f"));
  for (const int levels : {33, 100000}) {
    EXPECT_EQ(message_of([&] { parse_json<Json>(nested(levels), "f"); }),
              "f: not valid JSON: nested deeper than 32 levels");
  }
}

TEST(JsonOfFiles, MessagesHaveNoTagAndNoQuote) {
  using Json = nlohmann::ordered_json;
  EXPECT_EQ(
      message_of([] { parse_json<Json>("{\"a\": tru\x1b}", "f:3"); }),
      "f:3: not valid JSON: parse error at line 1, column 10: syntax error while parsing value "
      "- invalid literal");
  EXPECT_EQ(message_of([] { parse_json<Json>("[1e999]", "f"); }),
            "f: not valid JSON: number overflow");
  EXPECT_EQ(
      message_of([] { parse_json<Json>(R"({"a": {"b": 1}, "a\u001b": 1, "a\u001b": 2})", "f"); }),
      "f: duplicate name a\\u001b");
}

TEST(JsonOfFiles, WhatIsShownIsShortAndPrintable) {
  EXPECT_EQ(shown("plain ä"), "plain ä");
  EXPECT_EQ(shown("\x1b[2J\n\x7f"), "\\u001b[2J\\u000a\\u007f");
  EXPECT_EQ(shown("\xc2\x9b"), "\\u009b");  // a control sequence in one character
  EXPECT_EQ(shown(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(shown(std::string(81, 'x')), std::string(80, 'x') + "...");
  std::string many;
  for (int i = 0; i < 81; ++i) many += "ä";
  EXPECT_EQ(shown(many), many.substr(2) + "...");
}

TEST(JsonOfFiles, KindsAreNamed) {
  const nlohmann::ordered_json object = {{"a", 1}, {"b", nullptr}, {"c", "x"}};
  EXPECT_NO_THROW(require_kind(object, {"b", "c", "none"}, Kind::kText, "f"));
  EXPECT_EQ(message_of([&] {
              require_kind(object, {"c", "a"}, Kind::kText, "f: row 1");
            }),
            "f: row 1: a: must be a string, got 1");
  EXPECT_EQ(message_of([&] {
              require_kind(object, {"a", "c"}, Kind::kNumber, "f");
            }),
            "f: c: must be a number, got \"x\"");
}

}  // namespace
}  // namespace tandem::tools

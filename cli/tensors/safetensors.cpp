#include "cli/tensors/safetensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own reader

struct FileDType {
  const char* name;
  DType dtype;
  std::uint64_t bytes;
};

constexpr FileDType kFileDTypes[] = {{"BF16", DType::kBFloat16, 2},
                                     {"F16", DType::kFloat16, 2},
                                     {"F32", DType::kFloat32, 4},
                                     {"I32", DType::kInt32, 4},
                                     {"I64", DType::kInt32, 8}};

/// One entry of the header, checked.
struct Entry {
  std::string name;
  FileDType dtype;
  Dims shape;
  std::uint64_t begin;
  std::uint64_t end;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), stream_(path, std::ios::binary) {
    if (!stream_ || std::filesystem::is_directory(path)) refuse("cannot be opened");
    stream_.seekg(0, std::ios::end);
    const auto end = stream_.tellg();
    if (!stream_ || end < 0) refuse("cannot be read");
    file_bytes_ = static_cast<std::uint64_t>(end);
    stream_.seekg(0);
  }

  SafetensorsFile read() {
    const Json header = read_header();
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") entries.push_back(parse_entry(name, value));
    }
    check_coverage(entries);
    SafetensorsFile file{path_, {}};
    for (const Entry& entry : entries) file.tensors.push_back(read_tensor(entry));
    return file;
  }

 private:
  [[noreturn]] void refuse(const std::string& text) const {
    throw std::runtime_error(path_ + ": " + text);
  }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& text) const {
    refuse("tensor " + tensor + ": " + text);
  }

  Json read_header() {
    unsigned char size_bytes[8];
    if (file_bytes_ < sizeof(size_bytes)) {
      refuse(fmt::format("header size: the file has {} bytes, needs at least 8", file_bytes_));
    }
    stream_.read(reinterpret_cast<char*>(size_bytes), sizeof(size_bytes));
    std::uint64_t size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | size_bytes[i];
    if (size > file_bytes_ - sizeof(size_bytes)) {
      refuse(fmt::format("header size: {} bytes do not fit in a file of {}", size, file_bytes_));
    }
    if (size > kMaxHeaderBytes) {
      refuse(fmt::format("header size: {} bytes, at most {} allowed", size, kMaxHeaderBytes));
    }
    data_begin_ = sizeof(size_bytes) + size;
    std::string text(size, '\0');
    stream_.read(text.data(), static_cast<std::streamsize>(size));
    if (!stream_) refuse("header: cannot be read");
    return parse_header(text);
  }

  Json parse_header(const std::string& text) const {
    // why: the JSON library keeps the last of two equal keys; two tensors of one name are an error
    // here.
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(parsed).second) {
        refuse("header: duplicate name " + parsed.get<std::string>());
      }
      return true;
    };
    try {
      Json header = Json::parse(text, watch);
      if (!header.is_object()) refuse("header: must be a JSON object");
      return header;
    } catch (const Json::exception& error) {
      refuse(std::string("header: not valid JSON: ") + error.what());
    }
  }

  std::uint64_t unsigned_number(const std::string& tensor, const char* field,
                                const Json& value) const {
    if (!value.is_number_unsigned()) {
      refuse(tensor, fmt::format("{}: must hold unsigned integers, got {}", field, value.dump()));
    }
    return value.get<std::uint64_t>();
  }

  Entry parse_entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) refuse(name, "must be a JSON object");
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(field)) refuse(name, std::string(field) + ": is missing");
    }
    const Json& dtype = value["dtype"];
    const auto known = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                    [&](const FileDType& one) { return dtype == one.name; });
    if (known == std::end(kFileDTypes)) {
      refuse(name,
             fmt::format("dtype: {} is not supported (BF16, F16, F32, I32, I64)", dtype.dump()));
    }
    const Json& shape = value["shape"];
    if (!shape.is_array()) refuse(name, "shape: must be a list");
    if (shape.size() > Dims::kMaxRank) {
      refuse(name,
             fmt::format("shape: rank must be at most {}, got {}", +Dims::kMaxRank, shape.size()));
    }
    std::vector<std::int64_t> extents;
    std::uint64_t bytes = known->bytes;
    bool overflow = false;
    bool empty = false;
    for (const Json& extent : shape) {
      const std::uint64_t number = unsigned_number(name, "shape", extent);
      overflow |= number > std::numeric_limits<std::int64_t>::max();
      empty |= number == 0;
      if (number != 0) overflow |= __builtin_mul_overflow(bytes, number, &bytes);
      extents.push_back(static_cast<std::int64_t>(number));
    }
    if (overflow) refuse(name, fmt::format("shape: {} overflows a 64-bit size", shape.dump()));
    if (empty) bytes = 0;

    const Json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2)
      refuse(name, "data_offsets: must be [begin, end]");
    const std::uint64_t begin = unsigned_number(name, "data_offsets", offsets[0]);
    const std::uint64_t end = unsigned_number(name, "data_offsets", offsets[1]);
    const std::uint64_t data_bytes = file_bytes_ - data_begin_;
    if (begin > end || end > data_bytes) {
      refuse(name, fmt::format("data_offsets: [{}, {}] must lie in the {} bytes of data", begin,
                               end, data_bytes));
    }
    if (end - begin != bytes) {
      refuse(name, fmt::format("data_offsets: {} of shape {} needs {} bytes, got {}", known->name,
                               shape.dump(), bytes, end - begin));
    }
    return {name, *known, Dims(std::span<const std::int64_t>(extents)), begin, end};
  }

  /// Checks that the tensors cover the data exactly: no overlap, no hole, nothing after the last.
  void check_coverage(std::vector<Entry> entries) const {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t covered = 0;
    for (const Entry& entry : entries) {
      if (entry.begin == covered) {
        covered = entry.end;
        continue;
      }
      refuse(entry.name, fmt::format("data_offsets: begin at {}, {} {}", entry.begin,
                                     entry.begin < covered ? "overlapping data that ends at"
                                                           : "leaving a hole after",
                                     covered));
    }
    if (covered != file_bytes_ - data_begin_) {
      refuse(fmt::format("data: {} bytes after the last tensor belong to none",
                         file_bytes_ - data_begin_ - covered));
    }
  }

  FileTensor read_tensor(const Entry& entry) {
    const std::uint64_t bytes = entry.end - entry.begin;
    FileTensor tensor{entry.name, entry.dtype.dtype, entry.shape, HostBuffer(bytes)};
    stream_.seekg(static_cast<std::streamoff>(data_begin_ + entry.begin));
    stream_.read(reinterpret_cast<char*>(tensor.data.data()), static_cast<std::streamsize>(bytes));
    if (!stream_) refuse(entry.name, "cannot be read");
    if (entry.dtype.bytes != 8) return tensor;
    HostBuffer narrow(bytes / 2);
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      std::int64_t wide;
      std::memcpy(&wide, tensor.data.data() + i * 8, 8);
      const auto value = static_cast<std::int32_t>(wide);
      if (value != wide) refuse(entry.name, fmt::format("value {} does not fit int32", wide));
      std::memcpy(narrow.data() + i * 4, &value, 4);
    }
    tensor.data = std::move(narrow);
    return tensor;
  }

  std::string path_;
  std::ifstream stream_;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t data_begin_ = 0;
};

/// Calls `write` on a stream beside `path`, then renames.
void write_beside(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  if (!stream) throw std::runtime_error(path + ": cannot be written");
  write(stream);
  stream.close();
  if (!stream || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw std::runtime_error(path + ": cannot be written");
  }
}

const char* file_dtype(DType dtype) {
  for (const FileDType& known : kFileDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

}  // namespace

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  for (const FileTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

SafetensorsFile read_safetensors(const std::string& path) { return Reader(path).read(); }

void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors) {
  Json header = Json::object();
  std::uint64_t end = 0;
  for (const NamedView& tensor : tensors) {
    const std::uint64_t begin = end;
    end += tensor.view.shape.product() * size_of(tensor.view.dtype);
    header[tensor.name] = {
        {"dtype", file_dtype(tensor.view.dtype)},
        {"shape", std::vector<std::int64_t>(tensor.view.shape.begin(), tensor.view.shape.end())},
        {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // why: readers that map the file want aligned data
  write_beside(path, [&](std::ostream& stream) {
    for (int i = 0; i < 8; ++i) stream.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
    stream << text;
    for (const NamedView& tensor : tensors) {
      const TensorView& view = tensor.view;
      const NamedTensor strided{tensor.name, view.dtype, view.shape, view.strides};
      NamedTensor packed = strided;
      packed.strides = contiguous_strides(view.shape);
      const auto size = static_cast<std::size_t>(size_of(view.dtype));
      HostBuffer data(view.shape.product() * size);
      const auto* from = static_cast<const std::byte*>(view.data);
      for_each_element(packed, [&](std::int64_t offset, std::int64_t index) {
        std::int64_t source = 0;
        for (int i = view.shape.rank() - 1; i >= 0; --i) {
          source += index % view.shape[i] * view.strides[i];
          index /= view.shape[i];
        }
        std::memcpy(data.data() + offset * size, from + source * size, size);
      });
      stream.write(reinterpret_cast<const char*>(data.data()),
                   static_cast<std::streamsize>(view.shape.product() * size));
    }
  });
}

void write_file(const std::string& path, const std::string& text) {
  write_beside(path, [&](std::ostream& stream) { stream << text; });
}

}  // namespace tandem::tools

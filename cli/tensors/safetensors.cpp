#include "cli/tensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "cli/files/json.h"

namespace tandem::tools {
namespace {

// why not ordered_json: it looks at every name before it adds one.
using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own reader

struct FileDType {
  const char* name;
  DType dtype;
  std::uint64_t bytes;
};

constexpr FileDType kFileDTypes[] = {{"BF16", DType::kBFloat16, 2}, {"F16", DType::kFloat16, 2},
                                     {"F32", DType::kFloat32, 4},   {"F64", DType::kFloat64, 8},
                                     {"I32", DType::kInt32, 4},     {"I64", DType::kInt32, 8}};

/// The header of a file while it is checked.
class Header {
 public:
  explicit Header(const InputFile& file) : file_(file), file_bytes_(file.size()) {}

  std::vector<FileEntry> read() {
    const Json header = parse_json<Json>(read_text(), file_.path() + ": header");
    if (!header.is_object()) refuse("header: must be a JSON object");
    std::vector<FileEntry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") entries.push_back(parse_entry(name, value));
    }
    check_coverage(entries);
    return entries;
  }

 private:
  [[noreturn]] void refuse(const std::string& text) const {
    throw std::runtime_error(file_.path() + ": " + text);
  }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& text) const {
    refuse("tensor " + shown(tensor) + ": " + text);
  }

  std::string read_text() {
    unsigned char size_bytes[8];
    if (file_bytes_ < sizeof(size_bytes)) {
      refuse(fmt::format("header size: the file has {} bytes, needs at least 8", file_bytes_));
    }
    file_.read(0, size_bytes, sizeof(size_bytes));
    std::uint64_t size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | size_bytes[i];
    if (size > file_bytes_ - sizeof(size_bytes)) {
      refuse(
          fmt::format("header size: {} bytes do not fit in a file of {}: not a safetensors file, "
                      "or one cut short",
                      size, file_bytes_));
    }
    if (size > kMaxHeaderBytes) {
      refuse(fmt::format("header size: {} bytes, at most {} allowed", size, kMaxHeaderBytes));
    }
    data_begin_ = sizeof(size_bytes) + size;
    std::string text(size, '\0');
    file_.read(sizeof(size_bytes), text.data(), size);
    return text;
  }

  std::uint64_t unsigned_number(const std::string& tensor, const char* field,
                                const Json& value) const {
    if (!value.is_number_unsigned()) {
      refuse(tensor,
             fmt::format("{}: must hold unsigned integers, got {}", field, shown_json(value)));
    }
    return value.get<std::uint64_t>();
  }

  FileEntry parse_entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) refuse(name, "must be a JSON object");
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(field)) refuse(name, std::string(field) + ": is missing");
    }
    const Json& dtype = value["dtype"];
    const auto known = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                    [&](const FileDType& one) { return dtype == one.name; });
    if (known == std::end(kFileDTypes)) {
      refuse(name, fmt::format("dtype: {} is not supported (BF16, F16, F32, F64, I32, I64)",
                               shown_json(dtype)));
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
    if (overflow) refuse(name, fmt::format("shape: {} overflows a 64-bit size", shown_json(shape)));
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
                               shown_json(shape), bytes, end - begin));
    }
    return {name,
            known->dtype,
            Dims(std::span<const std::int64_t>(extents)),
            data_begin_ + begin,
            data_begin_ + end,
            known->bytes != static_cast<std::uint64_t>(size_of(known->dtype))};
  }

  /// Checks that the tensors cover the data exactly: no overlap, no hole, nothing after the last.
  void check_coverage(const std::vector<FileEntry>& entries) const {
    std::vector<const FileEntry*> in_order;
    in_order.reserve(entries.size());
    for (const FileEntry& entry : entries) in_order.push_back(&entry);
    std::stable_sort(in_order.begin(), in_order.end(), [](const FileEntry* a, const FileEntry* b) {
      return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    std::uint64_t covered = data_begin_;
    for (const FileEntry* entry : in_order) {
      if (entry->begin == covered) {
        covered = entry->end;
        continue;
      }
      refuse(entry->name,
             fmt::format(
                 "data_offsets: begin at {}, {} {}", entry->begin - data_begin_,
                 entry->begin < covered ? "overlapping data that ends at" : "leaving a hole after",
                 covered - data_begin_));
    }
    if (covered != file_bytes_) {
      refuse(fmt::format("data: {} bytes after the last tensor belong to none",
                         file_bytes_ - covered));
    }
  }

  const InputFile& file_;
  std::uint64_t file_bytes_;
  std::uint64_t data_begin_ = 0;
};

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

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(path), entries_(Header(file_).read()) {}

void SafetensorsReader::read(const FileEntry& entry, std::byte* data) const {
  const std::uint64_t bytes = entry.end - entry.begin;
  if (!entry.wide) {
    file_.read(entry.begin, data, bytes);
    return;
  }
  std::vector<std::int64_t> wide(bytes / sizeof(std::int64_t));
  file_.read(entry.begin, wide.data(), bytes);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const auto value = static_cast<std::int32_t>(wide[i]);
    if (value != wide[i]) {
      throw std::runtime_error(fmt::format("{}: tensor {}: value {} does not fit int32", path(),
                                           shown(entry.name), wide[i]));
    }
    std::memcpy(data + i * sizeof(value), &value, sizeof(value));
  }
}

SafetensorsFile read_safetensors(const std::string& path) {
  const SafetensorsReader reader(path);
  SafetensorsFile file{path, {}};
  for (const FileEntry& entry : reader.entries()) {
    const auto bytes = entry.shape.product() * size_of(entry.dtype);
    FileTensor& tensor = file.tensors.emplace_back(
        FileTensor{entry.name, entry.dtype, entry.shape, HostBuffer(bytes)});
    reader.read(entry, tensor.data.data());
  }
  return file;
}

void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
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
  write_file(path, [&](const Put& put) {
    std::string size(8, '\0');
    for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    put(size);
    put(text);
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
      put({reinterpret_cast<const char*>(data.data()), view.shape.product() * size});
    }
  });
}

}  // namespace tandem::tools

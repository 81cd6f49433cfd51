// tandem info: what this build and this machine can run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/build_info.h"
#include "cli/calls/backend.h"
#include "cli/commands.h"
#include "tandem/variants.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  std::string op;
  bool variants = false;
  bool json = false;
};

/// A device here, or one that would be of use.
struct Known {
  std::string name;  // "cuda:0"
  DeviceProperties device;
  bool here;
};

/// The CPU and the CUDA devices; where a build for CUDA finds none, an H200 for their variants.
std::vector<Known> known_devices() {
  std::vector<Known> known = {{"cpu", DeviceProperties::cpu(), true}};
  const int count = cuda_device_count();
  for (int i = 0; i < count; ++i) {
    known.push_back({fmt::format("cuda:{}", i), device_properties(Device::cuda(i)), true});
  }
  if (count == 0 && built_with_cuda()) known.push_back({"cuda", DeviceProperties::h200(), false});
  return known;
}

/// Directions by op, in the order of operations().
std::vector<std::pair<std::string, std::vector<std::string>>> ops() {
  std::vector<std::pair<std::string, std::vector<std::string>>> ops;
  for (const Operation& operation : operations()) {
    if (ops.empty() || ops.back().first != operation.name) ops.push_back({operation.name, {}});
    ops.back().second.push_back(operation.direction);
  }
  return ops;
}

/// The variants of all ops, or of one.
std::vector<VariantInfo> variants_of(const std::string& op, const DeviceProperties& device) {
  std::vector<VariantInfo> found = variants(device);
  std::erase_if(found, [&](const VariantInfo& one) { return !op.empty() && one.op != op; });
  return found;
}

std::string describe(const Known& known) {
  if (known.name == "cpu") return device_name(Device::cpu());
  const DeviceProperties& device = known.device;
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} MiB L2", device.name,
                     device.compute_major, device.compute_minor, device.multiprocessors,
                     device.l2_bytes >> 20);
}

void print_variants(const std::string& op) {
  for (const Known& known : known_devices()) {
    fmt::print("\n{}\n", known.here ? fmt::format("{}: {}", known.name, describe(known))
                                    : fmt::format("cuda: no device here; an {} would have",
                                                  known.device.name));
    for (const VariantInfo& variant : variants_of(op, known.device)) {
      fmt::print("  {}{}\n", variant.name,
                 variant.unavailable.empty() ? "" : "  unavailable: " + variant.unavailable);
    }
  }
}

void print(const InfoOptions& options) {
  fmt::print("tandem {}, commit {}\nbuild: {}\n\ndevices\n", kVersion, kCommit, build_options());
  for (const Known& known : known_devices()) {
    if (!known.here) continue;
    const std::vector<VariantInfo> all = variants_of(options.op, known.device);
    const auto usable = std::ranges::count(all, "", &VariantInfo::unavailable);
    fmt::print("  {}: {}; {} of {} variants available\n", known.name, describe(known), usable,
               all.size());
  }
  if (cuda_device_count() == 0) {
    fmt::print("  cuda: unavailable: {}\n", cuda_unavailable_reason());
  }
  fmt::print("\nops\n");
  for (const auto& [op, directions] : ops()) {
    if (!options.op.empty() && options.op != op) continue;
    fmt::print("  {:<14} {}\n", op, fmt::join(directions, " "));
  }
  if (options.variants || !options.op.empty()) print_variants(options.op);
}

void print_json(const InfoOptions& options) {
  Json json = {{"version", kVersion},         {"commit", kCommit},
               {"build", build_options()},    {"built_with_cuda", built_with_cuda()},
               {"cuda_unavailable", nullptr}, {"ops", Json::object()},
               {"devices", Json::array()}};
  if (cuda_device_count() == 0) json["cuda_unavailable"] = cuda_unavailable_reason();
  for (const auto& [op, directions] : ops()) {
    if (options.op.empty() || options.op == op) json["ops"][op] = directions;
  }
  for (const Known& known : known_devices()) {
    Json list = Json::array();
    for (const VariantInfo& variant : variants_of(options.op, known.device)) {
      list.push_back({{"name", variant.name}, {"unavailable", variant.unavailable}});
    }
    json["devices"].push_back(
        {{"device", known.name},
         {"name", known.name == "cpu" ? device_name(Device::cpu()) : known.device.name},
         {"here", known.here},
         {"variants", list}});
  }
  fmt::print("{}\n", json.dump(1));
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Version, build, devices, ops and their variants");
  const auto options = std::make_shared<InfoOptions>();
  command->add_option("op", options->op, "only this op, with its variants")->check(known_op());
  command->add_flag("--variants", options->variants, "list the variants of all ops");
  command->add_flag("--json", options->json, "all of it as JSON");
  command->footer(
      "A variant is one way to run a call on a device; TANDEM_VARIANT and --variant take its "
      "name.\n"
      "Examples: tandem info\n"
      "          tandem info gla");
  command->callback([options] { options->json ? print_json(*options) : print(*options); });
}

}  // namespace tandem::tools

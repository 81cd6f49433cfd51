// Results files for the tests of the report.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/report/data.h"

namespace tandem::tools {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

inline Json row(const std::string& run, const std::string& provider, double us,
                const std::string& name = "b4h32_t1024_d64", const std::string& dtype = "bf16") {
  return {{"run", run},
          {"op", "gla"},
          {"direction", "forward"},
          {"case", name},
          {"dtype", dtype},
          {"provider", provider},
          {"variant", provider == "tandem" ? Json("gla_forward.sm90.bf16.c64") : Json(nullptr)},
          {"median_us", us},
          {"p10_us", us * 0.97},
          {"p90_us", us * 1.04},
          {"bytes", 67633152},
          {"flops", 4294967296},
          {"floor_us", 15.73},
          {"error", {{"metric", "rel_rms"}, {"value", 0.002363}}}};
}

inline Json failed(const std::string& run, const std::string& provider, const std::string& text,
                   const std::string& name = "b4h32_t1024_d64") {
  Json json = row(run, provider, 1, name);
  json.erase("median_us");
  json["failure"] = text;
  return json;
}

inline Json run_of(const std::string& date, double copy) {
  return {
      {"device", {{"name", "NVIDIA <H200> & co"}, {"driver", "580.159"}, {"sm_clock_mhz", 1980}}},
      {"commit", "abc1234"},
      {"date", date},
      {"command", "tandem bench gla --case '*' | tee \"x\""},
      {"timer", {{"method", "cuda-graph"}, {"l2", "cold"}}},
      {"ceilings", {{"copy_tbps", copy}, {"bf16_tflops", 697.1}}}};
}

class Report : public testing::Test {
 protected:
  Report() : folder_(fs::temp_directory_path() / ("tandem_report_" + std::to_string(getpid()))) {}
  ~Report() override { fs::remove_all(folder_); }

  std::vector<ReportFile> files(const Json& rows, const std::string& op = "gla") {
    json_ = {{"schema", 1},
             {"runs",
              {{"20260102-1", run_of("2026-01-02", 4.299)},
               {"20260101-1", run_of("2026-01-01", 4.251)}}},
             {"rows", rows}};
    fs::create_directories(folder_ / "gpu");
    std::ofstream(folder_ / "gpu" / (op + ".json")) << json_.dump();
    return load_results(folder_.string());
  }

  fs::path folder_;
  Json json_;
};

inline const std::string kNew = "20260102-1", kOld = "20260101-1";

inline Json many_rows() {
  Json with_counters = row(kNew, "tandem", 25.88);
  with_counters["counters"] = {{"run", kOld},
                               {"median_us", 26.1},
                               {"dram_read_bytes", 51234567},
                               {"dram_write_bytes", 17654321},
                               {"l1_write_bytes", 16777216},
                               {"l2_bytes", 123456789},
                               {"tensor_pipe_pct", 28.94},
                               {"occupancy_pct", 24.81},
                               {"registers", 168},
                               {"shared_bytes", 185344},
                               {"spill_loads", 3},
                               {"spill_stores", 4},
                               {"wgmma", 131072},
                               {"reading", "memory-bound: 1.02x the fewest bytes"}};
  Json fla = row(kNew, "fla", 38.21);
  fla["first_call_s"] = 12.345;
  return {with_counters,
          fla,
          row(kNew, "unfused", 61.7),
          row(kNew, "tandem", 85.43, "b4h32_t4096_d64"),
          row(kNew, "tandem", 24.9, "b4h32_t1024_d64", "fp16"),
          failed(kNew, "tfla", "RuntimeError: 3 of 7 <b>fail</b>"),
          row(kOld, "tandem", 90.1, "b4h32_t4096_d64"),
          row(kOld, "mamba2", 151.3, "b4h32_t4096_d64"),
          row(kOld, "tandem", 317.7, "long_b4h32_t16384_d64"),
          failed(kNew, "tandem", "[gla_forward] no variant", "fla_b8h32_t2048_d256")};
}

inline std::vector<Json> some_iterations() {
  const auto line = [](double us, const std::string& note) {
    return Json{
        {"device", "GPU"},
        {"op", "gla"},
        {"direction", "forward"},
        {"case", "b4h32_t1024_d64"},
        {"dtype", "bf16"},
        {"variant", "v"},
        {"commit", "abc1234"},
        {"note", note},
        {"median_us", us},
        {"floor_us", 15.73},
        {"config", {{"registers", 168}}},
        {"counters",
         {{"tensor_pipe_pct", 28.94}, {"dram_read_bytes", 5e7}, {"dram_write_bytes", 2e7}}}};
  };
  return {line(29.3, "first"), line(27.5, "4 stages <i>"), line(25.9, "no hint")};
}

}  // namespace tandem::tools

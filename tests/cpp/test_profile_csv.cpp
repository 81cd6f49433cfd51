// ncu's CSV, whole and mangled, and what is read off it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "cli/profile/ncu_csv.h"

namespace tandem::tools {
namespace {

using testing::ElementsAre;

const std::string kColumns =
    R"csv("ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name")csv";
const std::string kMetrics =
    R"csv(,"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","launch__registers_per_thread","launch__shared_mem_per_block","lts__t_bytes.sum","sm__inst_executed_pipe_tensor_op_gmma.sum","sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active","smsp__inst_executed_op_local_ld.sum")csv";
const std::string kUnits =
    R"csv("","","","","","","","","","","","","byte","byte","ns","register/thread","byte/block","byte","inst","%","%","inst")csv";
const std::string kKernel =
    R"csv("void tandem::cuda::gla_forward_kernel<tandem::cuda::ForwardConfig<cutlass::bfloat16_t, (int)64, (int)64>>(tandem::cuda::GlaForwardParams)","1","13","(512, 1, 1)","(128, 1, 1)","0","9.0","Command line profiler metrics")csv";
const std::string kLaunch =
    R"csv("0","4211","tandem","127.0.0.1",)csv" + kKernel +
    R"csv(,"202,899,456","67,108,864","86,112","168","185,344","297,585,664","131,072","28.94","24.81","0")csv";
const std::string kSecond =
    R"csv("1","4211","tandem","127.0.0.1","tandem::cuda::<unnamed>::fill_kernel(float *, ""x"")","1","13","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","1,024","2,048","1,000","16","0","4,096","0","0","50.5","0")csv";

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += line + "\n";
  return text;
}

/// The text has one launch, of gla_forward_kernel, with these counters; without those that are
/// null.
void expect_launch(const std::string& text, double profiled_us,
                   const std::map<std::string, std::optional<double>>& counters) {
  const auto launches = parse_ncu_csv(text);
  ASSERT_EQ(launches.size(), 1u);
  const Counters& launch = launches[0];
  EXPECT_EQ(short_kernel_name(launch.kernel), "gla_forward_kernel");
  EXPECT_DOUBLE_EQ(launch.get("profiled_us").value(), profiled_us);  // scaled: rounded
  for (const auto& [name, value] : counters) EXPECT_EQ(launch.get(name), value) << name;
}

/// What ncu 2025.3.1 printed on an H200 for few_b1h16_t8192_d128, unchanged.
TEST(ProfileCsv, RecordedOnAnH200) {
  std::ifstream file(TANDEM_SOURCE_DIR "/tests/data/ncu_gla_forward.csv");
  expect_launch(std::string(std::istreambuf_iterator<char>(file), {}), 208.768,
                {{"dram_read_bytes", 101288960.0},
                 {"dram_write_bytes", 25326080.0},
                 {"registers", 128.0},
                 {"shared_bytes", 185344.0},
                 {"l2_bytes", 257376192.0},
                 {"wgmma", 327680.0},
                 {"tensor_pipe_pct", 6.33},
                 {"occupancy_pct", 21.75},
                 {"spill_loads", 0.0},
                 {"spill_stores", 0.0}});
}

TEST(ProfileCsv, AllOfAWrittenLaunch) {
  expect_launch(lines({kColumns + kMetrics, kUnits, kLaunch}), 86.112,
                {{"dram_read_bytes", 202899456.0},
                 {"dram_write_bytes", 67108864.0},
                 {"registers", 168.0},
                 {"shared_bytes", 185344.0},
                 {"l2_bytes", 297585664.0},
                 {"wgmma", 131072.0},
                 {"tensor_pipe_pct", 28.94},
                 {"occupancy_pct", 24.81},
                 {"spill_loads", 0.0},
                 {"spill_stores", std::nullopt}});  // not among the columns
}

TEST(ProfileCsv, SeveralLaunchesWithinNoise) {
  const auto launches = parse_ncu_csv(
      lines({"==PROF== Connected to process 4211 (/build/bin/tandem)", "", "it's 5\" long, \"so\"",
             "==PROF== Profiling \"gla_forward_kernel\": 0%....100% - 1 pass", kColumns + kMetrics,
             kUnits, kLaunch, "==WARNING== a lone \" quote, here", kSecond, "\"2\",\"cut short"}));
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(short_kernel_name(launches[1].kernel), "fill_kernel");
  EXPECT_NE(launches[1].kernel.find("\"x\""), std::string::npos);
  EXPECT_EQ(launches[1].get("occupancy_pct"), 50.5);
}

TEST(ProfileCsv, CarriageReturnsAndHeadersAgain) {
  const std::string once = kColumns + kMetrics + "\r\n" + kUnits + "\r\n" + kLaunch + "\r\n";
  const auto launches = parse_ncu_csv(once + once);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[1].get("spill_loads"), 0.0);
}

TEST(ProfileCsv, UnitsThatNcuScaled) {
  const auto launches = parse_ncu_csv(lines(
      {R"csv("Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum","lts__t_bytes.sum")csv",
       R"csv("","Mbyte","us","Gbyte")csv", R"csv("k(int)","202.9","86.1","1.5")csv"}));
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_DOUBLE_EQ(*launches[0].get("dram_read_bytes"), 202.9e6);
  EXPECT_DOUBLE_EQ(*launches[0].get("profiled_us"), 86.1);
  EXPECT_DOUBLE_EQ(*launches[0].get("l2_bytes"), 1.5e9);
}

TEST(ProfileCsv, WhatIsNoNumberIsLeftOut) {
  const auto launches = parse_ncu_csv(
      lines({"dram__bytes_write.sum,Kernel Name,dram__bytes_read.sum,lts__t_bytes.sum,"
             "launch__registers_per_thread,gpu__time_duration.sum",
             "byte,,byte,byte,,ns", "n/a,k,,nan,\"12 (3; 9)\",(!) 0"}));
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].values, (std::map<std::string, double>{{"registers", 12}}));
}

TEST(ProfileCsv, NoHeaderIsNothing) {
  EXPECT_TRUE(parse_ncu_csv("").empty());
  EXPECT_TRUE(
      parse_ncu_csv("==PROF== Disconnected\n==WARNING== No kernels were profiled.").empty());
  EXPECT_TRUE(parse_ncu_csv(kColumns + kMetrics).empty());
}

TEST(ProfileCsv, Fields) {
  EXPECT_THAT(parse_csv_line(R"csv(a,"b,c","d""e",,"")csv"),
              ElementsAre("a", "b,c", "d\"e", "", ""));
  EXPECT_THAT(parse_csv_line("\"open, to the end\r"), ElementsAre("open, to the end"));
}

TEST(ProfileComplaint, ErrorsBeforeWarnings) {
  EXPECT_EQ(ncu_complaint("==PROF== x\n==WARNING== slow\n==ERROR== ERR_NVGPUCTRPERM - no\n"),
            "ERR_NVGPUCTRPERM - no");
  EXPECT_EQ(ncu_complaint("==WARNING== No kernels were profiled.\r\n"),
            "No kernels were profiled.");
  EXPECT_EQ(ncu_complaint("fine"), "");
}

TEST(ProfileNames, Short) {
  EXPECT_EQ(short_kernel_name("gla_forward_kernel"), "gla_forward_kernel");
  EXPECT_EQ(short_kernel_name("void a::b<c<(int)3>, d>::e_kernel<f(g)>(h)"), "e_kernel");
  EXPECT_EQ(short_kernel_name("void (anonymous namespace)::k(float *)"), "k");
  EXPECT_EQ(short_kernel_name("("), "(");
}

Counters launch(double us, double read, double tensor, double registers) {
  return {"k",
          {{"profiled_us", us},
           {"dram_read_bytes", read},
           {"dram_write_bytes", 0},
           {"tensor_pipe_pct", tensor},
           {"registers", registers},
           {"blocks", 500}}};
}

TEST(ProfileTotal, SumsMeansByTimeAndMaxima) {
  const Counters sum = total({launch(90, 1000, 50, 168), launch(10, 24, 0, 32)});
  EXPECT_EQ(sum.get("profiled_us"), 100.0);
  EXPECT_EQ(sum.get("dram_read_bytes"), 1024.0);
  EXPECT_EQ(sum.get("tensor_pipe_pct"), 45.0);
  EXPECT_EQ(sum.get("registers"), 168.0);
  Counters lacks = launch(10, 24, 0, 32);
  lacks.values.erase("dram_read_bytes");
  EXPECT_EQ(total({launch(90, 1000, 50, 168), lacks}).get("dram_read_bytes"), std::nullopt);
  EXPECT_TRUE(total({}).values.empty());
}

TEST(ProfileReading, SaysWhatBinds) {
  // 100 us at 4 TB/s: 400 MB is all of the copy rate.
  const ReadingFacts facts{100, 300e6, 4, 132};
  EXPECT_EQ(reading(launch(1, 336e6, 31, 168), facts),
            "memory-bound: 1.12x the fewest bytes, 84 % of copy bandwidth, tensor pipe 31 %");
  EXPECT_EQ(reading(launch(1, 40e6, 80, 168), facts).substr(0, 13), "matrix-bound:");
  Counters few = launch(1, 40e6, 8, 168);
  few.values["blocks"] = 16;
  few.values["spill_loads"] = 4;
  EXPECT_EQ(reading(few, facts),
            "latency-bound: 0.13x the fewest bytes, 10 % of copy bandwidth, tensor pipe 8 %, 16 "
            "blocks on 132 multiprocessors, spills");
  few.values.erase("dram_read_bytes");
  EXPECT_EQ(reading(few, facts), "");
}

}  // namespace
}  // namespace tandem::tools

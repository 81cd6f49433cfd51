// What plans are made of: the layout of a workspace, and the model of a device. Needs no GPU.
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

#include <gtest/gtest.h>

#include "cuda/scan/plan.h"
#include "tandem/device.h"

namespace tandem::cuda {
namespace {

TEST(Plan, CeilDivIsExactAtMultiples) {
  EXPECT_EQ(ceil_div(0, 64), 0);
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(ceil_div(65, 64), 2);
  EXPECT_EQ(ceil_div(kMaxIndex + 64, 64), std::int64_t{1} << 25 | 1);
}

TEST(Plan, PartsOfAWorkspaceAreAligned) {
  WorkspaceLayout layout;
  EXPECT_EQ(layout.add(1), 0u);
  EXPECT_EQ(layout.add(256), 256u);
  EXPECT_EQ(layout.add(0), 512u);
  EXPECT_EQ(layout.add(257), 512u);
  EXPECT_EQ(layout.bytes(), 1024u);
  WorkspaceLayout behind(512);
  EXPECT_EQ(behind.add(4), 512u);
  EXPECT_EQ(behind.bytes(), 768u);
}

TEST(Plan, TheModelGoesByTheDevicesName) {
  DeviceProperties device = DeviceProperties::h200();
  const DeviceModel& h200 = device_model(device);
  device.name = "NVIDIA H100 80GB HBM3";
  const DeviceModel& h100 = device_model(device);
  EXPECT_LT(h100.gla_walk.bytes_per_microsecond, h200.gla_walk.bytes_per_microsecond);
  EXPECT_EQ(h100.gla_walk.call, h200.gla_walk.call);
  device.name = "NVIDIA GH200 480GB";
  EXPECT_EQ(&device_model(device), &h200);
}

TEST(Plan, SlowerMemoryMakesScansSlower) {
  const scan::ScanWork work{2000, 16, 256, 64, 1};
  DeviceProperties device = DeviceProperties::h200();
  const double time = scan::plan_scan(work, device).time;
  device.name = "NVIDIA H100 80GB HBM3";
  EXPECT_GT(scan::plan_scan(work, device).time, 1.2 * time);
}

/// Whole devices and slices of one, as MIG makes them: clusters that cannot be placed are never
/// planned, however much work there is, and as many as can be are used.
TEST(Plan, ScansUseTheClustersThatADeviceCanPlace) {
  struct Placed {
    int multiprocessors;
    int part;   // multiprocessors of a part of the chip, which holds a cluster
    int ranks;  // for one chain of very many tiles
  };
  for (const auto& [multiprocessors, part, ranks] :
       {Placed{132, 16, 16}, Placed{114, 16, 16}, Placed{60, 10, 10}, Placed{16, 4, 4},
        Placed{1, 1, 1}}) {
    DeviceProperties device = DeviceProperties::h200();
    device.multiprocessors = multiprocessors;
    for (int blocks = 2; blocks <= 16; ++blocks) {
      device.clusters[blocks - 2] = multiprocessors / part * (part / blocks);
    }
    EXPECT_EQ(scan::plan_scan({1, 4096, 256, 64, 1}, device).ranks, ranks) << multiprocessors;
    EXPECT_LE(scan::plan_scan({100000, 4096, 256, 64, 1}, device).ranks, 2) << multiprocessors;
  }
}

/// 15 clusters of 8 fit and 17 of 6: 16 chains, as of 1024 channels, would take two rounds of 8.
TEST(Plan, ScansTakeClustersOfAnySize) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto ranks = [&](std::int64_t chains) {
    return scan::plan_scan({chains, 128, 128, 64, 1}, device).ranks;
  };
  EXPECT_EQ(ranks(15), 8);
  EXPECT_EQ(ranks(16), 6);
  EXPECT_EQ(ranks(32), 3);
  EXPECT_EQ(ranks(64), 2);
}

}  // namespace
}  // namespace tandem::cuda

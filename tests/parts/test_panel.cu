#include "cuda/parts/panel.cuh"

#include <gtest/gtest.h>

#include <set>

namespace tandem::cuda {
namespace {

TEST(Panel, EveryPieceHasItsOwnPlace) {
  std::set<int> offsets;
  for (int row = 0; row < 64; ++row) {
    for (int piece = 0; piece < 8; ++piece) offsets.insert(panel_offset(row, piece));
  }
  EXPECT_EQ(offsets.size(), 64u * 8u);
  EXPECT_EQ(*offsets.rbegin(), panel_bytes(64) - 16);
}

TEST(Panel, EightRowsOfOneColumnTouchAllBanks) {
  for (int piece = 0; piece < 8; ++piece) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) banks.insert(panel_offset(row, piece) % 128);
    EXPECT_EQ(banks.size(), 8u);
  }
}

}  // namespace
}  // namespace tandem::cuda

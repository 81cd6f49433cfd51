// Tiles, roles and budgets of gla_walk_kernel.
#pragma once

namespace tandem::cuda::gla {

/// What a walk makes.
enum class Walk {
  kOutput,        // o of a forward
  kSavingOutput,  // the same, and states for its backward
  kQuery,         // dq of a backward
  kKey,           // dk, from the last token to the first
  kValue,         // dv, from the last token to the first
  kKeyValue,      // dk and dv, from one state
};

/// `kKeyDim` is the padded K: 64, 128 or 256. `kValueDim` is how many columns of V a CTA walks, 64
/// or 128. Wider V is several items.
/// `kSplit`: a CTA walks one segment of a sequence and gets the state before it from the CTAs of
/// earlier segments, or from their tokens (segments.cuh). `kHeads`: heads that a CTA walks
/// together, which share q and k, and so their scores; each has as many of the columns of V.
template <class ElementT, int kKeyDimT, int kValueDimT, bool kSplitT = false,
          Walk kWalk = Walk::kOutput, int kHeadsT = 1>
struct WalkConfig {
  using Element = ElementT;
  static constexpr int kChunk =
      64;  // tokens per tile: one wgmma M, two tokens per lane of the decay warp
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kKeyTile = kKeyDim < 128 ? kKeyDim : 128;  // of one product of the state
  static constexpr int kValueDim = kValueDimT;
  static constexpr bool kSplit = kSplitT;
  static constexpr int kHeads = kHeadsT;
  // Whether CTAs may share walks, and hand states on to each other.
  static constexpr bool kSavesStates = kWalk == Walk::kSavingOutput;
  static constexpr bool kForward = kWalk == Walk::kOutput || kSavesStates;
  static constexpr bool kRelays = !kSplit && kForward;
  static constexpr bool kReverse = !kForward && kWalk != Walk::kQuery;
  static constexpr bool kRowSums =
      kWalk == Walk::kQuery || kWalk == Walk::kKey || kWalk == Walk::kKeyValue;  // decay/row_sums.h
  static constexpr bool kWithValue = kWalk == Walk::kKeyValue;                   // key_value.cuh

  // One warpgroup loads, one forms the intra-chunk weights, one per 64 value columns keeps the
  // state.
  static constexpr int kStateWarpgroups = kValueDim / 64;
  static_assert(kHeads == 1 || kHeads == kStateWarpgroups);
  static constexpr int kThreads = 128 * (2 + kStateWarpgroups);
  // Whether two state warpgroups take turns at the tensor cores, so that one's arithmetic runs
  // under the other's products: left alone they fall into step. At K = 256 that costs less than a
  // turn, whose products wait for each other.
  static constexpr bool kTurns = kStateWarpgroups == 2 && kForward && kKeyDim <= 128;

  // Inputs of one chunk in shared memory: 128-byte rows per 64 columns.
  static constexpr int kKeyBytes = kChunk * kKeyDim * 2;
  static constexpr int kValueBytes = kChunk * kValueDim * 2;
  static constexpr int kFactorBytes = kRowSums ? kValueBytes : 0;
  static constexpr int kStageBytes = 2 * kKeyBytes + kValueBytes + kFactorBytes;
  // Row sums of a backward leave the registers as soon as they may where the one state warpgroup is
  // what all wait for: lanes' shares take 16 KB more than warps'.
  static constexpr bool kRowSumsByLane = kRowSums && kKeyDim == 64 && kValueDim == 64;
  // As many chunks in flight as fit: about 40 KB per SM hide the memory's latency.
  static constexpr int kStages = kStageBytes <= 24576   ? 6
                                 : kStageBytes <= 40960 ? 4
                                 : kStageBytes <= 49152 ? 3
                                                        : 2;
  // why one of each where rows are summed at 256 x 128: two do not fit.
  static constexpr bool kCrowded = kRowSums && kKeyDim == 256 && kValueDim == 128;
  static constexpr int kIntraStages = kWithValue || kCrowded ? 1 : 2;
  static constexpr int kOutputPanels = kCrowded ? 1 : 2;  // of a state warpgroup
  // Of a state warpgroup, for the states that it saves, where these are more than the panels of o.
  static constexpr int kSavedPanels = kSavesStates && kKeyDim == 256 ? kKeyDim / 64 : 0;
  static constexpr int kItemSlots = 4;  // items known ahead: their boundaries are read meanwhile

  // why: 128 registers of state leave room for one accumulator of o, not two, and beside a second
  // such warpgroup for one step of the rounded state.
  static constexpr bool kOneOutputAccumulator = kKeyDim > 128;
  static constexpr int kRoundedSteps = kStateWarpgroups == 2 ? 1 : 4;

  // Registers per thread after setmaxnreg; a launch grants 65536 / kThreads, rounded down to 8.
  static constexpr bool kTight = kStateWarpgroups == 2 && kKeyDim == 128;
  static constexpr bool kTightest = kStateWarpgroups == 2 && kKeyDim == 256;
  static constexpr int kLoadRegisters = kTight || kTightest ? 32 : 40;
  static constexpr int kIntraRegisters = kTightest               ? 64
                                         : kTight                ? (kHeads > 1 ? 96 : 80)
                                         : kStateWarpgroups == 2 ? 88
                                                                 : 128;
  static constexpr int kStateRegisters = kTightest               ? 208
                                         : kTight                ? (kHeads > 1 ? 192 : 200)
                                         : kStateWarpgroups == 2 ? 192
                                                                 : 256;

  static_assert(kKeyDim == 64 || kKeyDim == 128 || kKeyDim == 256);
  static_assert(!kTightest || kHeads == 1);
  static_assert(!kTightest || !kSavesStates, "narrower tiles of V save faster");
  static_assert(kValueDim == 64 || kValueDim == 128);
  static_assert(!kWithValue || (kKeyDim == kValueDim && !kSplit));
  static_assert(kLoadRegisters + kIntraRegisters + kStateWarpgroups * kStateRegisters <=
                65536 / kThreads / 8 * 8 * (kThreads / 128));
};

}  // namespace tandem::cuda::gla

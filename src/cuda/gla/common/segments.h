// Where a sequence is cut into chunks and segments, the same on host and device.
#pragma once

namespace tandem::cuda::gla {

constexpr int kChunk = 64;  // tokens of a chunk, in every kernel over chunks

/// First chunk of segment `index` of `segments`, in the order of the walk (index = segments: the
/// number of chunks). `chained`: where segments have several chunks each, earlier ones are longer,
/// by 0.4 each, since a later one starts later, if it takes the states of all earlier ones.
constexpr int segment_begin_chunk(int chunks, int segments, int index, bool chained) {
  const int mean = chunks / segments;
  const int longer = chained && mean > segments / 2 ? (2 * index * (segments - index) + 5) / 10 : 0;
  return mean * index + chunks % segments * index / segments + longer;
}

/// Chunks [first, last) of walk `index`; first = last: none. Slots of states that the leg begins
/// and ends with; none: those of the walk.
struct Leg {
  static constexpr int kNoSlot = -1;

  int index = 0;
  int first = 0;
  int last = 0;
  int begin_slot = kNoSlot;
  int end_slot = kNoSlot;
};

/// How CTAs share the walks that are left when each has had as many whole ones: CTAs j * left + i
/// of parts * left walk part j of left walk i, one after another, and hand its state on. So that
/// all CTAs stay at about the same time of their walks (which tensors' rows in memory and heads
/// that share q and k want), a CTA breaks off its first walk for its part when it has come as far;
/// the first part comes before all walks, and the last part behind all.
struct SharedWalks {
  int blocks;  // CTAs
  int left;
  int parts;  // at least 2
  int chunks;

  constexpr int begin_of(int part) const { return chunks * part / parts; }
  constexpr int slots() const { return left * (parts - 1) + (parts > 2 ? blocks : 0); }

  /// Returns leg number `turn` of a CTA that walks `whole` walks, at least one, beside its part.
  constexpr Leg leg(int block, int whole, int turn) const {
    const int part = block / left;
    const bool shares = part < parts;
    const int before = !shares || part == parts - 1 ? whole : part == 0 ? 0 : 1;  // the own part
    const bool breaks_off = shares && before == 1 && part < parts - 1;
    if (shares && turn == before) {
      const int slot = block % left * (parts - 1) + part;
      return {whole * blocks + block % left, begin_of(part), begin_of(part + 1),
              part > 0 ? slot - 1 : Leg::kNoSlot, part < parts - 1 ? slot : Leg::kNoSlot};
    }
    const int walk = turn > before ? turn - 1 - (breaks_off ? 1 : 0) : turn;
    if (walk >= whole) return {};
    Leg own{walk * blocks + block, 0, chunks};
    if (breaks_off && walk == 0) {
      constexpr int kSlack = 2;  // chunks, in which the state that is handed on arrives
      const int middle = begin_of(part) + kSlack < chunks ? begin_of(part) + kSlack : chunks - 1;
      const int slot = left * (parts - 1) + block;
      if (turn < before) {
        own.last = middle;
        own.end_slot = slot;
      } else {
        own.first = middle;
        own.begin_slot = slot;
      }
    }
    return own;
  }
};

}  // namespace tandem::cuda::gla

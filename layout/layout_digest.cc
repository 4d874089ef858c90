#include "layout/layout_digest.h"

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {
namespace {

// Hashes a sequence of 64-bit words. A step is a bijection of the state for a given word and of the
// word for a given state, so changing one word always changes the digest.
class WordHasher {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ Scramble(word)) * 0x9ddfea08eb382d69ULL + 0x2545f4914f6cdd1dULL;
    state_ ^= state_ >> 32;
  }

  // The length goes first, so that no two sequences of strings read the same.
  void Add(absl::string_view text) {
    Add(uint64_t{text.size()});
    for (size_t begin = 0; begin < text.size(); begin += 8) {
      uint64_t word = 0;
      for (size_t i = begin; i < text.size() && i < begin + 8; ++i) {
        word |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * (i - begin));
      }
      Add(word);
    }
  }

  void AddSigned(int64_t value) { Add(static_cast<uint64_t>(value)); }
  // A dtype by its name: the digest does not change when an enumerator is put in between.
  void Add(DType dtype) { Add(Name(dtype)); }

  uint64_t Digest() const { return Scramble(state_); }

 private:
  static uint64_t Scramble(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ULL;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dULL;
    return x ^ (x >> 33);
  }

  uint64_t state_ = 0x7e55e2a000000001ULL;  // The last digit counts versions of this encoding.
};

void AddUnit(const UnitLayout& unit, WordHasher* hasher) {
  const FlatLayout& flat = unit.flat;
  // Everything that an offset depends on, and what decides how a parameter is trained.
  hasher->Add(flat.unit_name());
  hasher->Add(flat.dtype());
  hasher->AddSigned(flat.options().parameter_alignment_bytes);
  hasher->AddSigned(flat.options().shard_alignment_bytes);
  hasher->Add(flat.options().alignment_dtype);
  hasher->AddSigned(unit.shards.num_shards());
  hasher->AddSigned(unit.shards.shard_numel());
  hasher->Add(uint64_t{flat.parameters().size()});
  for (const PlacedParameter& parameter : flat.parameters()) {
    hasher->Add(parameter.spec.name);
    hasher->Add(parameter.spec.dtype);
    hasher->Add(uint64_t{parameter.spec.requires_grad ? 1u : 0u});
    hasher->Add(uint64_t{parameter.spec.shape.size()});
    for (int64_t dimension : parameter.spec.shape) hasher->AddSigned(dimension);
    hasher->AddSigned(parameter.offset_elements);
  }
  hasher->Add(uint64_t{flat.aliases().size()});
  for (const Alias& alias : flat.aliases()) {
    hasher->Add(alias.name);
    hasher->Add(alias.primary);
  }
}

void AddBuffer(const BufferSpec& buffer, WordHasher* hasher) {
  hasher->Add(buffer.name);
  hasher->Add(Name(buffer.dtype));
  hasher->Add(uint64_t{buffer.shape.size()});
  for (const int64_t dimension : buffer.shape) hasher->AddSigned(dimension);
}

}  // namespace

uint64_t LayoutDigest(const ModelLayout& layout) {
  WordHasher hasher;
  hasher.AddSigned(layout.world_size);
  hasher.Add(uint64_t{layout.units.size()});
  for (const UnitLayout& unit : layout.units) AddUnit(unit, &hasher);
  // The rest of the sequence, so their number need not be in it.
  for (const BufferSpec& buffer : layout.buffers) AddBuffer(buffer, &hasher);
  return hasher.Digest();
}

}  // namespace tessera

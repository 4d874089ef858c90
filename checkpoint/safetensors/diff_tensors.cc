#include "checkpoint/safetensors/diff_tensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "layout/stored_dtype.h"

namespace tessera {
namespace {

const StoredEntry* FindEntry(const StoredTensors& tensors, const StoredKey& key) {
  const auto it = tensors.entries().find(key);
  return it == tensors.entries().end() ? nullptr : &it->second;
}

// What is seen without reading: nothing where values have to be compared.
std::optional<DiffKind> DiffOfEntries(const StoredEntry* a, const StoredEntry* b) {
  if (b == nullptr) return DiffKind::kOnlyInA;
  if (a == nullptr) return DiffKind::kOnlyInB;
  if (a->dtype != b->dtype) return DiffKind::kDType;
  if (a->shape != b->shape) return DiffKind::kShape;
  return std::nullopt;
}

class Differ {
 public:
  Differ(const StoredTensors& a, const StoredTensors& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    for (const StoredTensors* tensors : {&a, &b}) {
      for (const auto& [key, entry] : tensors->entries()) {
        if (options.selects == nullptr || options.selects(key.second)) keys_.insert(key);
      }
    }
    for (const StoredKey& key : keys_) {
      const StoredEntry* entry = FindEntry(a, key);
      if (!DiffOfEntries(entry, FindEntry(b, key)).has_value()) all_bytes_ += entry->size_bytes;
    }
  }

  absl::StatusOr<TensorsDiff> Run() {
    TensorsDiff found;
    for (const StoredKey& key : keys_) {
      ++found.num_compared;
      const StoredEntry *a = FindEntry(a_, key), *b = FindEntry(b_, key);
      TensorDiff diff;
      diff.key = key;
      if (a != nullptr) diff.a = *a;
      if (b != nullptr) diff.b = *b;
      const std::optional<DiffKind> kind = DiffOfEntries(a, b);
      diff.kind = kind.value_or(DiffKind::kValues);
      if (!kind.has_value()) {
        ASSIGN_OR_RETURN(diff.elements, CompareValues(key, *a));
        if (diff.elements.num_different == 0) continue;
      }
      found.differences.push_back(std::move(diff));
    }
    return found;
  }

 private:
  absl::StatusOr<ElementDiff> CompareValues(const StoredKey& key, const StoredEntry& entry) {
    const StoredDType dtype = entry.dtype.value_or(StoredDType::kU8);
    ElementDiff diff;
    // Piece by piece: models may be larger than memory.
    for (int64_t begin = 0; begin < entry.numel; begin += options_.piece_elements) {
      const int64_t count = std::min(options_.piece_elements, entry.numel - begin);
      const int64_t size_bytes = count * SizeBits(dtype) / 8;
      piece_a_.resize(size_bytes);
      piece_b_.resize(size_bytes);
      RETURN_IF_ERROR(a_.Read(key, begin, count, piece_a_.data()));
      RETURN_IF_ERROR(b_.Read(key, begin, count, piece_b_.data()));
      CompareElements(dtype, piece_a_, piece_b_, begin, &diff);
      done_bytes_ += size_bytes;
      if (options_.progress != nullptr) options_.progress(done_bytes_, all_bytes_);
    }
    return diff;
  }

  const StoredTensors &a_, &b_;
  const DiffOptions& options_;
  std::set<StoredKey> keys_;
  int64_t all_bytes_ = 0, done_bytes_ = 0;
  std::string piece_a_, piece_b_;
};

}  // namespace

absl::string_view Name(DiffKind kind) {
  switch (kind) {
    case DiffKind::kOnlyInA:
      return "only in a";
    case DiffKind::kOnlyInB:
      return "only in b";
    case DiffKind::kDType:
      return "dtype";
    case DiffKind::kShape:
      return "shape";
    case DiffKind::kValues:
      return "values";
  }
  return "";
}

absl::StatusOr<TensorsDiff> DiffTensors(const StoredTensors& a, const StoredTensors& b,
                                        const DiffOptions& options) {
  // Of 8, so that no piece of a packed type begins within a byte.
  TESSERA_CHECK(options.piece_elements > 0 && options.piece_elements % 8 == 0);
  return Differ(a, b, options).Run();
}

}  // namespace tessera

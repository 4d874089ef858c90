// What of two models or checkpoints differs, tensor by tensor. Reads both a piece at a time, never
// a whole tensor. Stateless; thread-safe.
//
//   entries of A    a  b  c          b: shape, c: values
//   entries of B       b  c  d       a: only in A, d: only in B
//
// Tensors meet by part and name; values are compared where dtype and shape are the same.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_DIFF_TENSORS_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_DIFF_TENSORS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/safetensors/element_diff.h"
#include "checkpoint/safetensors/stored_tensors.h"

namespace tessera {

enum class DiffKind { kOnlyInA, kOnlyInB, kDType, kShape, kValues };
absl::string_view Name(DiffKind kind);  // "only in a", "only in b", "dtype", "shape", "values".

struct TensorDiff {
  StoredKey key;
  DiffKind kind = DiffKind::kValues;
  StoredEntry a, b;      // Where they are in it.
  ElementDiff elements;  // Of kValues.
};

struct TensorsDiff {
  int64_t num_compared = 0;             // Entries of either one that were selected.
  std::vector<TensorDiff> differences;  // By part and name.
};

struct DiffOptions {
  std::function<bool(const std::string& name)> selects;  // Null: all.
  // Is told how many bytes of how many of A were compared. May be null.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
  int64_t piece_elements = 1 << 19;  // A multiple of 8, so that pieces begin between bytes.
};

// Errors: as StoredTensors::Read.
absl::StatusOr<TensorsDiff> DiffTensors(const StoredTensors& a, const StoredTensors& b,
                                        const DiffOptions& options);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_DIFF_TENSORS_H_

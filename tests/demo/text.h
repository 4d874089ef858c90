// Real English text as bytes, and the batches that a step takes from it. Deterministic: the batch
// of (seed, step, rank) is the same for every caller, so a step that is redone sees the same bytes.
#ifndef TESSERA_TESTS_DEMO_TEXT_H_
#define TESSERA_TESTS_DEMO_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::demo {

// Reads a file, or every plain-text file of a folder in name order.
// Errors: NotFound         `path` is missing
//         InvalidArgument  it is empty, or holds fewer than `min_bytes` bytes of text
absl::StatusOr<std::string> ReadText(const std::string& path, int64_t min_bytes);

// Start offsets of `count` windows of `length` bytes in a text of `text_bytes`.
std::vector<int64_t> WindowStarts(uint64_t seed, int64_t step, int rank, int count, int64_t length,
                                  int64_t text_bytes);

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_TEXT_H_

// How a file is put together of what several writers uploaded.
//
//   writer 1: object A | a0-a9 |     extents: [file 0, +10) = A [0, +10)
//   writer 2: object B | b10-b99 |            [file 10, +90) = B [0, +90)
//   PlanParts ──► parts of a multipart upload: copies by the store, or bytes that are read and sent
//
// The store copies ranges from kLeastPartBytes on, and every part but the last has as many. What is
// smaller is joined with its neighbours, and read and sent. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_FILE_PARTS_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_FILE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::s3 {

// Of the protocol.
inline constexpr int64_t kLeastPartBytes = 5 << 20;
inline constexpr int kMostParts = 10'000;
inline constexpr int64_t kMaxFileBytes = int64_t{5} << 40;

// Bytes of a file, and where they are.
struct Extent {
  std::string key;  // The object's.
  int64_t object_at_bytes = 0, file_at_bytes = 0, size_bytes = 0;
};

// What one writer uploaded. Extents that follow each other in the file and in the object are joined.
std::string EncodeExtents(const std::vector<Extent>& extents);
// `text`: of the store, untrusted. `key`: of the object that it is the list of.
// Errors: InvalidArgument  not of this form, or out of range.
absl::StatusOr<std::vector<Extent>> DecodeExtents(absl::string_view text, const std::string& key);

// A part of the whole: one extent that the store copies, or some that are read and sent.
struct FilePart {
  bool is_copy = false;
  std::vector<Extent> extents;
  int64_t size_bytes = 0;
};

// `extents`: in any order. `most_copy_bytes`: of one part.
// Errors: DataLoss  naming the first bytes that nobody wrote, or that two wrote;
//         InvalidArgument  larger than a store's files.
absl::StatusOr<std::vector<FilePart>> PlanParts(std::vector<Extent> extents, int64_t file_bytes,
                                                int64_t most_copy_bytes);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_FILE_PARTS_H_

// Names in an object store, and how they are written in a URL.
//
//   s3://bucket/runs/gpt/step-100      bucket "bucket", key "runs/gpt/step-100"
//
// Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_PATH_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_PATH_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::s3 {

inline constexpr absl::string_view kScheme = "s3";
// The store's limit for a key, and what is left of it for the path of a file or folder: what a save
// makes there has longer names.
inline constexpr size_t kMaxKeyBytes = 1024, kMaxPathKeyBytes = 800;

struct S3Path {
  std::string bucket;
  std::string key;  // Without a '/' at its end; empty: the bucket itself.
};

// `path`: with or without a '/' at its end.
// Errors: InvalidArgument  not s3://BUCKET or s3://BUCKET/KEY; the bucket's name is not one; the key
//         has an empty part, "." or "..", or is too long.
absl::StatusOr<S3Path> ParsePath(absl::string_view path);
std::string PathOf(const S3Path& path);

// Of the key: what contains it, and its last part. "a/b/c": "a/b" and "c"; "c": "" and "c".
std::pair<std::string, std::string> SplitKey(const std::string& key);

// As RFC 3986 and the signatures of requests have it: all bytes but letters, digits and "-._~" as
// %XX. In a key '/' stays.
std::string EscapeKey(absl::string_view key);
std::string EscapeValue(absl::string_view value);
// "a=1&b=%2F", sorted by name, as signatures have it.
std::string QueryOf(std::vector<std::pair<std::string, std::string>> parameters);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_PATH_H_

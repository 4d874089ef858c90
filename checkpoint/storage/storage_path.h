// Which storage a path names.
//
//   /data/c, data/c, file:///data/c    the file system       s3://bucket/c    an object store
//
// Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_PATH_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_PATH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// "s3" of "s3://bucket/c"; "" of a path without one. In lower case.
std::string SchemeOf(absl::string_view path);

// As the storage itself calls it: without "file://", if it begins so. Asked of whatever a user or a
// message names, before anything is made.
// Errors: InvalidArgument  no storage has the scheme, which the message names with those that there
//                          are; a file:// of another host; an s3:// that names no bucket, or whose
//                          key has '..' in it; it is not printable UTF-8, or it or a name in it is
//                          too long for a file system.
absl::StatusOr<std::string> PlainPath(absl::string_view path);

// Whether it means the same in every process: it begins with '/', or names its storage. `path`:
// plain.
bool IsAbsolutePath(absl::string_view path);

// Without the slashes at its end. "/" and "s3://" stay.
std::string WithoutSlashes(std::string path);

// Where a save to `path` is written until it is finished.
std::string PartialPath(const std::string& path);
// Errors: InvalidArgument  the last name is too long for that, or it names a bucket itself.
absl::Status CheckSavePath(absl::string_view path);

// As PlainPath, and of the file system an absolute one.
absl::StatusOr<std::string> AbsolutePath(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_PATH_H_

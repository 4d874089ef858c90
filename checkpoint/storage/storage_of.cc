#include "checkpoint/storage/storage_of.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/s3/s3_path.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {

absl::StatusOr<Storage*> StorageOf(absl::string_view path) {
  // Never destroyed: background saves may outlive main.
  static PosixStorage* const file_system = new PosixStorage();
  static auto* const object_store = new s3::S3Storage();
  const std::string scheme = SchemeOf(path);
  if (scheme.empty()) return file_system;
  RETURN_IF_ERROR(PlainPath(path).status());
  if (scheme == s3::kScheme) return object_store;
  return absl::InvalidArgumentError(absl::StrCat("path '", path, "': not with ", scheme, "://"));
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

}  // namespace tessera

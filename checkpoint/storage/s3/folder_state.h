// Which of the prefixes in an object store has the files of a folder: one small object for each
// folder of a save, PATH/.tessera-folder.json, which every change replaces as a whole and only in
// place of the version that was read. So what a rename does in a file system is one request here.
//
//   PATH/.tessera-folder.json   {"published": ID or null, "partial": ID or null}
//   PATH/save-ID/...            the files of the folder PATH (published) or PATH.partial (partial)
//
// Stateless; thread-safe. Errors: the client's.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_FOLDER_STATE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_FOLDER_STATE_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/s3/s3_path.h"

namespace tessera::s3 {

struct FolderState {
  std::string published, partial;  // Ids; "": it does not exist.
  // Of the version that was read; "": there is no such object.
  std::string etag;
  absl::Time changed_at;

  bool exists() const { return !etag.empty(); }
};

std::string EncodeState(const FolderState& state);
// Errors: DataLoss  not of this form.
absl::StatusOr<FolderState> DecodeState(absl::string_view text);

// The last part of its key.
inline constexpr absl::string_view kStateName = ".tessera-folder.json";
std::string NewFolderId();
// "KEY/save-ID/": what the keys of its files begin with.
std::string PrefixOf(const std::string& folder_key, const std::string& id);
// Whether a name in a folder is one that only this storage sees: the state, or a save's prefix.
bool IsHidden(absl::string_view name);

// `folder`: without ".partial". Errors: also as DecodeState.
absl::StatusOr<FolderState> ReadState(const S3Client& client, const S3Path& folder);
// Makes `to` of the version that was read. Whether it was done: not, if it has changed since.
absl::StatusOr<bool> ChangeState(const S3Client& client, const S3Path& folder,
                                 const FolderState& from, FolderState to);

// Where neither of the two folders exists any more; else nothing. What it cannot remove is an empty
// state, which does no harm.
void RemoveEmptyState(const S3Client& client, const S3Path& folder);

// The folder's key without ".partial", and whether it had that.
std::pair<std::string, bool> BaseOf(const std::string& folder_key);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_FOLDER_STATE_H_

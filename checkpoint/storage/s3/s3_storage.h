// An object store that speaks S3 (storage.h, docs/adr/0081).
//
//   s3://bucket/run/step-100/.tessera-folder.json   which prefix has the folder's files
//   s3://bucket/run/step-100/save-ID/manifest.json  s3://bucket/run/step-100/manifest.json of users
//
// PublishFolder, and what undoes and retires it, is one conditional put of the first: PATH and
// PATH.partial are what it says. Other objects are files of the names that they have. Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_STORAGE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/storage/s3/folder_state.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/storage.h"

namespace tessera::s3 {

class S3Storage final : public Storage {
 public:
  absl::Status CreateFile(const std::string& path, int64_t size_bytes,
                          absl::string_view beginning) override;
  absl::StatusOr<std::unique_ptr<RangeSink>> OpenToWrite(const std::string& path,
                                                         DirectWrites* direct) override;
  absl::Status WriteWhole(const std::string& path, absl::string_view bytes) override;
  absl::Status PublishFile(const std::string& partial, const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override;
  // OK where there is none.
  absl::Status RemoveFile(const std::string& path) override;

  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status PublishFolder(const std::string& partial, const std::string& path,
                             bool exchange) override;
  absl::Status UnpublishFolder(const std::string& path, const std::string& partial,
                               bool exchange) override;
  absl::Status RetireFolder(const std::string& path, const std::string& partial) override;
  absl::Status RemoveEmptyFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  absl::StatusOr<std::optional<EntryInfo>> Look(const std::string& path, Links links) override;

 private:
  using Client = std::shared_ptr<const S3Client>;
  // Which ids this process gave a folder: what another process made of it since is not its own.
  struct Own {
    std::string partial;              // As MakeFolder made it.
    std::string published, replaced;  // As PublishFolder left them.
  };
  // What a file's path leads to.
  struct Place {
    Client client;
    S3Path object;
    bool is_there = true;  // Its folder is.
  };

  // Errors: InvalidArgument  also where the path is too long.
  static absl::StatusOr<S3Path> Parse(const std::string& path);
  absl::StatusOr<Place> Find(const std::string& path);
  // For what changes it. Errors: also NotFound  no such folder; FailedPrecondition  it is another's.
  absl::StatusOr<Place> FindToWrite(const std::string& path);
  // Replaces the state by what `change` makes of it, however often others change it meanwhile.
  using Change = absl::FunctionRef<absl::Status(FolderState* state)>;
  static absl::Status Replace(const S3Client& client, const S3Path& folder, Change change);
  absl::Status CheckOwn(const S3Path& folder, const FolderState& state) ABSL_LOCKS_EXCLUDED(mu_);
  Own OwnOf(const S3Path& folder) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOwn(const S3Path& folder, Own own) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::map<std::string, Own> own_ ABSL_GUARDED_BY(mu_);  // By path without ".partial".
};

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_STORAGE_H_

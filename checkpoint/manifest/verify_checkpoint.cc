#include "checkpoint/manifest/verify_checkpoint.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/safetensors/checked_file.h"
#include "checkpoint/safetensors/checked_files.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {
namespace {

// Collects what is damaged, and tells how far it is.
class Verifier {
 public:
  Verifier(std::string folder, Verification* found,
           const std::function<void(int64_t, int64_t)>& progress)
      : folder_(std::move(folder)), found_(*found), progress_(progress) {
    for (const auto& [name, file] : found_.manifest.files) all_bytes_ += file.size_bytes;
  }

  void VerifyFile(const std::string& name, const ManifestFile& file) {
    if (name == kModelIndexName) {
      Note(CheckModelIndex(folder_, found_.manifest));
      return Done(file.size_bytes);
    }
    if (file.tensors.empty()) {
      Note(ReadCheckedBytes(folder_, name, found_.manifest).status());
      return Done(file.size_bytes);
    }
    const absl::StatusOr<CheckedFile> checked = CheckedFile::Open(folder_, name, found_.manifest);
    Note(checked.status());
    // Counted though it was not read, so that the progress ends at the whole.
    if (!checked.ok()) return Done(file.size_bytes);
    Done(checked->header().data_offset_bytes);
    for (const auto& [tensor, stored] : checked->header().tensors) {
      Note(checked->Verify(tensor));
      Done(stored.end_bytes - stored.begin_bytes);
    }
  }

  // A file that the manifest does not know does not belong there.
  void FindStrangers() {
    const absl::StatusOr<Storage*> storage = StorageOf(folder_);
    if (!storage.ok()) return Note(storage.status());
    const absl::StatusOr<std::vector<std::string>> names = (*storage)->List(folder_);
    if (!names.ok()) return Note(names.status());
    for (const std::string& name : *names) {
      if (name == kManifestName || found_.manifest.files.count(name) != 0) continue;
      Note(absl::DataLossError(absl::StrCat(folder_, "/", name, " is not in the manifest")));
    }
  }

 private:
  // All damages, not only the first one: an operator wants to know what is left.
  void Note(const absl::Status& status) {
    if (!status.ok()) found_.damages.push_back(status);
  }
  void Done(int64_t bytes) {
    done_bytes_ += bytes;
    if (progress_ != nullptr) progress_(done_bytes_, all_bytes_);
  }

  const std::string folder_;
  Verification& found_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int64_t all_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<Verification> VerifyCheckpoint(
    const std::string& folder, const std::function<void(int64_t, int64_t)>& progress) {
  Verification found;
  ASSIGN_OR_RETURN(found.manifest, ReadManifest(folder));
  Verifier verifier(folder, &found, progress);
  for (const auto& [name, file] : found.manifest.files) verifier.VerifyFile(name, file);
  verifier.FindStrangers();
  return found;
}

}  // namespace tessera

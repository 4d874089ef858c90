// A folder that gets its name only when all that it holds is on disk.
//
//   BeginFolder: PATH.partial/ ──► files, all synced ──► PublishFolder: PATH/
//
// The name is given at once (Storage::PublishFolder), in place of a folder of the same kind if one
// has it: a crash leaves what had the name, or the new one, and perhaps PATH.partial, which the
// next BeginFolder removes.
// Stateless; thread-safe for different paths. Errors: the file system's, with the path.
#ifndef TESSERA_CHECKPOINT_MANIFEST_NAMED_FOLDER_H_
#define TESSERA_CHECKPOINT_MANIFEST_NAMED_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// What a folder of that name may be replaced by: one of the same kind.
enum class FolderKind {
  kCheckpoint,  // It has a manifest.
  kModel,       // Files of a model and their index, and nothing else.
  kPart,        // A rank's part of a checkpoint: it has a part's manifest.
};

// Where the files are until then.
std::string PartialFolder(const std::string& path);

// Which folder it is, whatever its name (EntryInfo::identity).
using FolderIdentity = std::pair<uint64_t, uint64_t>;

// Makes PATH.partial, empty. `made`: which folder that is; nothing until then, and may be null.
// Errors: InvalidArgument     the path is not absolute, or ends in '/'
//         FailedPrecondition  PATH exists and is not of that kind, or PATH.partial holds something
//                             that no save puts there.
absl::Status BeginFolder(const std::string& path, FolderKind kind,
                         std::optional<FolderIdentity>* made = nullptr);

// Another save to PATH removes PATH.partial and makes its own. Whether it is still the one that
// BeginFolder made: between that look and what follows it may go all the same.
// Errors: FailedPrecondition  it is not, or nothing was made.
absl::Status CheckStillMade(const std::string& path, const std::optional<FolderIdentity>& made);

// Of a folder of the same kind that has the name already, whenever it got it.
enum class Existing { kReplaced, kRefused };

// Gives the folder its name, durably. Returns which other had it, which is PATH.partial now.
// Errors: FailedPrecondition  the file system cannot exchange folders
//         AlreadyExists       another has the name, and is not to be replaced.
// The names are as before then.
absl::StatusOr<std::optional<FolderIdentity>> NameFolder(const std::string& path, FolderKind kind,
                                                         Existing existing = Existing::kReplaced);
// Takes the name away again, and gives it back to the previous folder.
void UnnameFolder(const std::string& path, bool had_another);
// NameFolder, and removes the previous folder of that name.
absl::Status PublishFolder(const std::string& path, FolderKind kind,
                           Existing existing = Existing::kReplaced);

// Removes PATH.partial, if there is one that holds nothing but what saves put there.
void DiscardFolder(const std::string& path);
// The same, if it is that one: of nothing, none is.
void DiscardFolder(const std::string& path, const std::optional<FolderIdentity>& made);

// Removes a folder that holds nothing else; it need not be there. The manifest goes last; where
// nobody will come back to the name, also on the disk: whatever ends the removal leaves the
// manifest, which says whose the rest is, or an empty folder.
enum class Removal { kOfAName, kForGood };
absl::Status RemoveFolder(const std::string& folder, Removal removal = Removal::kOfAName);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_NAMED_FOLDER_H_

// A small job whose state is told by one number, saved and loaded by the executors' own code: two
// ranks, threads of this process, save; a rank of its own loads. So a save costs milliseconds, and
// each of its operations on files can be the last one of a process.
//
//   root/ c               kWhole, kFiles: replaced by each version
//         m, f            kModelFile, kModelFolder: likewise, the model alone
//         s1, s2, s3      kRetention: one a version, of which the newest two are kept
//         p1, p2          kParts: one a version, with a folder a rank
//         p               kPartsOver: always of step 1, whatever the version
//         c, p1, p2       kConsolidate: c is made of the version's parts
//
// Stateless; thread-safe for different folders.
#ifndef TESSERA_TESTS_FAULT_SAVE_STEPS_SAVE_KINDS_H_
#define TESSERA_TESTS_FAULT_SAVE_STEPS_SAVE_KINDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

enum class SaveKind {
  kWhole,
  kFiles,
  kModelFile,
  kModelFolder,
  kRetention,
  kParts,
  kPartsOver,
  kConsolidate,
};

// Where a version is saved, in its root.
std::string NameOfSaved(SaveKind kind, int version);

// What is there before such a save: parts that are to be consolidated. Nothing of other kinds.
absl::Status PrepareVersion(SaveKind kind, const std::string& root, int version);

// Errors: the save's.
absl::Status SaveVersion(SaveKind kind, const std::string& root, int version);

// Which version is whole at `path`: every checksum of it is right, nothing else is there, and a
// job that loads it has the values and, but of a model alone, the moments, counts and step of that
// version. Parts are consolidated in `scratch`, which exists, first.
// Errors: NotFound  nothing is there; DataLoss  its contents are not a version; others  what
// verifying, consolidating or loading it returns.
absl::StatusOr<int> LoadedVersion(SaveKind kind, const std::string& path,
                                  const std::string& scratch);

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_SAVE_STEPS_SAVE_KINDS_H_

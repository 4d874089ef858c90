// What a checkpoint's folder holds, and the checksums by which damage is found. Pure; no I/O.
//
//   gpt/step-00000042/            the folder gets its name only when all of it is on disk
//     manifest.json               this
//     model.safetensors           parameters in full precision, and the trainers' buffers; or
//                                 model-00001-of-00002.safetensors, ... and their index
//     optimizer.safetensors       state.NAME.exp_avg, ... as PyTorch's optimizers name them
//     trainer-00000.bin           rank 0's own bytes: position in the data, random state, ...
//
// A file of tensors has a checksum for each of them, and one of its header; another has one of all
// its bytes. The manifest itself ends with a checksum of its other members.
// A rank's part of a checkpoint (checkpoint_part.h) has one too, under another name and format.
// Documented in docs/formats/checkpoint.md. Thread-safe.
#ifndef TESSERA_CHECKPOINT_MANIFEST_MANIFEST_H_
#define TESSERA_CHECKPOINT_MANIFEST_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr absl::string_view kManifestName = "manifest.json";
inline constexpr absl::string_view kModelFileName = "model.safetensors";
inline constexpr absl::string_view kOptimizerFileName = "optimizer.safetensors";
inline constexpr absl::string_view kPartManifestName = "part.json";
inline constexpr absl::string_view kPartFileName = "shard.safetensors";
std::string TrainerFileName(int rank);
// Whether it is kModelFileName, or model-00001-of-00002.safetensors with any numbers.
bool IsModelFileName(absl::string_view name);

struct ManifestFile {
  int64_t size_bytes = 0;
  uint32_t crc32 = 0;  // Of the header where there are tensors, else of the file.
  std::map<std::string, uint32_t> tensors;
};

// The hyper-parameters of a param group, by their names in PyTorch.
struct ManifestGroup {
  std::map<std::string, double> numbers;
  std::vector<std::string> parameters;
};

// Which part of a checkpoint it is the manifest of.
struct ManifestPart {
  int rank = 0;
  std::string save_id;  // The same in all parts of one save, and in no other.
};

struct Manifest {
  std::string job_id;
  int64_t step = 0;  // The last one that was taken.
  int world_size = 0;
  std::string optimizer;  // "adamw", ...
  std::vector<ManifestGroup> groups;
  std::map<std::string, ManifestFile> files;  // By name in the folder; none has a '/'.
  std::optional<ManifestPart> part;           // Of a rank's part alone.
  // Of a requested checkpoint: the same in all attempts at that request, and in no other save's.
  // Else empty.
  std::string request;
};

// The model's files, sorted. Errors: InvalidArgument  it has none, or both forms.
absl::StatusOr<std::vector<std::string>> ModelFilesOf(const Manifest& manifest);

std::string EncodeManifest(const Manifest& manifest);
// Errors: InvalidArgument  no manifest of a version that is known, a member that is missing, there
//                          twice, or no sensible value (named); a file's name that leaves the
//                          folder
//         DataLoss         its own checksum is another.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);
// Of a part; the other function refuses it, and this one whole checkpoints. Errors: likewise.
absl::StatusOr<Manifest> DecodePartManifest(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_MANIFEST_H_

#include "tests/fuzz/fuzz_targets.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/parts/checkpoint_part.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/storage/storage.h"
#include "layout/tensor_spec.h"

namespace tessera::fuzz {
namespace {

int64_t NumelOf(const std::vector<int64_t>& shape) {
  TensorSpec spec;
  spec.shape = shape;
  return *Numel(spec);
}

}  // namespace

// Accepted tensors are within the file and cover it.
void SafetensorsHeader(absl::string_view bytes) {
  const auto header = DecodeHeader(bytes, static_cast<int64_t>(bytes.size()));
  if (!header.ok()) return;
  int64_t covered = 0;
  for (const auto& [name, tensor] : header->tensors) {
    TESSERA_CHECK(tensor.begin_bytes >= 0 && tensor.end_bytes <= bytes.size());
    TESSERA_CHECK(*SizeBytes(tensor.dtype, NumelOf(tensor.shape)) ==
                  tensor.end_bytes - tensor.begin_bytes);
    covered += tensor.end_bytes - tensor.begin_bytes;
  }
  TESSERA_CHECK(header->data_offset_bytes + covered == bytes.size());
  const std::string encoded = EncodeHeader(*header);
  const auto again = DecodeHeader(encoded, static_cast<int64_t>(encoded.size()) + covered);
  TESSERA_CHECK(again.ok() && again->tensors.size() == header->tensors.size());
}

// An index that was accepted is written and read as the same.
void ModelIndex(absl::string_view bytes) {
  const auto index = DecodeModelIndex(bytes);
  if (!index.ok()) return;
  const auto again = DecodeModelIndex(EncodeModelIndex(*index));
  TESSERA_CHECK(again.ok() && again->file_of == index->file_of &&
                again->total_size_bytes == index->total_size_bytes);
  for (const std::string& file : FilesOf(*index)) TESSERA_CHECK(!file.empty() && file[0] != '/');
}

// Accepted slices are within the file and in their tensors, and encode to what was decoded.
void CheckpointPart(absl::string_view bytes) {
  const auto header = DecodeHeader(bytes, static_cast<int64_t>(bytes.size()));
  if (!header.ok()) return;
  const auto part = DecodePart(*header);
  if (!part.ok()) return;
  TESSERA_CHECK(part->slices.size() == header->tensors.size());
  for (const auto& [name, slice] : part->slices) {
    TESSERA_CHECK(NameOf(slice) == name);
    TESSERA_CHECK(slice.begin_elements >= 0 && slice.count >= 0);
    TESSERA_CHECK(slice.begin_elements + slice.count <= NumelOf(slice.whole.shape));
  }
  const auto placed = PlacePart(*part);
  if (!placed.ok()) return;  // A name that no writer may use.
  const std::string encoded = EncodeHeader(*placed);
  const auto again = DecodeHeader(encoded, placed->file_bytes);
  TESSERA_CHECK(again.ok());
  const auto part_again = DecodePart(*again);
  TESSERA_CHECK(part_again.ok() && part_again->slices.size() == part->slices.size());
  TESSERA_CHECK(part_again->whole.has_value() == part->whole.has_value());
}

// A manifest that was accepted names files of its folder alone, and is read as it is written.
void Manifest(absl::string_view bytes) {
  for (const bool is_part : {false, true}) {
    const auto manifest = is_part ? DecodePartManifest(bytes) : DecodeManifest(bytes);
    if (!manifest.ok()) continue;
    TESSERA_CHECK(manifest->part.has_value() == is_part);
    TESSERA_CHECK(!is_part || manifest->part->rank < manifest->world_size);
    for (const auto& [name, file] : manifest->files) {
      TESSERA_CHECK(!name.empty() && name.find('/') == std::string::npos);
      TESSERA_CHECK(file.size_bytes >= 0);
    }
    const std::string encoded = EncodeManifest(*manifest);
    const auto again = is_part ? DecodePartManifest(encoded) : DecodeManifest(encoded);
    TESSERA_CHECK(again.ok() && EncodeManifest(*again) == encoded);
  }
}

absl::Span<const Target> Targets() {
  static constexpr Target kTargets[] = {
      {"safetensors_header", SafetensorsHeader},
      {"model_index", ModelIndex},
      {"checkpoint_part", CheckpointPart},
      {"manifest", Manifest},
      {"live_queries", LiveQueries},
      {"live_tensors", LiveTensors},
      {"live_replies", LiveReplies},
      {"put_commands", PutCommands},
      {"put_requests", PutRequests},
      {"coordinator_events", CoordinatorEvents},
      {"journal_rows", JournalRows},
      {"mesh_frames", MeshFrames},
      {"executor_events", ExecutorEvents},
      {"save_requests", SaveRequests},
      {"load_requests", LoadRequests},
  };
  return kTargets;
}

}  // namespace tessera::fuzz

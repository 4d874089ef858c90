#include "tests/fuzz/fuzz_targets.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "checkpoint/dcp/dcp_metadata.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/stored_zip.h"
#include "checkpoint/dcp/torch_object.h"
#include "checkpoint/dcp/torch_tensor.h"
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

// Whose reads are checked by AddressSanitizer too, where there is one.
class FileInMemory : public ReadableFile {
 public:
  explicit FileInMemory(absl::string_view bytes) : bytes_(bytes) {}
  absl::Status Read(int64_t at_bytes, int64_t size_bytes, void* into) const override {
    TESSERA_CHECK(at_bytes >= 0 && size_bytes >= 0);
    const auto size = static_cast<int64_t>(bytes_.size());
    if (at_bytes > size || size_bytes > size - at_bytes) return absl::DataLossError("it ends");
    bytes_.copy(static_cast<char*>(into), size_bytes, at_bytes);
    return absl::OkStatus();
  }
  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Time changed_at() const override { return absl::UnixEpoch(); }

 private:
  const absl::string_view bytes_;
  const std::string path_ = "fuzzed";
};

// `bytes` outlive it.
OpenFile FileOf(absl::string_view bytes) {
  OpenFile file;
  file.path = "fuzzed";
  file.file = std::make_unique<FileInMemory>(bytes);
  file.size_bytes = static_cast<int64_t>(bytes.size());
  return file;
}

// Texts are within `bytes`. Values may contain themselves: `*left` of them are looked at.
void CheckTexts(dcp::Pickle::Ref value, absl::string_view bytes, int* left) {
  if (--*left < 0) return;
  if (value.kind() == dcp::PickleKind::kString || value.kind() == dcp::PickleKind::kBytes) {
    const absl::string_view text = value.text();
    TESSERA_CHECK(text.empty() || (text.data() >= bytes.data() &&
                                   text.data() + text.size() <= bytes.data() + bytes.size()));
  }
  for (size_t i = 0; i < value.size() && *left > 0; ++i) CheckTexts(value.item(i), bytes, left);
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

// The boxes of a tensor that was accepted hold each of its elements once.
void DcpMetadata(absl::string_view bytes) {
  const auto metadata = dcp::DecodeMetadata(bytes);
  const auto contents = dcp::DecodeContents(bytes);
  TESSERA_CHECK(metadata.ok() || !contents.ok());
  if (!metadata.ok()) return;
  if (contents.ok()) {
    TESSERA_CHECK(contents->tensors.size() == metadata->size());
    for (const auto& [name, object] : contents->objects) {
      TESSERA_CHECK(object.item.begin_bytes >= 0 && object.item.size_bytes >= 0);
      TESSERA_CHECK(!object.file.empty() && object.file[0] != '/');
    }
  }
  for (const auto& [name, tensor] : *metadata) {
    int64_t covered = 0;
    for (const dcp::Chunk& chunk : tensor.chunks) {
      TESSERA_CHECK(chunk.item.begin_bytes >= 0 && chunk.item.size_bytes >= 0);
      TESSERA_CHECK(!chunk.file.empty() && chunk.file[0] != '/');
      covered += NumelOf(chunk.sizes);
    }
    TESSERA_CHECK(covered == NumelOf(tensor.info.shape));
  }
}

// An accepted tensor is within the file, its storage too. An object is not a tensor.
void TorchTensor(absl::string_view bytes) {
  const OpenFile file = FileOf(bytes);
  const auto object = dcp::TorchObject::Read(file, {0, file.size_bytes});
  TESSERA_CHECK(!object.ok() || object->root().kind() != dcp::PickleKind::kGlobal);
  const auto tensor = dcp::LocateTorchTensor(file, {0, file.size_bytes});
  if (!tensor.ok()) return;
  tensor->IsContiguous();
  TESSERA_CHECK(tensor->storage.begin_bytes >= 0 && tensor->storage.size_bytes >= 0);
  TESSERA_CHECK(tensor->storage.begin_bytes + tensor->storage.size_bytes <= file.size_bytes);
}

// Nothing that was decoded is outside the bytes.
void PickleValues(absl::string_view bytes) {
  static constexpr absl::string_view kGlobals[] = {"torch Size", "collections OrderedDict"};
  for (const bool persistent_ids : {false, true}) {
    const auto pickle = dcp::Pickle::Decode(bytes, kGlobals, persistent_ids, /*max_values=*/10000);
    if (!pickle.ok()) continue;
    int left = 1000;
    CheckTexts(pickle->root(), bytes, &left);
  }
}

// Members are within the zip, and at the same places of it wherever the zip is in a file.
void StoredZip(absl::string_view bytes) {
  constexpr int64_t kBefore = 7;
  const OpenFile alone = FileOf(bytes);
  const std::string framed = absl::StrCat(std::string(kBefore, 'P'), bytes, "PK");
  const OpenFile within = FileOf(framed);
  const auto members = dcp::ListStoredMembers(alone, {0, alone.size_bytes});
  const auto again = dcp::ListStoredMembers(within, {kBefore, alone.size_bytes});
  TESSERA_CHECK(members.ok() == again.ok());
  if (!members.ok()) return;
  TESSERA_CHECK(members->size() == again->size());
  for (const auto& [name, member] : *members) {
    TESSERA_CHECK(member.begin_bytes >= 0 && member.size_bytes >= 0);
    TESSERA_CHECK(member.begin_bytes + member.size_bytes <= alone.size_bytes);
    TESSERA_CHECK(again->at(name).begin_bytes == member.begin_bytes + kBefore);
    TESSERA_CHECK(again->at(name).size_bytes == member.size_bytes);
  }
}

absl::Span<const Target> Targets() {
  static constexpr Target kTargets[] = {
      {"safetensors_header", SafetensorsHeader},
      {"model_index", ModelIndex},
      {"checkpoint_part", CheckpointPart},
      {"manifest", Manifest},
      {"dcp_metadata", DcpMetadata},
      {"dcp_optimizer", DcpOptimizer},
      {"torch_tensor", TorchTensor},
      {"pickle_values", PickleValues},
      {"stored_zip", StoredZip},
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

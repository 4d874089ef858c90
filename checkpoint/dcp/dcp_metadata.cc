#include "checkpoint/dcp/dcp_metadata.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/torch_types.h"
#include "checkpoint/manifest/relative_path.h"
#include "layout/tensor_spec.h"

namespace tessera::dcp {
namespace {

using Ref = Pickle::Ref;

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata Metadata";
constexpr char kTensor[] = "torch.distributed.checkpoint.metadata TensorStorageMetadata";
constexpr char kBytes[] = "torch.distributed.checkpoint.metadata BytesStorageMetadata";
constexpr char kProperties[] = "torch.distributed.checkpoint.metadata TensorProperties";
constexpr char kChunk[] = "torch.distributed.checkpoint.metadata ChunkStorageMetadata";
constexpr char kIndex[] = "torch.distributed.checkpoint.metadata MetadataIndex";
constexpr char kStorage[] = "torch.distributed.checkpoint.filesystem _StorageInfo";
constexpr char kSize[] = "torch Size";

// Values of a pickle may be shared, so what is copied out of it has limits of its own.
constexpr size_t kMaxRank = 64;  // PyTorch's own.
constexpr size_t kMaxNameBytes = 4096;

// All that a pickle may name. Nothing of it is called: objects stay data (docs/adr/0024).
std::vector<absl::string_view> Globals() {
  std::vector<absl::string_view> globals = DTypeNames();
  const absl::string_view others[] = {
      kMetadata,
      kTensor,
      kBytes,
      kProperties,
      kChunk,
      kIndex,
      kStorage,
      kSize,
      "torch.distributed.checkpoint.metadata StorageMeta",
      "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
      "torch.serialization _get_layout",
      "collections OrderedDict",
      "pathlib PosixPath",
      "pathlib PurePosixPath",
  };
  globals.insert(globals.end(), std::begin(others), std::end(others));
  return globals;
}

absl::Status Bad(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("DCP metadata: ", why));
}

absl::Status BadTensor(absl::string_view name, absl::string_view why) {
  return Bad(absl::StrCat("tensor '", absl::Utf8SafeCEscape(name), "': ", why));
}

// The value of a key that is a string.
std::optional<Ref> Find(const Ref& dict, absl::string_view key) {
  // The first one. A pickle may set a key twice, and then readers differ; here the first wins.
  for (size_t i = 0; i + 1 < dict.size(); i += 2) {
    if (dict.item(i).kind() == PickleKind::kString && dict.item(i).text() == key)
      return dict.item(i + 1);
  }
  return std::nullopt;
}

// A field of an object that was pickled as its dict.
std::optional<Ref> Field(const Ref& object, absl::string_view name) {
  constexpr size_t kMaxFields = 16;
  if (object.size() != 3 || object.item(2).kind() != PickleKind::kDict) return std::nullopt;
  // A dict of any size would be searched for each field of each tensor.
  if (object.item(2).size() > 2 * kMaxFields) return std::nullopt;
  return Find(object.item(2), name);
}

std::optional<Ref> FieldOfKind(const Ref& object, absl::string_view name, PickleKind kind) {
  const std::optional<Ref> field = Field(object, name);
  if (!field.has_value() || field->kind() != kind) return std::nullopt;
  return field;
}

// Of a torch.Size: numbers, none below 0.
std::optional<std::vector<int64_t>> SizeOf(const std::optional<Ref>& value) {
  if (!value.has_value() || !value->IsObject(kSize) || value->item(1).size() != 1)
    return std::nullopt;
  const Ref tuple = value->item(1).item(0);
  if (tuple.kind() != PickleKind::kTuple || tuple.size() > kMaxRank) return std::nullopt;
  std::vector<int64_t> size;
  for (size_t i = 0; i < tuple.size(); ++i) {
    if (tuple.item(i).kind() != PickleKind::kInt || tuple.item(i).number() < 0) return std::nullopt;
    size.push_back(tuple.item(i).number());
  }
  return size;
}

// Where each box of each tensor is: (tensor, offsets) -> file and range.
struct Place {
  std::string file;
  ByteRange item;
};
using Places = std::map<std::pair<std::string, std::vector<int64_t>>, Place>;

absl::StatusOr<Place> DecodePlace(const std::string& name, const Ref& info) {
  if (!info.IsObject(kStorage)) return BadTensor(name, "no place of it");
  const auto file = FieldOfKind(info, "relative_path", PickleKind::kString);
  const auto offset = FieldOfKind(info, "offset", PickleKind::kInt);
  const auto length = FieldOfKind(info, "length", PickleKind::kInt);
  const auto transforms = Field(info, "transform_descriptors");
  // Fields are checked one by one: the pickle may have anything in any place.
  int64_t end_bytes;
  if (!file.has_value() || !offset.has_value() || !length.has_value() || offset->number() < 0 ||
      length->number() < 0 ||
      __builtin_add_overflow(offset->number(), length->number(), &end_bytes)) {
    return BadTensor(name, "a place that is none");
  }
  // The name is joined to the folder's path.
  if (file->text().size() > kMaxNameBytes || !StaysInFolder(file->text())) {
    return BadTensor(
        name, absl::StrCat("file '", absl::Utf8SafeCEscape(file->text().substr(0, kMaxNameBytes)),
                           "' is not in the folder"));
  }
  // Such bytes would be read as something else.
  if (transforms.has_value() && transforms->kind() != PickleKind::kNone && transforms->size() > 0) {
    return absl::UnimplementedError(absl::StrCat("DCP metadata: tensor '",
                                                 absl::Utf8SafeCEscape(name),
                                                 "' was transformed by an extension"));
  }
  return Place{std::string(file->text()), {offset->number(), length->number()}};
}

absl::StatusOr<Places> DecodePlaces(const Ref& storage_data, const Contents& contents) {
  Places places;
  for (size_t i = 0; i + 1 < storage_data.size(); i += 2) {
    const Ref index = storage_data.item(i);
    if (!index.IsObject(kIndex)) return Bad("a place for something that is not an index");
    const auto fqn = FieldOfKind(index, "fqn", PickleKind::kString);
    if (!fqn.has_value() || fqn->text().size() > kMaxNameBytes)
      return Bad("an index without a name");
    const std::string name(fqn->text());
    const bool is_object = contents.objects.count(name) > 0;
    // Dropped before it is decoded, so that a large table costs little.
    if (!is_object && contents.tensors.count(name) == 0) continue;  // Nobody asked for it.
    auto offsets = SizeOf(Field(index, "offset"));
    if (is_object) offsets.emplace();
    if (!offsets.has_value()) return BadTensor(name, "an index without an offset");
    ASSIGN_OR_RETURN(Place place, DecodePlace(name, storage_data.item(i + 1)));
    // A second place would make the result depend on the order.
    if (!places.emplace(std::make_pair(name, *offsets), std::move(place)).second)
      return BadTensor(name, "a chunk has two places");
  }
  return places;
}

absl::StatusOr<ChunkedTensor> DecodeTensor(const std::string& name, const Ref& stored) {
  ChunkedTensor tensor;
  const auto properties = Field(stored, "properties");
  if (!properties.has_value() || !properties->IsObject(kProperties) || properties->size() != 3 ||
      properties->item(2).kind() != PickleKind::kTuple || properties->item(2).size() == 0 ||
      properties->item(2).item(0).kind() != PickleKind::kGlobal) {
    return BadTensor(name, "no dtype");
  }
  const auto dtype = DTypeOfName(properties->item(2).item(0).text());
  const auto shape = SizeOf(Field(stored, "size"));
  const auto chunks = FieldOfKind(stored, "chunks", PickleKind::kList);
  if (!dtype.has_value() || !shape.has_value() || !chunks.has_value())
    return BadTensor(name, "no dtype, size or chunks");
  tensor.info = {*dtype, *shape};
  // Bounds the comparison of all pairs below.
  if (chunks->size() > kMaxChunks)
    return BadTensor(name, absl::StrCat(chunks->size(), " chunks, more than ", kMaxChunks));
  for (size_t i = 0; i < chunks->size(); ++i) {
    const Ref chunk = chunks->item(i);
    if (!chunk.IsObject(kChunk)) return BadTensor(name, "a chunk that is none");
    const auto offsets = SizeOf(Field(chunk, "offsets")), sizes = SizeOf(Field(chunk, "sizes"));
    if (!offsets.has_value() || !sizes.has_value() || offsets->size() != shape->size() ||
        sizes->size() != shape->size()) {
      return BadTensor(name, "a chunk whose offsets and sizes do not fit its shape");
    }
    Chunk& box = tensor.chunks.emplace_back();
    box.offsets = *offsets;
    box.sizes = *sizes;
  }
  return tensor;
}

bool Overlap(const Chunk& a, const Chunk& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d])
      return false;
  }
  return true;
}

// Boxes inside of the tensor, disjoint, and of as many elements together as it has: so they cover
// it. Empty ones are dropped.
absl::Status CheckCoverage(const std::string& name, ChunkedTensor* tensor) {
  TensorSpec spec;
  spec.shape = tensor->info.shape;
  const absl::StatusOr<int64_t> numel = Numel(spec);
  if (!numel.ok() || !SizeBytes(tensor->info.dtype, *numel).has_value())
    return BadTensor(name, "the size overflows");
  std::vector<Chunk> kept;
  int64_t covered = 0;
  for (Chunk& chunk : tensor->chunks) {
    int64_t volume = *numel == 0 ? 0 : 1;
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      // The box is inside the tensor. Written so that nothing overflows.
      if (chunk.sizes[d] > spec.shape[d] || chunk.offsets[d] > spec.shape[d] - chunk.sizes[d])
        return BadTensor(name, "a chunk outside of it");
      volume *= chunk.sizes[d];  // At most numel.
    }
    if (volume == 0) continue;
    // Before adding, so that the sum cannot overflow.
    if (volume > *numel - covered) return BadTensor(name, "its chunks overlap");
    covered += volume;
    kept.push_back(std::move(chunk));
  }
  if (covered != *numel) return BadTensor(name, "its chunks leave a hole");
  const auto begins_before = [](const Chunk& a, const Chunk& b) { return a.offsets < b.offsets; };
  std::sort(kept.begin(), kept.end(), begins_before);
  for (size_t i = 0; i < kept.size(); ++i) {
    // Those that begin after this one's end in the first dimension cannot overlap it.
    for (size_t j = i + 1; j < kept.size() && !kept[j].offsets.empty() &&
                           kept[j].offsets[0] < kept[i].offsets[0] + kept[i].sizes[0];
         ++j) {
      if (Overlap(kept[i], kept[j])) return BadTensor(name, "its chunks overlap");
    }
  }
  tensor->chunks = std::move(kept);
  return absl::OkStatus();
}

absl::Status GivePlaces(const Places& places, const std::string& name, ChunkedTensor* tensor) {
  for (Chunk& chunk : tensor->chunks) {
    const auto place = places.find({name, chunk.offsets});
    if (place == places.end()) return BadTensor(name, "a chunk is in no file");
    chunk.file = place->second.file;
    chunk.item = place->second.item;
  }
  return absl::OkStatus();
}

absl::Status GivePlaces(const Places& places, Contents* contents) {
  for (auto& [name, tensor] : contents->tensors) RETURN_IF_ERROR(GivePlaces(places, name, &tensor));
  for (auto& [name, object] : contents->objects) {
    const auto place = places.find({name, {}});
    if (place == places.end())
      return Bad(absl::StrCat("object '", absl::Utf8SafeCEscape(name), "' is in no file"));
    object = {place->second.file, place->second.item};
  }
  return absl::OkStatus();
}

// Without `with_objects` these are not looked at, nor is where they are.
absl::StatusOr<Contents> Decode(absl::string_view pickle, bool with_objects) {
  // Before decoding, which takes a multiple of it.
  if (pickle.size() > kMaxMetadataBytes) return Bad(absl::StrCat(pickle.size(), " bytes"));
  const std::vector<absl::string_view> globals = Globals();
  const absl::StatusOr<Pickle> decoded = Pickle::Decode(pickle, globals, false);
  if (!decoded.ok()) return Annotate(decoded.status(), "DCP metadata");
  if (!decoded->root().IsObject(kMetadata)) return Bad("it is something else");
  const auto stored = FieldOfKind(decoded->root(), "state_dict_metadata", PickleKind::kDict);
  const auto storage_data = FieldOfKind(decoded->root(), "storage_data", PickleKind::kDict);
  if (!stored.has_value() || !storage_data.has_value()) return Bad("no tensors or no places");
  Contents contents;
  // Views of the pickle, which outlives them.
  std::set<absl::string_view> names;
  size_t num_chunks = 0;
  for (size_t i = 0; i + 1 < stored->size(); i += 2) {
    if (stored->item(i).kind() != PickleKind::kString ||
        stored->item(i).text().size() > kMaxNameBytes) {
      return Bad("a tensor without a name");
    }
    const std::string name(stored->item(i).text());
    if (!names.insert(stored->item(i).text()).second) return BadTensor(name, "it is there twice");
    if (stored->item(i + 1).IsObject(kBytes)) {
      if (with_objects) contents.objects[name] = {};
      continue;
    }
    if (!stored->item(i + 1).IsObject(kTensor)) return BadTensor(name, "it is something else");
    ASSIGN_OR_RETURN(ChunkedTensor tensor, DecodeTensor(name, stored->item(i + 1)));
    num_chunks += tensor.chunks.size();
    // Each chunk needs a place of its own, so more of them cannot be right, however short the
    // pickle.
    if (num_chunks > storage_data->size() / 2) return BadTensor(name, "more chunks than places");
    RETURN_IF_ERROR(CheckCoverage(name, &tensor));
    contents.tensors[name] = std::move(tensor);
  }
  ASSIGN_OR_RETURN(const Places places, DecodePlaces(*storage_data, contents));
  RETURN_IF_ERROR(GivePlaces(places, &contents));
  return contents;
}

}  // namespace

absl::StatusOr<Metadata> DecodeMetadata(absl::string_view pickle) {
  ASSIGN_OR_RETURN(Contents contents, Decode(pickle, /*with_objects=*/false));
  return std::move(contents.tensors);
}

absl::StatusOr<Contents> DecodeContents(absl::string_view pickle) {
  return Decode(pickle, /*with_objects=*/true);
}

}  // namespace tessera::dcp

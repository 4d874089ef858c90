#include "checkpoint/dcp/torch_tensor.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/torch_archive.h"
#include "checkpoint/dcp/torch_types.h"

namespace tessera::dcp {
namespace {

using Ref = Pickle::Ref;

constexpr char kRebuildV2[] = "torch._utils _rebuild_tensor_v2";
constexpr char kRebuildV3[] = "torch._utils _rebuild_tensor_v3";
constexpr char kUntypedStorage[] = "torch.storage UntypedStorage";
constexpr size_t kMaxRank = 64;  // PyTorch's own.

std::vector<absl::string_view> Globals() {
  std::vector<absl::string_view> globals = StorageNames();
  for (const absl::string_view name : DTypeNames()) globals.push_back(name);
  for (const absl::string_view name :
       {kRebuildV2, kRebuildV3, kUntypedStorage, "collections OrderedDict"})
    globals.push_back(name);
  return globals;
}

absl::Status Bad(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("torch tensor: ", why));
}

std::optional<std::vector<int64_t>> Numbers(const Ref& tuple) {
  if (tuple.kind() != PickleKind::kTuple || tuple.size() > kMaxRank) return std::nullopt;
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < tuple.size(); ++i) {
    if (tuple.item(i).kind() != PickleKind::kInt || tuple.item(i).number() < 0) return std::nullopt;
    numbers.push_back(tuple.item(i).number());
  }
  return numbers;
}

// What a tensor's persistent id says: ('storage', class, key, location, elements).
struct Storage {
  std::optional<StoredDType> dtype;  // None: its elements are bytes, and the tensor says its dtype.
  std::string key;
  int64_t numel = 0;
};

absl::StatusOr<Storage> DecodeStorage(const Ref& persistent) {
  if (persistent.kind() != PickleKind::kPersistent ||
      persistent.item(0).kind() != PickleKind::kTuple || persistent.item(0).size() != 5) {
    return Bad("no storage");
  }
  const Ref id = persistent.item(0);
  if (id.item(0).kind() != PickleKind::kString || id.item(0).text() != "storage" ||
      id.item(1).kind() != PickleKind::kGlobal || id.item(2).kind() != PickleKind::kString ||
      id.item(4).kind() != PickleKind::kInt || id.item(4).number() < 0) {
    return Bad("no storage");
  }
  Storage storage;
  storage.dtype = DTypeOfStorage(id.item(1).text());
  if (!storage.dtype.has_value() && !id.item(1).IsGlobal(kUntypedStorage)) return Bad("no storage");
  storage.key = std::string(id.item(2).text());
  storage.numel = id.item(4).number();
  return storage;
}

// The last element's place is in the storage; then every other's is too.
absl::Status CheckPlaces(const TorchTensor& tensor, int64_t storage_elements) {
  int64_t last = tensor.offset_elements;
  // Without elements no place matters.
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] == 0) return absl::OkStatus();
  }
  // Strides are not negative, so the last element is the furthest.
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    int64_t reach;
    if (__builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return Bad("it leaves its storage");
    }
  }
  return last < storage_elements ? absl::OkStatus() : Bad("it leaves its storage");
}

absl::StatusOr<TorchTensor> DecodeTensor(const TorchArchive& archive) {
  const std::vector<absl::string_view> globals = Globals();
  ASSIGN_OR_RETURN(const Pickle decoded, Pickle::Decode(archive.pickle, globals, true));
  const Ref root = decoded.root();
  const bool is_v3 = root.IsObject(kRebuildV3);
  if ((!is_v3 && !root.IsObject(kRebuildV2)) || root.item(1).size() < (is_v3 ? 7u : 6u))
    return Bad("it is something else");
  const Ref arguments = root.item(1);
  ASSIGN_OR_RETURN(const Storage storage, DecodeStorage(arguments.item(0)));
  const auto sizes = Numbers(arguments.item(2)), strides = Numbers(arguments.item(3));
  const auto dtype = is_v3 ? DTypeOfName(arguments.item(6).text()) : storage.dtype;
  if (arguments.item(1).kind() != PickleKind::kInt || arguments.item(1).number() < 0 ||
      !sizes.has_value() || !strides.has_value() || sizes->size() != strides->size() ||
      !dtype.has_value()) {
    return Bad("no offset, size, stride or dtype");
  }
  const auto member = archive.members.find(absl::StrCat(archive.prefix, "data/", storage.key));
  if (member == archive.members.end()) return Bad("its storage is not there");
  TorchTensor tensor = {*dtype, *sizes, *strides, arguments.item(1).number(), member->second};
  // Of the member's bytes, not of what the pickle says.
  const int64_t storage_elements = tensor.storage.size_bytes * 8 / SizeBits(*dtype);
  if (!is_v3 && storage_elements < storage.numel) return Bad("its storage is cut");
  RETURN_IF_ERROR(CheckPlaces(tensor, storage_elements));
  return tensor;
}

}  // namespace

bool TorchTensor::IsContiguous() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 0) return true;
    // A dimension of one element may have any stride.
    if (sizes[d] != 1 && strides[d] != expected) return false;
    if (__builtin_mul_overflow(expected, sizes[d], &expected)) return false;
  }
  return true;
}

absl::StatusOr<TorchTensor> LocateTorchTensor(const OpenFile& file, const ByteRange& zip) {
  ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchArchive(file, zip));
  absl::StatusOr<TorchTensor> tensor = DecodeTensor(archive);
  if (!tensor.ok()) return Annotate(tensor.status(), ItemOf(file, zip));
  return tensor;
}

}  // namespace tessera::dcp

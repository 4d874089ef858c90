#include "checkpoint/dcp/torch_object.h"

#include "base/status_macros.h"
#include "checkpoint/dcp/torch_archive.h"

namespace tessera::dcp {

absl::StatusOr<TorchObject> TorchObject::Read(const OpenFile& file, const ByteRange& zip) {
  ASSIGN_OR_RETURN(TorchArchive archive, ReadTorchArchive(file, zip));
  // On the heap: the pickle's texts point into the bytes, which must not move with the object.
  auto bytes = std::make_unique<std::string>(std::move(archive.pickle));
  absl::StatusOr<Pickle> pickle = Pickle::Decode(*bytes, {}, /*persistent_ids=*/false);
  if (!pickle.ok()) return Annotate(pickle.status(), ItemOf(file, zip));
  return TorchObject(std::move(bytes), *std::move(pickle));
}

}  // namespace tessera::dcp

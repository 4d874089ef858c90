// What torch.save wrote of an object that is not a tensor: numbers, texts, lists, tuples and
// dictionaries of them. Anything else is refused by its name; nothing is executed. Immutable;
// thread-safe; move-only.
#ifndef TESSERA_CHECKPOINT_DCP_TORCH_OBJECT_H_
#define TESSERA_CHECKPOINT_DCP_TORCH_OBJECT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/stored_zip.h"
#include "checkpoint/safetensors/element_reader.h"

namespace tessera::dcp {

class TorchObject {
 public:
  // `zip`: what one torch.save wrote, in `file`.
  // Errors: InvalidArgument  what ReadTorchArchive and Pickle::Decode refuse: any global, by its
  //   name, and what refers to a storage. DataLoss  the file is shorter. They name file and place.
  static absl::StatusOr<TorchObject> Read(const OpenFile& file, const ByteRange& zip);

  Pickle::Ref root() const { return pickle_.root(); }  // Valid as long as this.

 private:
  TorchObject(std::unique_ptr<std::string> bytes, Pickle pickle)
      : bytes_(std::move(bytes)), pickle_(std::move(pickle)) {}

  std::unique_ptr<std::string> bytes_;  // At one address: the pickle's texts are views of it.
  Pickle pickle_;
};

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_TORCH_OBJECT_H_

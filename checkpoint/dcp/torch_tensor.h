// One tensor as torch.save writes it: a zip with a small pickle, which says what the tensor is, and
// the bytes of its storage.
//
//   data.pkl: _rebuild_tensor_v2(storage "0" of 20 floats, offset 5, size (4,), stride (1,), ...)
//   data/0:   80 bytes
//
// Nothing of the pickle is executed. Elements, but for the place in the file. Thread-safe.
#ifndef TESSERA_CHECKPOINT_DCP_TORCH_TENSOR_H_
#define TESSERA_CHECKPOINT_DCP_TORCH_TENSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/dcp/stored_zip.h"
#include "checkpoint/safetensors/element_reader.h"
#include "layout/stored_dtype.h"

namespace tessera::dcp {

struct TorchTensor {
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> sizes, strides;
  int64_t offset_elements = 0;  // Of its first element, in the storage.
  ByteRange storage;            // In the file. Every element of the tensor is in it.

  // Its elements are contiguous, row-major.
  bool IsContiguous() const;
};

// `zip`: what one torch.save wrote, in `file`.
// Errors: InvalidArgument  what ReadTorchArchive and Pickle::Decode refuse; no tensor; a tensor
//                          that exceeds its storage, or a storage that is shorter than it says
//         DataLoss         the file is shorter. They name the file and the place.
absl::StatusOr<TorchTensor> LocateTorchTensor(const OpenFile& file, const ByteRange& zip);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_TORCH_TENSOR_H_

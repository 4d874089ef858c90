// A model that somebody wrote, to read from: which tensors there are, and any slice of any of them.
//
//   one safetensors file           ModelReader
//   an index and its files         IndexedModel            OpenModel finds out which it is
//
// What elements are stored in is rounded or widened to what the values are. All of it may be
// anybody's: nothing is read by what has not been checked. Reading is thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_MODEL_SOURCE_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_MODEL_SOURCE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "layout/values.h"

namespace tessera {

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const TensorTable& tensors() const = 0;
  // Of headers, sizes and times of last change: other files, or these files after a change, have
  // another number, unless all of that is the same.
  virtual uint64_t identity() const = 0;

  // Elements [begin_elements, begin_elements + into.size()) of a floating-point tensor, row-major.
  // Errors: NotFound  no such tensor; InvalidArgument  outside of it, or a tensor of integers or
  //         of a type that Tessera does not have; DataLoss  a file became shorter. They name the
  //         file and the tensor.
  virtual absl::Status ReadSlice(const std::string& tensor, int64_t begin_elements,
                                 Values into) const = 0;
  // Elements [begin_elements, begin_elements + count) of a tensor of whatever type, row-major, as
  // they are stored: little-endian, elements below a byte packed. `into` has room for them.
  // Errors: as ReadSlice, but for the types; InvalidArgument  also where the slice does not begin
  //         and end between bytes.
  virtual absl::Status ReadStored(const std::string& tensor, int64_t begin_elements, int64_t count,
                                  char* into) const = 0;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_MODEL_SOURCE_H_

// State of a trainer's model in addition to the job's parameters: buffers, and ignored parameters.
#ifndef TESSERA_NAMED_TENSOR_H_
#define TESSERA_NAMED_TENSOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/dtype.h"
#include "layout/stored_dtype.h"

namespace tessera {

// One of them, of any dtype that safetensors has.
struct NamedTensor {
  NamedTensor() = default;
  NamedTensor(std::string name, StoredDType dtype, std::vector<int64_t> shape, std::string values)
      : name(std::move(name)), dtype(dtype), shape(std::move(shape)), values(std::move(values)) {}
  NamedTensor(std::string name, DType dtype, std::vector<int64_t> shape, std::string values)
      : NamedTensor(std::move(name), StoredAs(dtype), std::move(shape), std::move(values)) {}

  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  std::string values;  // Little-endian, row-major.
};

// To be saved, with their values, or to be read from a file, which needs names and shapes only.
enum class TensorValues { kIncluded, kOmitted };

// How saves and loads of the session get at all of them. Called on the trainer's thread.
struct TrainerTensors {
  // Errors: InvalidArgument  one has no form in files, named; FailedPrecondition  not now.
  std::function<absl::StatusOr<std::vector<NamedTensor>>(TensorValues values)> get;
  // Gives the model what was loaded: of the shapes that get() says; floating-point values may be of
  // another dtype.
  std::function<absl::Status(const std::vector<NamedTensor>&)> take;
};

}  // namespace tessera

#endif  // TESSERA_NAMED_TENSOR_H_

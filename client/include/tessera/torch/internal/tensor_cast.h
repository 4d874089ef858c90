// Casts the floating-point tensors of a value of any type; see for_each_tensor.h for what is found
// in it. As thread-safe as the value.
#ifndef TESSERA_TORCH_INTERNAL_TENSOR_CAST_H_
#define TESSERA_TORCH_INTERNAL_TENSOR_CAST_H_

#include <optional>

#include "tessera/torch/for_each_tensor.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

// Casts them, if there is something to cast to.
class TensorCast {
 public:
  explicit TensorCast(std::optional<torch::ScalarType> to) : to_(to) {}

  bool casts() const { return to_.has_value(); }
  // The dtype of the last tensor that was cast.
  std::optional<torch::ScalarType> from() const { return from_; }

  template <typename T>
  void operator()(T& value) {
    VisitTensors(value, [this](torch::Tensor& tensor) { CastTensor(tensor); });
  }

 private:
  void CastTensor(torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == *to_) return;
    from_ = tensor.scalar_type();
    tensor = tensor.to(*to_);
  }

  std::optional<torch::ScalarType> to_;
  std::optional<torch::ScalarType> from_;
};

}  // namespace tessera

#endif  // TESSERA_TORCH_INTERNAL_TENSOR_CAST_H_

// Gradients that lie on the rank's GPU go into its slot there, and not by way of the processor.
//
//   DeviceGradients gradients(&session);
//   gradients.Add(unit, parameter, tensor.data_ptr(), tensor.numel(), DType::kBf16);
//   session.Reduce(unit);
//
// Holds nothing itself. As Session: one thread at a time.
#ifndef TESSERA_CLIENT_CPP_DEVICE_GRADIENTS_H_
#define TESSERA_CLIENT_CPP_DEVICE_GRADIENTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "layout/dtype.h"

namespace tessera {

class Session;

class DeviceGradients {
 public:
  // `session` outlives this.
  explicit DeviceGradients(Session* session) : session_(session) {}

  // Whether the rank is on a GPU; and on which, as CUDA numbers them, or kHostDevice.
  bool available() const { return device() >= 0; }
  int device() const;

  // As Session::AddGradient, of `numel` elements that lie on that GPU and are complete: the stream
  // that wrote them was synchronised. They are read once Finish, or Session::Reduce of the unit,
  // has returned. `dtype`: the unit's full dtype, or bf16 or fp16. Errors: InvalidArgument wrong
  // size or dtype, or a parameter that needs no gradient
  //         FailedPrecondition  the rank is on no GPU; the unit has a gradient in the processor's
  //                             memory, or a communication hook, which would look for it there
  //         those of Session::AddGradient, and of the GPU
  absl::Status Add(int unit, int parameter, const void* values, int64_t numel, DType dtype);

  absl::Status Finish();

 private:
  friend class Session;
  absl::Status Check(int unit, int parameter, int64_t numel, DType dtype) const;
  absl::Status AddToHalf(int unit, uint16_t* slot, const void* values, int64_t numel, DType dtype);
  // What the unit's gradient has no part of becomes 0. Waits for all that was added.
  absl::Status FinishSlot(int unit);

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_DEVICE_GRADIENTS_H_

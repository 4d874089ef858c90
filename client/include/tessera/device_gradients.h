// Gradients in the memory of the rank's GPU are added to the unit's slot there, without a copy
// through host memory.
//
//   DeviceGradients gradients(&session);
//   gradients.Add(unit, parameter, tensor.data_ptr(), tensor.numel(), DType::kBf16);
//   session.Reduce(unit);
//
// Holds nothing itself. As Session: one thread at a time.
#ifndef TESSERA_DEVICE_GRADIENTS_H_
#define TESSERA_DEVICE_GRADIENTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/dtype.h"

namespace tessera {

class Session;

// For AfterStream: CUDA's legacy default stream.
inline void* LegacyDefaultStream() { return reinterpret_cast<void*>(uintptr_t{1}); }

// A step, a write and a load overwrite the parameters on the GPU: before it asks for one, a trainer
// waits for all kernels that read them. Where units share slots (HasSlot), the end of a window
// overwrites them too: AfterStream before Session::Reshard says which stream reads the unit.
// tessera::ShardedModel does both itself.
class DeviceGradients {
 public:
  // `session` outlives this.
  explicit DeviceGradients(Session* session) : session_(session) {}

  // Whether the rank is on a GPU; and on which, as CUDA numbers it in this process, or kHostDevice.
  bool available() const { return device() >= 0; }
  int device() const;

  // What is added from now on was written by this stream, CUDA's CUstream, and is read when the
  // stream has come there: nobody waits. Without, what is added is complete.
  void AfterStream(void* stream);

  // As Session::AddGradient, of `numel` elements that are on that GPU. They are read once Finish
  // has returned, and not before.
  // `dtype`: the unit's full dtype, or bf16 or fp16.
  //         FailedPrecondition  the rank is on no GPU; the unit has a gradient in host memory, or a
  //                             communication hook, which would look for it there
  //         those of Session::AddGradient, and of the GPU
  absl::Status Add(int unit, int parameter, const void* values, int64_t numel, DType dtype);

  // Whether the unit's parameters are in a slot, which other units use once its window is over; and
  // which other unit, if any, has a window there now, so that none on this unit can be opened at
  // the same time. `unit`: one of the session's.
  bool HasSlot(int unit) const;
  std::optional<int> OtherInSlot(int unit) const;

  // Waits until what was added is in the slots. Errors: those of the GPU.
  absl::Status Finish();

 private:
  absl::Status Check(int unit, int parameter, int64_t numel, DType dtype) const;
  absl::Status AddToHalf(int unit, uint16_t* slot, const void* values, int64_t numel, DType dtype);

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_GRADIENTS_H_

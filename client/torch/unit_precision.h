// Which memory and dtype the parameters and buffers of an attached model have at the moment.
//
//   parameters of a unit   compute dtype ◄── UseParameters ──► full (its memory of that)
//   buffers of the model   buffer dtype  ◄── UseOriginalBuffers ──► original dtype
//
// Switching changes tensors in place, so that modules' members follow; it reads no parameter.
// Confined to the thread that trains. Session and units outlive this.
#ifndef TESSERA_CLIENT_TORCH_UNIT_PRECISION_H_
#define TESSERA_CLIENT_TORCH_UNIT_PRECISION_H_

#include <optional>
#include <vector>

#include "client/torch/module_units.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

class UnitPrecisions {
 public:
  // Points the parameters at the session's memory in the compute dtype, and casts the buffers.
  UnitPrecisions(Session* session, ModuleUnits* units, bool full_precision_in_eval);
  // Gives the buffers their original dtypes back.
  ~UnitPrecisions();
  UnitPrecisions(const UnitPrecisions&) = delete;
  UnitPrecisions& operator=(const UnitPrecisions&) = delete;

  // In which the unit's next forward is, as its modules are in training or evaluation.
  Precision Wanted(int unit) const;
  // What the unit's next forward casts its arguments to.
  std::optional<torch::ScalarType> InputDType(int unit) const;
  // Whether the parameters' dtype changed: libtorch has then made their gradient accumulators void.
  bool UseParameters(int unit, Precision precision);
  // Returns whether they were original before.
  bool UseOriginalBuffers(bool original);

 private:
  bool InFullPrecisionEval(int unit) const;
  void PlaceParameters(int unit);

  Session* const session_;
  ModuleUnits* const units_;
  const bool full_precision_in_eval_;
  std::vector<torch::ScalarType> original_buffers_;
  bool buffers_original_ = true;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_PRECISION_H_

// Adds a trainer's gradients up in their slots and has them reduced.
//
// For this folder; the contracts are those of Session. One thread at a time.
#ifndef TESSERA_CLIENT_SESSION_GRADIENT_REDUCER_H_
#define TESSERA_CLIENT_SESSION_GRADIENT_REDUCER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/session/gradient_slots.h"
#include "client/session/parameter_windows.h"
#include "client/session/rank_client.h"
#include "layout/values.h"
#include "tessera/session_options.h"

namespace tessera {

class GradientReducer {
 public:
  // Not owned.
  GradientReducer(RankClient* client, const ParameterWindows* windows, GradientSlots* slots)
      : client_(client), windows_(windows), slots_(slots) {}

  absl::Status RegisterHook(std::optional<int> unit, CommHook hook);  // Nullopt: of all units.
  bool has_hook(int unit) const { return !hooks_.empty() && !hooks_[unit].empty(); }

  // The unit's slot is its gradient's from now on, unless it was.
  absl::Status Begin(int unit);
  // Of the unit's gradient in its slot, or of the next one that begins.
  DType SlotDtype(int unit) const;
  absl::Status CheckTakesGradient(int unit, int parameter, int64_t numel) const;
  absl::Status Add(int unit, int parameter, ConstValues values);
  absl::Status Reduce(int unit);
  // Runs the hooks of what was reduced, where they did not run since.
  absl::Status RunAfterHooks();

 private:
  const CommHook& hook(int unit) const;
  DType TravelDtype(int unit) const;  // Of the next gradient that begins.
  // Calls `zero(begin, end)`, in elements, with what no parameter of the unit's gradient covers.
  void ForEachUncovered(int unit, absl::FunctionRef<void(int64_t, int64_t)> zero) const;
  void ZeroUncovered(int unit, DType dtype);
  // Computes from the added gradients what will be reduced: in host memory; on the GPU, in which
  // case it returns what RecordGradientEvent does.
  absl::Status FinishSlot(int unit);
  absl::StatusOr<uint32_t> FinishDeviceSlot(int unit);
  absl::Status RunAfterHook(int unit);

  RankClient* const client_;
  const ParameterWindows* const windows_;
  GradientSlots* const slots_;
  std::vector<CommHook> hooks_;  // By unit; empty: there are none.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_GRADIENT_REDUCER_H_

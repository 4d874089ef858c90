// The driver of windows, prefetch and reduction, for hooks of another language.
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "client/c/handles.h"
#include "client/c/tessera.h"
#include "client/units/session_units.h"
#include "client/units/unit_driver.h"
#include "tessera/device_gradients.h"

struct tessera_forward {
  std::shared_ptr<tessera::UnitForward> forward;
};

namespace tessera::c_api {
namespace {

// Parameters are read only in the compute dtype, at addresses that do not change. In host memory
// a gradient is the session's as soon as the caller tells of it. On a GPU those of a unit are kept
// until all are there, and read after the caller's stream: the caller runs one unit ahead.
class Host : public SessionUnits {
 public:
  explicit Host(Session* session)
      : SessionUnits(session),
        gradients_(session),
        kept_(static_cast<size_t>(session->num_units())) {}

  ~Host() override { Drop(); }

  bool on_gpu() const { return gradients_.available(); }
  void set_stream(void* stream) {
    if (stream == nullptr) stream = LegacyDefaultStream();
    if (stream == stream_) return;
    // What it was given may still write a gradient that is kept, or read a unit that is open.
    gradients_.AfterStream(std::exchange(stream_, stream));
  }
  bool reads(int unit) const { return reading_ == unit || !kept_[unit].empty(); }

  void Keep(int unit, const tessera_gradient& gradient, DType dtype) {
    kept_[unit].push_back({gradient.parameter, gradient.values, gradient.elements, dtype});
  }
  // Of all units: nothing is read afterwards.
  absl::Status HandOverAll() {
    for (int unit = 0; unit < session()->num_units(); ++unit)
      RETURN_IF_ERROR(HandOverGradients(unit));
    return Finish();
  }
  // What was not handed over. Afterwards the memory of gradients is the caller's again.
  void Drop() {
    if (!on_gpu()) return;
    for (auto& of_unit : kept_) of_unit.clear();
    Finish().IgnoreError();  // The next operation returns it.
  }

 private:
  struct Kept {
    int parameter;
    const void* values;
    int64_t elements;
    DType dtype;
  };

  Precision WantedPrecision(int) const override { return Precision::kCompute; }
  void UseParameters(int, Precision) override {}
  void FollowUses(int unit) override {
    // Other units use only slots, so only there must the caller's kernels have ended.
    if (gradients_.HasSlot(unit)) gradients_.AfterStream(stream_);
  }
  absl::Status HandOverGradients(int unit) override {
    if (kept_[unit].empty()) return absl::OkStatus();
    // Of the unit before. Where there is none, the host does not wait for the caller's streams.
    if (reading_ != UnitDriver::kNoUnit) RETURN_IF_ERROR(Finish());
    gradients_.AfterStream(stream_);
    // Before the first is added, because the caller asks by it what it may free.
    reading_ = unit;
    for (const Kept& kept : std::exchange(kept_[unit], {})) {
      RETURN_IF_ERROR(gradients_.Add(unit, kept.parameter, kept.values, kept.elements, kept.dtype));
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    reading_ = UnitDriver::kNoUnit;
    return gradients_.Finish();
  }

  DeviceGradients gradients_;
  void* stream_ = LegacyDefaultStream();
  std::vector<std::vector<Kept>> kept_;  // By unit.
  int reading_ = UnitDriver::kNoUnit;    // Whose gradients the GPU may be reading.
};

}  // namespace
}  // namespace tessera::c_api

struct tessera_units {
  tessera_units(tessera::Session* on, tessera::UnitDriver::Options options)
      : session(on),
        host(on),
        driver(options, tessera::WindowRules(on->layout().units, options.root),
               tessera::PrefetchPlan(on->config().backward_prefetch, on->config().forward_prefetch,
                                     on->num_units()),
               &host) {}

  tessera::Session* const session;
  // Backwards may run on the framework's threads.
  absl::Mutex mu;
  tessera::c_api::Host host;  // Guarded by mu, too; the driver calls it.
  tessera::UnitDriver driver ABSL_GUARDED_BY(mu);
  std::vector<double> widened ABSL_GUARDED_BY(mu);
};

using namespace tessera;         // NOLINT
using namespace tessera::c_api;  // NOLINT

namespace {

absl::Status CheckInBackward(const UnitDriver& driver) {
  // The driver counts in its innermost backward, so there must be one.
  if (driver.in_backward()) return absl::OkStatus();
  return absl::FailedPreconditionError("no backward is under way");
}

absl::Status TakeGradient(tessera_units* units, int unit, const tessera_gradient& gradient)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(units->mu) {
  if (units->host.on_gpu()) {
    ASSIGN_OR_RETURN(const DType dtype, CheckGradient(*units->session, unit, gradient));
    if (!IsHalf(dtype) && dtype != units->session->full_dtype(unit)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a gradient in ", Name(dtype), " for unit '",
                       units->session->layout().units[unit].flat.unit_name(), "', which is in ",
                       Name(units->session->full_dtype(unit))));
    }
    // Reduces the unit that has this one's slot, if another does.
    RETURN_IF_ERROR(units->driver.MakeRoom(unit));
    units->host.Keep(unit, gradient, dtype);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const ConstValues values,
                   ReadGradient(*units->session, unit, gradient, &units->widened));
  RETURN_IF_ERROR(units->driver.MakeRoom(unit));
  return units->session->AddGradient(unit, gradient.parameter, values);
}

std::vector<int> Listed(const int* units, size_t count, int num_units) {
  std::vector<int> listed;
  for (size_t i = 0; units != nullptr && i < count; ++i) {
    if (units[i] >= 0 && units[i] < num_units) listed.push_back(units[i]);
  }
  return listed;
}

}  // namespace

int tessera_units_new(tessera_session* session, const int* num_modules, int root,
                      tessera_units** out) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(num_modules, "num_modules"));
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    if (root != UnitDriver::kNoUnit) RETURN_IF_ERROR(CheckUnit(*session->session, root));
    UnitDriver::Options options;
    options.root = root;
    for (int unit = 0; unit < session->session->num_units(); ++unit) {
      if (num_modules[unit] < 1)
        return absl::InvalidArgumentError(absl::StrCat("unit ", unit, " has no module"));
      options.num_modules.push_back(num_modules[unit]);
    }
    *out = new tessera_units(session->session.get(), std::move(options));
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

void tessera_units_delete(tessera_units* units) { delete units; }

int tessera_units_begin_forward(tessera_units* units, int unit, tessera_forward** out) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    if (unit != UnitDriver::kNoUnit) RETURN_IF_ERROR(CheckUnit(*units->session, unit));
    absl::MutexLock lock(&units->mu);
    ASSIGN_OR_RETURN(std::shared_ptr<UnitForward> forward,
                     units->driver.BeginForward(unit, Precision::kCompute));
    *out = new tessera_forward{std::move(forward)};
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_units_end_forward(tessera_units* units, tessera_forward* forward, int module,
                              int* model_ended) {
  absl::MutexLock lock(&units->mu);
  const absl::StatusOr<bool> ended = units->driver.EndForward(forward->forward.get(), module);
  if (ended.ok() && model_ended != nullptr) *model_ended = *ended ? 1 : 0;
  return CodeOf(ended.status());
}

void tessera_units_abandon_forward(tessera_units* units, tessera_forward* forward) {
  absl::MutexLock lock(&units->mu);
  units->driver.AbandonForward(*forward->forward);
}

void tessera_forward_delete(tessera_forward* forward) { delete forward; }

int tessera_units_in_backward(tessera_units* units) {
  absl::MutexLock lock(&units->mu);
  return units->driver.in_backward() ? 1 : 0;
}

int tessera_units_begin_backward(tessera_units* units, const tessera_unit_work* work,
                                 size_t num_work) {
  const absl::Status status = [&]() -> absl::Status {
    if (num_work > 0) RETURN_IF_ERROR(CheckNotNull(work, "work"));
    UnitDriver::BackwardWork announced;
    for (size_t i = 0; i < num_work; ++i) {
      RETURN_IF_ERROR(CheckUnit(*units->session, work[i].unit));
      announced[work[i].unit] = {work[i].nodes, work[i].gradients};
    }
    absl::MutexLock lock(&units->mu);
    units->driver.BeginBackward(std::move(announced));
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_units_begin_node(tessera_units* units, tessera_forward* forward) {
  absl::MutexLock lock(&units->mu);
  const absl::Status under_way = CheckInBackward(units->driver);
  return CodeOf(under_way.ok() ? units->driver.BeginNode(*forward->forward) : under_way);
}

int tessera_units_end_node(tessera_units* units, tessera_forward* forward) {
  absl::MutexLock lock(&units->mu);
  const absl::Status under_way = CheckInBackward(units->driver);
  return CodeOf(under_way.ok() ? units->driver.EndNode(*forward->forward) : under_way);
}

int tessera_units_gradients(tessera_units* units, int unit, const tessera_gradient* gradients,
                            size_t num_gradients) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckUnit(*units->session, unit));
    if (num_gradients > 0) RETURN_IF_ERROR(CheckNotNull(gradients, "gradients"));
    absl::MutexLock lock(&units->mu);
    RETURN_IF_ERROR(CheckInBackward(units->driver));
    for (size_t i = 0; i < num_gradients; ++i) {
      // First, because OnGradient may reduce the unit.
      if (gradients[i].elements != -1) RETURN_IF_ERROR(TakeGradient(units, unit, gradients[i]));
      RETURN_IF_ERROR(units->driver.OnGradient(unit));
    }
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_units_end_backward(tessera_units* units, int failed) {
  absl::MutexLock lock(&units->mu);
  absl::Status status = CheckInBackward(units->driver);
  if (status.ok()) status = units->driver.EndBackward(failed != 0);
  // Also for units that are not reduced yet, because the caller may free their gradients now. After
  // a backward that failed too: as in host memory, they count until they are dropped.
  if (status.ok()) status = units->host.HandOverAll();
  // After an error nothing may read the caller's gradients any more.
  if (!status.ok()) units->host.Drop();
  return CodeOf(status);
}

int tessera_units_reads(tessera_units* units, int unit) {
  if (CodeOf(CheckUnit(*units->session, unit)) != TESSERA_OK) return 0;
  absl::MutexLock lock(&units->mu);
  return units->host.reads(unit) ? 1 : 0;
}

void tessera_units_set_stream(tessera_units* units, void* stream) {
  absl::MutexLock lock(&units->mu);
  units->host.set_stream(stream);
}

void tessera_units_begin_step(tessera_units* units) {
  absl::MutexLock lock(&units->mu);
  units->driver.ForgetGroups();
}

void tessera_units_set_reshard_after_forward(tessera_units* units, int unit, int reshard) {
  if (CodeOf(CheckUnit(*units->session, unit)) != TESSERA_OK) return;
  absl::MutexLock lock(&units->mu);
  units->driver.rules().SetReshardAfterForward(unit, reshard != 0);
}

int tessera_units_set_sync(tessera_units* units, int unit, int sync) {
  if (CodeOf(CheckUnit(*units->session, unit)) != TESSERA_OK) return 1;
  absl::MutexLock lock(&units->mu);
  const bool before = units->driver.rules().Syncs(unit);
  units->driver.rules().SetSync(unit, sync != 0);
  return before ? 1 : 0;
}

void tessera_units_set_forward_prefetch(tessera_units* units, int unit, const int* ahead,
                                        size_t num_ahead) {
  if (CodeOf(CheckUnit(*units->session, unit)) != TESSERA_OK) return;
  absl::MutexLock lock(&units->mu);
  units->driver.prefetch().SetForward(unit, Listed(ahead, num_ahead, units->session->num_units()));
}

void tessera_units_set_backward_prefetch(tessera_units* units, int unit, const int* ahead,
                                         size_t num_ahead) {
  if (CodeOf(CheckUnit(*units->session, unit)) != TESSERA_OK) return;
  absl::MutexLock lock(&units->mu);
  units->driver.prefetch().SetBackward(unit, Listed(ahead, num_ahead, units->session->num_units()));
}

#include "tessera/session.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "client/session/session_state.h"
#include "client/session/state_access.h"
#include "client/session/tensor_codec.h"
#include "client/session/trainer_events.h"
#include "proto/checkpoint.pb.h"

namespace tessera {
namespace {

absl::Status AttachUntil(SessionState* state, absl::Time deadline) {
  RankClient& client = state->client;
  RETURN_IF_ERROR(client.Connect(deadline));
  if (client.memory().device->is_separate()) {
    NameGradientEvents(&client);
  } else {
    state->windows.Guard();
  }
  // What an earlier trainer left is taken over only once the executor is known to be idle.
  return client.Begin(deadline, [state] {
    state->slots.TakeCounts();
    return state->windows.TakeOver();
  });
}

// The wire has names in UTF-8 alone, and says nothing of what is wrong with others.
absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (IsUtf8(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", PrintableUtf8(name), "' is not UTF-8"));
}

absl::Status CheckNames(const SessionOptions& options) {
  RETURN_IF_ERROR(CheckName("job_id", options.job_id));
  for (const UnitSpec& unit : options.model.units) {
    RETURN_IF_ERROR(CheckName("the name of unit", unit.name));
    for (const TensorSpec& parameter : unit.parameters)
      RETURN_IF_ERROR(CheckName("the name of parameter", parameter.name));
  }
  for (const BufferSpec& buffer : options.model.buffers)
    RETURN_IF_ERROR(CheckName("the name of buffer", buffer.name));
  return absl::OkStatus();
}

absl::Status CheckTimeouts(const SessionOptions& options) {
  const std::pair<absl::string_view, absl::Duration> timeouts[] = {
      {"attach_timeout", options.attach_timeout},
      {"operation_timeout", options.operation_timeout},
      {"recover_timeout", options.recover_timeout}};
  for (const auto& [name, timeout] : timeouts) {
    if (timeout > absl::ZeroDuration()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", absl::FormatDuration(timeout), ": it must be above 0"));
  }
  return absl::OkStatus();
}

}  // namespace

Session::Session(SessionOptions options)
    : state_(std::make_unique<SessionState>(std::move(options))) {}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const SessionOptions& options) {
  SessionOptions checked = options;
  checked.config.layout.alignment_dtype = checked.config.compute_dtype;
  RETURN_IF_ERROR(CheckNames(checked));
  RETURN_IF_ERROR(CheckTimeouts(checked));
  RETURN_IF_ERROR(ValidateModel(checked.model));
  RETURN_IF_ERROR(ValidateJobConfig(checked.config, checked.model));
  std::unique_ptr<Session> session(new Session(std::move(checked)));
  const absl::Time deadline = SteadyNow() + options.attach_timeout;
  // One deadline for all that opening waits for.
  session->state_->client.LimitWaits(deadline);
  RETURN_IF_ERROR(AttachUntil(session->state_.get(), deadline));
  // From here on each wait has the timeouts of the options.
  session->state_->client.LimitWaits(absl::InfiniteFuture());
  return session;
}

Session::~Session() {
  RankClient& client = state_->client;
  // A forked child leaves nothing: its parent is still there.
  if (!client.attached() || client.is_inherited()) return;
  // Only an executor in this process needs to be idle. Otherwise the next trainer takes it up.
  const bool is_within_step = within_step();
  // Before Drop, which leaves the step.
  const bool is_done = !is_within_step && !state_->is_unfinished && std::uncaught_exceptions() == 0;
  client.Detach(/*idle=*/client.hosts_executor() && !is_within_step && !client.EpochIsOver() &&
                    state_->slots.Drop().ok(),
                is_done);
}

const ModelLayout& Session::layout() const { return state_->client.layout(); }
const JobConfig& Session::config() const { return state_->client.options().config; }
int Session::rank() const { return state_->client.rank(); }
int Session::num_units() const { return state_->client.num_units(); }
bool Session::hosts_executor() const { return state_->client.hosts_executor(); }
int64_t Session::next_step() const { return state_->client.next_step(); }
bool Session::restart_required() const { return state_->client.restart_required(); }
bool Session::initialized() const { return state_->client.initialized(); }

int64_t Session::num_writes() const {
  return state_->client.page()->writes.load(std::memory_order_acquire);
}

absl::Status Session::Initialize(const Filler& fill) {
  RETURN_IF_ERROR(state_->client.CheckNotInitialized());
  // The slot of a unit is filled while the executor still works on the one before.
  for (int unit = 0; unit < num_units(); ++unit)
    RETURN_IF_ERROR(state_->slots.Stage(OpOf(OpKind::kInitialize, unit), fill));
  // The job has values once all ranks have passed this, and none before.
  return state_->client.Finish(OpOf(OpKind::kFinishInitialize));
}

absl::Status Session::Unshard(int unit, Precision precision) {
  RankClient& client = state_->client;
  RETURN_IF_ERROR(client.CheckUnit(unit));
  const bool is_opening = !unsharded(unit) && !closed(unit);
  if (is_opening) precision = this->precision(unit);
  // Ranks that went on to another job would not hear of this one's next epoch, and be waited for.
  const bool is_alone = ProcessJob::IsOnlyOne() || client.is_meeting_trainers();
  const bool undoes_nothing =
      is_alone && !within_step() && client.num_submitted() == (is_opening ? 1 : 0);
  const int64_t step = next_step();
  while (true) {
    RETURN_IF_ERROR(client.AwaitTrainers());
    const absl::Status opened = state_->windows.Open(unit, precision);
    if (!undoes_nothing || !absl::IsAborted(opened)) return opened;
    // In the next epoch it is where it was, and where a trainer begins that took another's place.
    RETURN_IF_ERROR(client.Recover());
    if (next_step() != step) return opened;
    TESSERA_LOG(INFO, "job '{}', rank {}: opens the first unit of step {} again in epoch {}: {}",
                client.options().job_id, rank(), step, client.epoch(),
                std::string(opened.message()));
  }
}

absl::Status Session::UnshardAsync(int unit, Precision precision) {
  return state_->windows.OpenAsync(unit, precision);
}

absl::Status Session::Reshard(int unit) { return state_->windows.Close(unit); }

absl::Status Session::EndForward() { return state_->client.Submit(OpOf(OpKind::kEndForward)); }

bool Session::unsharded(int unit) const { return state_->windows.is_open(unit); }
bool Session::closed(int unit) const { return state_->windows.is_closed(unit); }
bool Session::gathered(int unit) const { return state_->windows.gathered(unit); }

const std::byte* Session::parameters(int unit) const { return state_->windows.parameters(unit); }

const std::byte* Session::parameter(int unit, int parameter) const {
  return state_->windows.parameter(unit, parameter);
}

const std::byte* Session::full_parameter(int unit, int parameter) const {
  return state_->windows.full_parameter(unit, parameter);
}

DType Session::full_dtype(int unit) const { return layout().units[unit].full_dtype(); }

Precision Session::precision(int unit) const { return state_->windows.precision(unit); }

absl::Status Session::ReadParameters(int unit, const Reader& read) {
  return StateAccess(this).ReadArray(unit, StateArray::kParameter, read);
}

absl::Status Session::WriteParameters(const std::vector<int>& units, const Filler& fill) {
  RETURN_IF_ERROR(state_->client.CheckInitialized());
  // Windows in full precision are copies of the version before, so none stays open over a write.
  RETURN_IF_ERROR(state_->windows.CloseFull());
  for (const int unit : units)
    RETURN_IF_ERROR(state_->slots.Stage(OpOf(OpKind::kWrite, unit), fill));
  return state_->client.Finish(OpOf(OpKind::kFinishWrite));
}

absl::Status Session::ReadGradients(int unit, const Reader& read) {
  GradientSlots& slots = state_->slots;
  // Clipping is a factor of the step, so the slots still have the gradients before it.
  RETURN_IF_ERROR(slots.CheckNotClipped("reading gradients"));
  RETURN_IF_ERROR(slots.Claim(unit));
  if (!reduced(unit)) return absl::OkStatus();
  RETURN_IF_ERROR(slots.Read(OpOf(OpKind::kReadGradient, unit)));
  const std::vector<PlacedParameter>& parameters = layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (slots.touched(unit, p)) read(p, slots.ValuesOf(unit, parameters[p]));
  }
  return absl::OkStatus();
}

absl::Status Session::WriteGradients(int unit, const GradientFiller& fill) {
  GradientSlots& slots = state_->slots;
  RETURN_IF_ERROR(slots.CheckNotClipped("setting gradients"));
  RETURN_IF_ERROR(slots.Claim(unit));
  if (reduced(unit)) {
    // `fill` may keep what was reduced, so it has to see it.
    RETURN_IF_ERROR(slots.Read(OpOf(OpKind::kReadGradient, unit)));
  } else {
    const Values whole = slots.Whole(unit);
    // The slot may hold another unit's values, and what `fill` leaves out must be zero.
    memset(whole.data(), 0, whole.size_bytes());
  }
  const std::vector<PlacedParameter>& parameters = layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.requires_grad) continue;
    slots.SetTouched(unit, p, fill(p, slots.touched(unit, p), slots.ValuesOf(unit, parameters[p])));
  }
  // Also if nothing was reduced before: the step uses what was set.
  slots.gradient(unit).reduced = true;
  return slots.Submit(OpOf(OpKind::kWriteGradient, unit));
}

absl::Status Session::AddGradient(int unit, int parameter, ConstValues values) {
  return state_->reducer.Add(unit, parameter, values);
}

absl::Status Session::Reduce(int unit) { return state_->reducer.Reduce(unit); }

absl::Status Session::Report(const std::map<std::string, double>& values) {
  return state_->client.Report(values);
}

absl::Status Session::RegisterCommHook(CommHook hook) {
  return state_->reducer.RegisterHook(std::nullopt, std::move(hook));
}
absl::Status Session::RegisterCommHook(int unit, CommHook hook) {
  return state_->reducer.RegisterHook(unit, std::move(hook));
}

absl::StatusOr<double> Session::ClipGradNorm(double max_norm, double p,
                                             const StepOptions& options) {
  return state_->steps.ClipGradNorm(max_norm, p, options);
}

bool Session::has_gradient(int unit) const { return state_->slots.gradient(unit).begun; }
bool Session::reduced(int unit) const { return state_->slots.gradient(unit).reduced; }
std::optional<int> Session::HolderOfSlot(int unit) const { return state_->slots.HolderOf(unit); }
bool Session::within_step() const { return state_->slots.within_step(); }

absl::StatusOr<StepResult> Session::Step(const StepOptions& options) {
  absl::StatusOr<StepResult> step = state_->steps.Step(options);
  // A step that was undone is done again, or was decided.
  state_->is_unfinished = !step.ok() && !absl::IsAborted(step.status());
  RETURN_IF_ERROR(step.status());
  // All ranks heard of the request in the step's result, so all save now.
  if (!step->skipped) StateAccess(this).TakeSaveRequest();
  return step;
}

absl::StatusOr<StepResult> Session::Step(double learning_rate_scale) {
  StepOptions options;
  options.learning_rate_scale = learning_rate_scale;
  return Step(options);
}

absl::Status Session::AnnounceStep(const StepOptions& options) {
  return state_->steps.Announce(options);
}

absl::Status Session::DropGradients() { return state_->slots.Drop(); }
absl::Status Session::DropGradients(int unit) { return state_->slots.Drop(unit); }

absl::Status Session::Save(const std::string& path) {
  v1::SaveRequest request;
  SetSpec({SaveContent::kModel, path, /*options=*/{}, /*root=*/""}, &request);
  AddTrainerTensors(this, &request);
  return StateAccess(this).Call(OpKind::kSave, request.SerializeAsString()).status();
}

absl::Status Session::Fail(const absl::Status& cause) {
  if (!absl::IsAborted(cause)) state_->is_unfinished = true;
  return state_->client.Fail(cause);
}
absl::Status Session::Recover() { return state_->client.Recover(); }

absl::Status Session::RunStep(const std::function<absl::Status()>& step_body) {
  // First: the body may leave by an exception.
  state_->is_unfinished = true;
  RETURN_IF_ERROR(state_->steps.Run(step_body));
  state_->is_unfinished = false;
  return absl::OkStatus();
}

}  // namespace tessera

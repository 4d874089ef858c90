// Opening, values, windows, gradients and steps: a thin layer over Session.
#include "tessera/session.h"

#include <stdlib.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/c/handles.h"
#include "client/c/structs.h"
#include "client/c/tessera.h"
#include "client/session/session_setup.h"
#include "client/session/session_state.h"
#include "client/session/window_guard.h"
#include "job/job_json.h"
#include "job/job_layout.h"
#include "nlohmann/json.hpp"
#include "tessera/device_gradients.h"
#include "tessera/in_process_executor.h"
#include "tessera/optimizer_state.h"

namespace tessera::c_api {
namespace {

constexpr int kNoCode = -1;

absl::Duration SecondsOr(double seconds, absl::Duration otherwise) {
  return seconds == 0 ? otherwise : absl::Seconds(seconds);
}

absl::StatusOr<SessionOptions> ReadOpenOptions(const tessera_open_options* given) {
  tessera_open_options read;
  RETURN_IF_ERROR(ReadStruct(given, "options", &read));
  RETURN_IF_ERROR(CheckNotNull(read.model_json, "model_json"));
  RETURN_IF_ERROR(CheckNotNull(read.config_json, "config_json"));
  SessionOptions options;
  options.coordinator_address = Text(read.coordinator_address);
  options.worker_address = Text(read.worker_address);
  options.tls = {Text(read.tls_certificate_path), Text(read.tls_key_path), Text(read.tls_ca_path)};
  options.insecure_connect = read.insecure_connect != 0;
  options.job_id = Text(read.job_id);
  options.rank = read.rank;
  ASSIGN_OR_RETURN(options.model, ParseModelJson(read.model_json));
  ASSIGN_OR_RETURN(options.config, ParseJobConfigJson(read.config_json));
  options.wait_if_attached = read.wait_if_attached != 0;
  options.guard_windows = read.unguarded_windows == 0;
  options.make_device = MachineDevices();
  if (read.executor_in_process != 0) options.host_executor = InProcessExecutor();
  // Written so that a NaN is refused too.
  for (const double seconds : {read.attach_timeout_seconds, read.operation_timeout_seconds,
                               read.recover_timeout_seconds}) {
    if (!(seconds >= 0)) return absl::InvalidArgumentError("a timeout is negative or not a number");
  }
  options.attach_timeout = SecondsOr(read.attach_timeout_seconds, options.attach_timeout);
  options.operation_timeout = SecondsOr(read.operation_timeout_seconds, options.operation_timeout);
  options.recover_timeout = SecondsOr(read.recover_timeout_seconds, options.recover_timeout);
  return options;
}

int DTypeCode(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return TESSERA_FP32;
    case DType::kFp64:
      return TESSERA_FP64;
    case DType::kBf16:
      return TESSERA_BF16;
    case DType::kFp16:
      return TESSERA_FP16;
    default:
      return kNoCode;
  }
}

// The caller's fill function. Its failure is told to all ranks, so that none keeps half of the
// values.
class CallerFill {
 public:
  CallerFill(Session* session, tessera_fill fill, void* context)
      : session_(session), fill_(fill), context_(context) {}

  void operator()(int unit, int parameter, Values values) {
    // The session calls it for each parameter, also after the epoch has been ended by a failure.
    if (!status_.ok()) return;
    status_ = FromCallback(
        fill_(context_, unit, parameter, values.data(), static_cast<int64_t>(values.size())));
    // Outcome tells the caller of its own failure, whatever became of telling the others.
    if (!status_.ok()) (void)session_->Fail(status_);
  }
  // The caller's own failure, or else that of the call which used this.
  absl::Status Outcome(const absl::Status& of_call) const {
    return status_.ok() ? of_call : status_;
  }

 private:
  Session* const session_;
  const tessera_fill fill_;
  void* const context_;
  absl::Status status_;
};

// `call(reader)` with a reader of the caller's; its first failure, or else the call's.
template <typename Call>
absl::Status ReadWith(int unit, tessera_read read, void* context, const Call& call) {
  RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(read), "read"));
  absl::Status of_caller;
  const absl::Status status = call([&](int parameter, ConstValues values) {
    // The read goes on, because the other ranks take part in it.
    if (!of_caller.ok()) return;
    of_caller = FromCallback(
        read(context, unit, parameter, values.data(), static_cast<int64_t>(values.size())));
  });
  return status.ok() ? of_caller : status;
}

absl::StatusOr<StateArray> ArrayOf(int array) {
  if (array == 0) return StateArray::kFirstMoment;
  if (array == 1) return StateArray::kSecondMoment;
  return absl::InvalidArgumentError("the optimizer's arrays are 0 and 1");
}

std::string ProgressJson(const Session& session, const TrainingProgress& progress) {
  nlohmann::json counts = nlohmann::json::array();
  size_t next = 0;
  for (const UnitLayout& unit : session.layout().units) {
    nlohmann::json of_unit = nlohmann::json::array();
    for (size_t p = 0; p < unit.flat.parameters().size(); ++p)
      of_unit.push_back(progress.update_counts[next++]);
    counts.push_back(std::move(of_unit));
  }
  nlohmann::json rates = nlohmann::json::array();
  for (const HyperParameters& group : progress.groups) rates.push_back(group.learning_rate);
  return nlohmann::json({{"step", progress.step},
                         {"update_counts", std::move(counts)},
                         {"learning_rates", std::move(rates)}})
      .dump();
}

absl::StatusOr<TrainingProgress> ParseProgress(const Session& session, const char* text) {
  RETURN_IF_ERROR(CheckNotNull(text, "progress_json"));
  // Without exceptions, because none may leave a C function.
  const nlohmann::json parsed = nlohmann::json::parse(std::string(text), nullptr, false);
  const absl::Status malformed = absl::InvalidArgumentError(
      "progress_json is not {\"step\": N, \"update_counts\": [[N, ...], ...]}");
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer() ||
      !parsed.contains("update_counts") || !parsed["update_counts"].is_array()) {
    return malformed;
  }
  TrainingProgress progress;
  progress.step = parsed["step"].get<int64_t>();
  for (const auto& unit : parsed["update_counts"]) {
    if (!unit.is_array()) return malformed;
    for (const auto& count : unit) {
      if (!count.is_number_integer()) return malformed;
      progress.update_counts.push_back(count.get<int64_t>());
    }
  }
  // The JSON has no hyper-parameters, so the job's own stay.
  for (const ParamGroup& group : session.config().groups) progress.groups.push_back(group);
  return progress;
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera;         // NOLINT
using namespace tessera::c_api;  // NOLINT

int tessera_layout_json(const char* model_json, const char* config_json, char** out) {
  const auto text = [&]() -> absl::StatusOr<std::string> {
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    ASSIGN_OR_RETURN(const ModelSpec model, ParseModelJson(Text(model_json)));
    ASSIGN_OR_RETURN(JobConfig config, ParseJobConfigJson(Text(config_json)));
    // As Session::Open does: otherwise the job's layout would be another one.
    config.layout.alignment_dtype = config.compute_dtype;
    RETURN_IF_ERROR(ValidateJobConfig(config, model));
    ASSIGN_OR_RETURN(const ModelLayout layout, LayOut(model, config));
    return LayoutJson(layout);
  }();
  if (text.ok()) *out = CopyOf(*text);
  return CodeOf(text.status());
}

int tessera_open(const tessera_open_options* options, tessera_session** out) {
  const auto session = [&]() -> absl::StatusOr<std::unique_ptr<tessera_session>> {
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    ASSIGN_OR_RETURN(const SessionOptions read, ReadOpenOptions(options));
    ASSIGN_OR_RETURN(std::unique_ptr<Session> opened, Session::Open(read));
    return std::make_unique<tessera_session>(tessera_session{std::move(opened)});
  };
  auto opened = session();
  if (opened.ok()) *out = opened->release();
  return CodeOf(opened.status());
}

void tessera_close(tessera_session* session) { delete session; }
void tessera_close_at_exit(tessera_session* session) {
  const auto close = [](int exit_status, void* closed) {
    auto* const of_program = static_cast<tessera_session*>(closed);
    // A program that failed has not finished its training, so its job stays (docs/adr/0079).
    if (exit_status != 0) of_program->session->state().is_unfinished = true;
    delete of_program;
  };
  // Not atexit, whose functions are not told the program's status.
  if (on_exit(close, session) != 0) delete session;  // Memory is short.
}

int tessera_rank(const tessera_session* session) { return session->session->rank(); }
int tessera_world_size(const tessera_session* session) {
  return session->session->config().world_size;
}
int tessera_num_units(const tessera_session* session) { return session->session->num_units(); }
int tessera_gpu(const tessera_session* session) {
  const DeviceGradients gradients(session->session.get());
  return gradients.available() ? gradients.device() : kNoCode;
}
int tessera_session_layout_json(const tessera_session* session, char** out) {
  const absl::Status status = CheckNotNull(out, "out");
  if (status.ok()) *out = CopyOf(LayoutJson(session->session->layout()));
  return CodeOf(status);
}
int tessera_initialized(const tessera_session* session) {
  return session->session->initialized() ? 1 : 0;
}
int64_t tessera_next_step(const tessera_session* session) { return session->session->next_step(); }
int64_t tessera_epoch(const tessera_session* session) {
  return session->session->state().client.epoch();
}
int tessera_restart_required(const tessera_session* session) {
  return session->session->restart_required() ? 1 : 0;
}
int64_t tessera_num_writes(const tessera_session* session) {
  return session->session->num_writes();
}
int tessera_report(tessera_session* session, const char* const* names, const double* values,
                   size_t count) {
  if (count > 0) {
    absl::Status given = CheckNotNull(names, "names");
    if (given.ok()) given = CheckNotNull(values, "values");
    if (!given.ok()) return CodeOf(given);
  }
  std::map<std::string, double> report;
  for (size_t i = 0; i < count; ++i) {
    if (const absl::Status status = CheckNotNull(names[i], "names"); !status.ok())
      return CodeOf(status);
    report[names[i]] = values[i];
  }
  return CodeOf(session->session->Report(report));
}
int tessera_within_step(const tessera_session* session) {
  return session->session->within_step() ? 1 : 0;
}
int tessera_compute_dtype(const tessera_session* session, int unit) {
  if (!CheckUnit(*session->session, unit).ok()) return kNoCode;
  return DTypeCode(session->session->state().client.plan().units()[unit].compute_dtype);
}
int tessera_full_dtype(const tessera_session* session, int unit) {
  if (!CheckUnit(*session->session, unit).ok()) return kNoCode;
  return DTypeCode(session->session->full_dtype(unit));
}

// --- Values ---

int tessera_initialize(tessera_session* session, tessera_fill fill, void* context) {
  const absl::Status status = CheckNotNull(reinterpret_cast<const void*>(fill), "fill");
  if (!status.ok()) return CodeOf(status);
  CallerFill filler(session->session.get(), fill, context);
  return CodeOf(filler.Outcome(session->session->Initialize(std::ref(filler))));
}

int tessera_all_gather(tessera_session* session, const void* own, size_t size_bytes, void* all) {
  const absl::Status status = [&]() -> absl::Status {
    if (size_bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(CheckNotNull(own, "own"));
    RETURN_IF_ERROR(CheckNotNull(all, "all"));
    return SessionSetup(session->session.get())
        .AllGather(absl::MakeConstSpan(static_cast<const char*>(own), size_bytes),
                   static_cast<char*>(all));
  }();
  return CodeOf(status);
}

int tessera_read_parameters(tessera_session* session, int unit, tessera_read read, void* context) {
  const absl::Status known = CheckUnit(*session->session, unit);
  if (!known.ok()) return CodeOf(known);
  return CodeOf(ReadWith(unit, read, context, [&](const Session::Reader& reader) {
    return session->session->ReadParameters(unit, reader);
  }));
}

int tessera_write_parameters(tessera_session* session, const int* units, size_t num_units,
                             tessera_fill fill, void* context) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(fill), "fill"));
    if (num_units > 0) RETURN_IF_ERROR(CheckNotNull(units, "units"));
    std::vector<int> listed;
    for (size_t i = 0; i < num_units; ++i) {
      RETURN_IF_ERROR(CheckUnit(*session->session, units[i]));
      listed.push_back(units[i]);
    }
    CallerFill filler(session->session.get(), fill, context);
    return filler.Outcome(session->session->WriteParameters(listed, std::ref(filler)));
  }();
  return CodeOf(status);
}

int tessera_read_moments(tessera_session* session, int unit, int array, tessera_read read,
                         void* context) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckUnit(*session->session, unit));
    ASSIGN_OR_RETURN(const StateArray of, ArrayOf(array));
    return ReadWith(unit, read, context, [&](const Session::Reader& reader) {
      return ReadMoments(session->session.get(), unit, of, reader);
    });
  }();
  return CodeOf(status);
}

int tessera_progress_json(tessera_session* session, char** out) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session->session.get()));
    *out = CopyOf(ProgressJson(*session->session, progress));
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_write_optimizer_state(tessera_session* session, const char* progress_json,
                                  tessera_fill fill, void* context) {
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(fill), "fill"));
    ASSIGN_OR_RETURN(const TrainingProgress progress,
                     ParseProgress(*session->session, progress_json));
    CallerFill filler(session->session.get(), fill, context);
    const int num_units = session->session->num_units();
    return filler.Outcome(WriteOptimizerState(
        session->session.get(), progress,
        [&](StateArray array, int unit, int parameter, Values values) {
          // The function has no argument for the array: the second one has the next numbers.
          filler(unit + (array == StateArray::kFirstMoment ? 0 : num_units), parameter, values);
        }));
  }();
  return CodeOf(status);
}

// --- Windows ---

int tessera_unshard(tessera_session* session, int unit) {
  const absl::Status known = CheckUnit(*session->session, unit);
  return CodeOf(known.ok() ? session->session->Unshard(unit) : known);
}
int tessera_unshard_async(tessera_session* session, int unit) {
  const absl::Status known = CheckUnit(*session->session, unit);
  return CodeOf(known.ok() ? session->session->UnshardAsync(unit) : known);
}
int tessera_reshard(tessera_session* session, int unit) {
  const absl::Status known = CheckUnit(*session->session, unit);
  return CodeOf(known.ok() ? session->session->Reshard(unit) : known);
}
int tessera_end_forward(tessera_session* session) { return CodeOf(session->session->EndForward()); }
int tessera_closed(const tessera_session* session, int unit) {
  return !CheckUnit(*session->session, unit).ok() || session->session->closed(unit) ? 1 : 0;
}
const void* tessera_parameter(const tessera_session* session, int unit, int parameter) {
  if (CodeOf(CheckParameter(*session->session, unit, parameter)) != TESSERA_OK) return nullptr;
  return session->session->parameter(unit, parameter);
}

void tessera_on_outside_window(int (*interrupt)(int), int argument) {
  WindowGuard::OnOutsideUse(interrupt, argument);
}
int tessera_take_outside_window(char** out) {
  const absl::Status status = CheckNotNull(out, "out");
  if (status.ok()) *out = CopyOf(WindowGuard::TakeOutsideUse());
  return CodeOf(status);
}
void tessera_install_fault_handler(void) { WindowGuard::InstallHandler(); }

// --- Gradients ---

int tessera_add_gradients(tessera_session* session, int unit, const tessera_gradient* gradients,
                          size_t num_gradients) {
  const absl::Status status = [&]() -> absl::Status {
    if (num_gradients > 0) RETURN_IF_ERROR(CheckNotNull(gradients, "gradients"));
    std::vector<double> widened;
    for (size_t i = 0; i < num_gradients; ++i) {
      ASSIGN_OR_RETURN(const ConstValues values,
                       ReadGradient(*session->session, unit, gradients[i], &widened));
      RETURN_IF_ERROR(session->session->AddGradient(unit, gradients[i].parameter, values));
    }
    return absl::OkStatus();
  }();
  return CodeOf(status);
}
int tessera_reduce(tessera_session* session, int unit) {
  const absl::Status known = CheckUnit(*session->session, unit);
  return CodeOf(known.ok() ? session->session->Reduce(unit) : known);
}
int tessera_drop_gradients(tessera_session* session) {
  return CodeOf(session->session->DropGradients());
}
int tessera_drop_unit_gradients(tessera_session* session, int unit) {
  const absl::Status known = CheckUnit(*session->session, unit);
  return CodeOf(known.ok() ? session->session->DropGradients(unit) : known);
}
int tessera_read_gradients(tessera_session* session, int unit, tessera_read read, void* context) {
  const absl::Status known = CheckUnit(*session->session, unit);
  if (!known.ok()) return CodeOf(known);
  return CodeOf(ReadWith(unit, read, context, [&](const Session::Reader& reader) {
    return session->session->ReadGradients(unit, reader);
  }));
}

// --- Steps ---

int tessera_step(tessera_session* session, const tessera_step_options* options,
                 tessera_step_result* result) {
  const absl::Status status = [&]() -> absl::Status {
    StepOptions read;
    RETURN_IF_ERROR(ReadStepOptions(options, &read));
    ASSIGN_OR_RETURN(const StepResult taken, session->session->Step(read));
    return WriteStepResult(taken, result);
  }();
  return CodeOf(status);
}

int tessera_clip_grad_norm(tessera_session* session, double max_norm, double p,
                           const tessera_step_options* options, double* norm) {
  const absl::Status status = [&]() -> absl::Status {
    StepOptions read;
    RETURN_IF_ERROR(ReadStepOptions(options, &read));
    ASSIGN_OR_RETURN(const double measured, session->session->ClipGradNorm(max_norm, p, read));
    if (norm != nullptr) *norm = measured;
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_recover(tessera_session* session) { return CodeOf(session->session->Recover()); }

int tessera_fail(tessera_session* session, int code, const char* message) {
  const bool known = code > TESSERA_OK && code <= TESSERA_UNAUTHENTICATED;
  return CodeOf(session->session->Fail(absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, Text(message))));
}

int tessera_run_step(tessera_session* session, int (*body)(void* context), void* context) {
  const absl::Status status = CheckNotNull(reinterpret_cast<const void*>(body), "body");
  if (!status.ok()) return CodeOf(status);
  return CodeOf(session->session->RunStep([&] { return FromCallback(body(context)); }));
}

// --- The rank's own slices ---

int tessera_shards_open(tessera_session* session, tessera_shards** out) {
  absl::Status status = CheckNotNull(out, "out");
  if (!status.ok()) return CodeOf(status);
  auto shards = LocalShards::Open(session->session.get());
  if (shards.ok()) *out = new tessera_shards{*std::move(shards)};
  return CodeOf(shards.status());
}
void tessera_shards_close(tessera_shards* shards) { delete shards; }
int tessera_shards_size(const tessera_shards* shards) {
  return static_cast<int>(shards->shards->parts().size());
}
int tessera_shards_part(tessera_shards* shards, int part, tessera_part* out) {
  if (part < 0 || part >= tessera_shards_size(shards))
    return CodeOf(absl::InvalidArgumentError("there is no such part"));
  const LocalShards::Part& of = shards->shards->parts()[part];
  tessera_part written = {};
  written.unit = of.unit;
  written.parameter = of.parameter;
  written.begin_elements = of.begin_elements;
  written.numel = of.numel;
  written.values = shards->shards->values(part).data();
  written.gradient = shards->shards->gradient(part).data();
  return CodeOf(WriteStruct(written, "the part", out));
}
int tessera_shards_has_gradient(const tessera_shards* shards, int part) {
  return part >= 0 && part < tessera_shards_size(shards) && shards->shards->has_gradient(part) ? 1
                                                                                               : 0;
}
int tessera_shards_begin(tessera_shards* shards, const tessera_step_options* options,
                         tessera_step_result* result) {
  const absl::Status status = [&]() -> absl::Status {
    StepOptions read;
    RETURN_IF_ERROR(ReadStepOptions(options, &read));
    ASSIGN_OR_RETURN(const StepResult begun, shards->shards->Begin(read));
    return WriteStepResult(begun, result);
  }();
  return CodeOf(status);
}
int tessera_shards_commit(tessera_shards* shards) { return CodeOf(shards->shards->Commit()); }

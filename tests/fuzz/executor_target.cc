// What executors say to their worker, and trainers ask of their executor.
#include <string>

#include "base/check.h"
#include "checkpoint/storage/storage_path.h"
#include "coordinator/service/codec.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/fuzz_targets.h"
#include "worker/executor/load/load_agreement.h"
#include "worker/executor/save/save_request.h"
#include "worker/keeper/executor_event.h"

namespace tessera::fuzz {

// The coordinator takes what the worker lets through: else it would end the worker's stream.
void ExecutorEvents(absl::string_view bytes) {
  const absl::StatusOr<v1::ExecutorEvent> event = ParseExecutorEvent(bytes);
  if (!event.ok()) return;
  v1::WorkerEvent told;
  if (event->has_order()) {
    *told.mutable_order() = event->order();
    told.mutable_order()->set_job_id("toy");
  } else if (event->has_step()) {
    *told.mutable_step() = event->step();
    told.mutable_step()->set_job_id("toy");
  } else if (event->has_save()) {
    *told.mutable_save() = event->save();
    told.mutable_save()->set_job_id("toy");
  } else if (event->has_quiesced()) {
    told.mutable_prepared()->set_job_id("toy");
    (*told.mutable_prepared()->mutable_rank_addresses())[0] = event->quiesced().address();
  } else {
    return;
  }
  TESSERA_CHECK(coordinator::Decode(told).ok());
}

// What is taken names one place, and tensors that files have.
void SaveRequests(absl::string_view bytes) {
  v1::SaveRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const absl::StatusOr<std::string> path = PlainPath(request.spec().path());
  if (path.ok()) request.mutable_spec()->set_path(*path);
  if (path.ok() && CheckSaveRequest(request).ok()) {
    const std::string& named = request.spec().path();
    TESSERA_CHECK(named[0] == '/' && named.back() != '/');
    TESSERA_CHECK(PlainPath(named).value() == named);
  }
  if (const auto infos = InfosOf(request.buffers()); infos.ok())
    TESSERA_CHECK(static_cast<int>(infos->size()) == request.buffers_size());
}

void LoadRequests(absl::string_view bytes) {
  v1::LoadRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  (void)PlainPath(request.path());
  for (const bool first : {false, true}) (void)RulesOf(request, first);
  if (const auto infos = InfosOf(request.buffers()); infos.ok())
    TESSERA_CHECK(static_cast<int>(infos->size()) == request.buffers_size());
}

}  // namespace tessera::fuzz

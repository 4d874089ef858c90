// What a Session consists of. For this folder.
#ifndef TESSERA_CLIENT_SESSION_SESSION_STATE_H_
#define TESSERA_CLIENT_SESSION_SESSION_STATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "client/session/gradient_reducer.h"
#include "client/session/gradient_slots.h"
#include "client/session/parameter_windows.h"
#include "client/session/process_jobs.h"
#include "client/session/rank_client.h"
#include "client/session/step_protocol.h"
#include "tessera/session_options.h"

namespace tessera {

struct TrainerTensors;

struct SessionState {
  explicit SessionState(SessionOptions options)
      : job(options.job_id), client(std::move(options), [this] { Reset(); }) {}
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  void Reset() {  // An epoch begins.
    windows.Reset();
    slots.Reset();
    deferred_save = 0;  // Its request is answered by a step of the new epoch.
  }

  ProcessJob job;
  RankClient client;
  ParameterWindows windows{&client};
  GradientSlots slots{&client};
  GradientReducer reducer{&client, &windows, &slots};
  StepProtocol steps{&client, &windows, &slots, &reducer};
  bool is_unfinished = false;  // Its last step failed, or its program does: the job is not done.
  // See StateAccess::TakeSaveRequest.
  std::function<std::string(int64_t number)> wanted_save_request;
  bool defers_saves = false;
  int64_t deferred_save = 0;  // See StateAccess::DeferWantedSaves. 0: none.
  std::shared_ptr<const TrainerTensors> trainer_tensors;  // Null: none.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_SESSION_STATE_H_

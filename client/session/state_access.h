// Of a Session: messages of any length to its executor, and the optimizer's state.
// For this folder; see checkpoint.h and optimizer_state.h. As thread-compatible as the session.
#ifndef TESSERA_CLIENT_SESSION_STATE_ACCESS_H_
#define TESSERA_CLIENT_SESSION_STATE_ACCESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "job/job_memory.h"
#include "job/training_progress.h"
#include "layout/values.h"
#include "net/transport_security.h"
#include "shm/control_page.h"
#include "tessera/checkpoint.h"
#include "tessera/session.h"

namespace tessera {

class StateAccess {
 public:
  explicit StateAccess(Session* session) : session_(session) {}  // Not owned.

  // Sends the request, runs the operation, and returns its reply.
  // Errors: the operation's; Aborted.
  absl::StatusOr<std::string> Call(OpKind kind, absl::string_view request);
  // The same where the job's values may change with it.
  absl::StatusOr<std::string> CallToWrite(OpKind kind, absl::string_view request);
  absl::Status ReadArray(int unit, StateArray array, const Session::Reader& read);
  absl::Status StageArray(int unit, StateArray array, const Session::Filler& fill);
  // The same of this rank's own slice of the unit alone, padding included: `fill` writes all of it.
  // Errors: those of `fill`, whereupon nothing is staged; Aborted.
  absl::Status StageSlice(int unit, StateArray array,
                          absl::FunctionRef<absl::Status(Values slice)> fill);
  // What was staged becomes the state, with this progress; of a job without values, its first.
  absl::Status FinishState(const TrainingProgress& progress);

  // How the job and its coordinator are reached.
  DialOptions coordinator() const;
  const std::string& job_id() const;
  int64_t generation() const;
  int64_t epoch() const;
  int64_t version() const;
  absl::Duration operation_timeout() const;

  // Called after a step: if a checkpoint of it is requested from outside, on all ranks alike,
  // submits that save. The requester is told how it ends; a trainer learns of an ended epoch from
  // its next operation.
  void TakeSaveRequest();
  // From now on TakeSaveRequest() notes the request's number, and MakeDeferredSave() makes the save:
  // on all ranks alike, before what changes the state. An epoch that ends ends the attempt.
  void DeferWantedSaves();
  void MakeDeferredSave();
  // Makes the save request that TakeSaveRequest() submits; else it has nothing of the trainer's own.
  void OnWantedSave(std::function<std::string(int64_t number)> request);

  // The trainer's state in addition to the job's parameters: saves have it too, and loads give it
  // back. Null: nothing that is known.
  void SetTrainerTensors(TrainerTensors tensors);
  const TrainerTensors* trainer_tensors() const;

 private:
  absl::Status Send(absl::string_view message);
  void MakeWantedSave(int64_t number);
  absl::StatusOr<std::string> Receive();

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_STATE_ACCESS_H_

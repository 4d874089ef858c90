// What trainers ask for of files, decoded and carried out by a rank's part of it.
//
//   v1::SaveRequest ──► SaveModel, SaveCheckpoint or SaveParts ──► v1::SaveReply
//   v1::LoadRequest ──► LoadModel or LoadCheckpoint ──► v1::LoadReply
//
// Requests come from this rank's trainer and are untrusted. What is asked for while a save runs in
// the background waits for its end. Confined to one thread at a time.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_FILES_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_FILES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/save/background_save.h"
#include "worker/executor/save/prior_attempt.h"
#include "worker/executor/save/save_tracker.h"

namespace tessera {

class ExecutorFiles : public StateFiles {
 public:
  // Told what this rank makes files of, so that what it leaves can be removed if it dies; "":
  // nothing. Called by any thread.
  using ReportSaving = std::function<void(const std::string& path)>;
  // Told why ranks could not agree, where nothing else tells the worker. Called by any thread.
  using ReportError = std::function<void(const absl::Status& status)>;
  // `memory` is not owned and outlives this. `direct_write_bytes`: as DirectWrites has it.
  // `send_report`: as SaveTracker's.
  ExecutorFiles(const ExecutorMemory* memory, int64_t direct_write_bytes,
                ReportSaving report_saving, ReportError report_error,
                SaveTracker::Send send_report);

  // Of the epoch that begins, for files alone; not owned.
  void BeginEpoch(Communicator* communicator) {
    communicator_ = communicator;
    stopped_.store(false);
    tracker_.BeginEpoch();
  }
  // What the coordinator wants. Thread-safe.
  void SetRequest(const v1::RequestedSave& requested) { tracker_.SetRequest(requested); }
  // What is under way is given up between two slices. Thread-safe.
  void Stop() { stopped_.store(true); }
  // Waits for what is under way in the background, after Stop.
  void EndEpoch() { background_.End(); }

  absl::StatusOr<std::string> Save(const std::string& request, const SavedState& state,
                                   const absl::Status& own) override;
  absl::StatusOr<std::string> Load(const std::string& request, LoadedState* state,
                                   const absl::Status& own) override;
  uint64_t IdOfSave(const std::string& request) const override;
  bool saves_in_background() const { return background_.status().running(); }
  std::string SaveStatus() override { return background_.status().SerializeAsString(); }
  void CancelSave() override { tracker_.Cancel(); }
  int64_t wanted_save() const override { return tracker_.wanted(); }
  bool MayOverwrite(int64_t step) const override { return background_.MayOverwrite(step); }
  void AwaitOverwrite(int64_t step) override { background_.AwaitCopied(step); }
  void AwaitSaved() override { background_.End(); }

 private:
  // Checks for errors that one rank alone may have. Fills in what a request says.
  absl::Status CheckRequest(const std::string& bytes, v1::SaveRequest* request);
  // Errors: PermissionDenied  the requester may not name this path
  absl::Status CheckTrainersPath(const std::string& path) const;
  // Whether the ranks can make it, and whether a prior attempt did. `own`: why this rank cannot.
  absl::StatusOr<PriorAttempt> Prepare(const v1::SaveRequest& request, const absl::Status& own);
  // `asked_for`: as SaveControl's.
  absl::Status SaveNow(const v1::SaveRequest& request, const std::string& asked_for,
                       const SavedState& state, v1::SaveReply* reply);
  absl::Status Write(const v1::SaveRequest& request, const std::string& asked_for,
                     const SavedState& state, v1::SaveReply* reply);
  SaveControl Control(const std::string& asked_for);
  // Tells that one begins, if it is a checkpoint.
  void Begin(const v1::SaveRequest& request, const TrainingProgress& progress);
  absl::Status BeginInBackground(const v1::SaveRequest& request, const std::string& asked_for,
                                 const SavedState& state);
  // But those that lower ranks have too.
  std::vector<ShardSegment> OwnSegments() const;

  const ExecutorMemory& memory_;
  const int64_t direct_write_bytes_;
  const ReportSaving report_saving_;
  const ReportError report_error_;
  const std::vector<ShardSegment> segments_;
  Communicator* communicator_ = nullptr;
  std::atomic<bool> stopped_{false};
  SaveTracker tracker_;
  BackgroundSave background_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_FILES_H_

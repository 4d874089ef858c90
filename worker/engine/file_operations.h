// What trainers ask of files, through StateFiles: save a version, load the one to come, ask how a
// save goes. Requests and replies are messages of the trainer (trainer_link.h).
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_FILE_OPERATIONS_H_
#define TESSERA_WORKER_ENGINE_FILE_OPERATIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/engine_parts.h"
#include "worker/engine/load_target.h"
#include "worker/engine/state_writes.h"

namespace tessera {

class FileOperations {
 public:
  // `writes` outlives this.
  FileOperations(const EngineParts& parts, StateWrites* writes);

  absl::Status Save();
  absl::Status Load();
  // Each operation of the trainer is noted before it is done: it shows that the trainer has the
  // outcome of the one before.
  void Note(OpKind kind);
  // What this rank knows by itself: kReadProgress, kSaveStatus, kCancelSave.
  void Tell(OpKind kind);

 private:
  TrainingProgress Progress() const;  // Where training stands.
  // Tells the trainer, if all ranks have made this save of the step and it does not know.
  bool TellIfMade(uint64_t save);
  // The reply. Errors: agreed ones; any other ends the epoch.
  absl::StatusOr<std::string> SaveOnAll(const std::string& request);
  // All ranks have read it, or none has, as `outcome`, OK or an agreed error, says.
  absl::Status FinishLoad(int64_t number, bool first, const LoadTarget& target,
                          const LoadedState& state, const absl::Status& outcome);
  absl::Status FinishFirstLoad(const LoadTarget& target, const LoadedState& state);

  EngineContext& context_;
  EarlyUpdates& early_;
  GradientReductions& reductions_;
  UnitGathers& gathers_;
  StateVersions& versions_;
  StateWrites& writes_;
  // The save whose outcome was told last, and which trainer asked for it (made_saves.h).
  struct ToldSave {
    int number = 0;
    int64_t attachment = 0;
  };
  std::optional<ToldSave> told_save_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_FILE_OPERATIONS_H_

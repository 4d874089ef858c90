// Checkpoints: all of a job's state in one folder. A job of any size can continue from it.
//
//   CheckpointContents own;
//   own.trainer_state = ...;                     position in the data, random state, any bytes
//   SaveOptions options;                         job/save_spec.h: in the background, in parts, ...
//   RETURN_IF_ERROR(SaveCheckpoint(&session, "/checkpoints/gpt/step-100", own, options));
//   ...
//   ASSIGN_OR_RETURN(LoadedCheckpoint loaded,
//                    LoadCheckpoint(&session, "/checkpoints/gpt/step-100"));
//   session.next_step() == loaded.step + 1
//
// Parameters and the optimizer's state are written in parallel by the executors of the ranks that
// own them; nothing is gathered, and no rank holds more than its own slices. The folder gets its
// name only when all of it is on disk, and has a checksum for each tensor, which are checked when
// it is loaded. Its files are safetensors (docs/formats/checkpoint.md).
// All calls are collective, not within RunStep; paths are absolute and on a file system that all
// workers share. Thread-compatible, as the session.
#ifndef TESSERA_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/save_spec.h"
#include "layout/dtype.h"
#include "layout/name_selection.h"
#include "layout/stored_dtype.h"
#include "tessera/session.h"

namespace tessera {

// State of a trainer's model in addition to the job's parameters: a buffer or an ignored parameter,
// of any dtype that safetensors has.
struct NamedTensor {
  NamedTensor() = default;
  NamedTensor(std::string name, StoredDType dtype, std::vector<int64_t> shape, std::string values)
      : name(std::move(name)), dtype(dtype), shape(std::move(shape)), values(std::move(values)) {}
  NamedTensor(std::string name, DType dtype, std::vector<int64_t> shape, std::string values)
      : NamedTensor(std::move(name), StoredAs(dtype), std::move(shape), std::move(values)) {}

  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  std::string values;  // Little-endian, row-major.
};

// To be saved, with their values, or to be read from a file, which needs names and shapes only.
enum class TensorValues { kIncluded, kOmitted };

// How saves and loads of the session get at all of these. Called on the trainer's thread.
struct TrainerTensors {
  // Errors: InvalidArgument  one has no form in files, named; FailedPrecondition  not now.
  std::function<absl::StatusOr<std::vector<NamedTensor>>(TensorValues values)> get;
  // Gives the model what was loaded: of the shapes that get() says; floating-point values may be of
  // another dtype.
  std::function<absl::Status(const std::vector<NamedTensor>&)> take;
};

inline constexpr size_t kMaxTrainerStateBytes = size_t{512} << 20;

struct CheckpointContents {
  // Rank 0's are saved. Empty: those of the module that is attached, if one is.
  std::vector<NamedTensor> buffers;
  std::string trainer_state;  // This rank's own bytes; at most kMaxTrainerStateBytes.
};

// Errors: InvalidArgument     the path or the options; a buffer's name or size (named); too many
//                             bytes
//         AlreadyExists       as SaveOptions::overwrite
//         FailedPrecondition  something that is not a checkpoint has that name, or the file system
//                             cannot replace one; no initial values; fake collectives; another
//                             save to the path removed what this one wrote
//         Aborted             a process died, or the ranks could not agree in time.
// Also the file system's (ResourceExhausted: the disk is full), with the cause of each rank that
// failed. After an error, a checkpoint that had the name is as it was.
absl::Status SaveCheckpoint(Session* session, const std::string& path,
                            const CheckpointContents& contents = {},
                            const SaveOptions& options = {});

// The last save in the background, as this rank has it; no other rank has to ask.
struct SaveStatus {
  std::string path;  // Empty: there was none since this rank's executor began.
  bool running = false;
  int64_t written_bytes = 0;  // By this rank, of its part of the state.
  int64_t all_bytes = 0;
  absl::Status outcome;  // Once it does not run any more: the same on every rank.
};
// Errors: Aborted.
absl::StatusOr<SaveStatus> GetSaveStatus(Session* session);
// Cancels the save in the background, and returns at once. One rank is enough; the more ranks call
// it, the sooner the save ends. AwaitSave then returns every rank's outcome: Cancelled, and the
// checkpoint that had the name is as it was; or OK, if all was written already. Does nothing if
// none runs. Errors: Aborted.
absl::Status CancelSave(Session* session);
// Waits until none runs. Returns its outcome; Aborted, too, if a process died.
// Errors: FailedPrecondition  there was none.
absl::Status AwaitSave(Session* session);

// Checkpoints that another process requests while the job trains (`tessera save`,
// proto/saves.proto) are made by the trainers inside of Session::Step (or LocalShards::Commit),
// right after the step is taken, on all ranks at the same one. `contents` is called there and
// returns what is saved with that step, such as the position to continue from. Its error, or an
// exception, is the save's. Without it the checkpoint has no trainer state, and only the buffers of
// an attached module. The save runs in the background unless requested otherwise; otherwise Step
// waits for the copy. The outcome of a save is never the step's error: it goes to the requester.
// `contents` is called on the session's thread, and must not call the session; collective calls
// that all ranks make alike, once, are allowed (torch/model_checkpoint.h).
using WantedContents = std::function<absl::StatusOr<CheckpointContents>(int64_t step)>;
void OnSaveRequest(Session* session, WantedContents contents);

struct LoadCheckpointOptions {
  // As LoadOptions::strict (stored_model.h), for buffers and the optimizer's state too.
  bool strict = true;
  // Only parameters and buffers: the job's optimizer, moments and step stay its own.
  bool model_only = false;
  // Only the optimizer's state and the step: parameters and buffers stay as they are, and `strict`
  // is of state alone. Of a job that has values; not with model_only, and not with `buffers`.
  bool optimizer_only = false;
  // As LoadOptions::names. State of the optimizer follows its parameter, so what is left out keeps
  // values, moments and update count; the step's number is then the job's own too.
  NameSelection names = {};
  // What to read of buffers; their values are not looked at. Empty: those of the module that is
  // attached, which gets them, with `names` as for parameters.
  std::vector<NamedTensor> buffers = {};  // Not with optimizer_only.
};

struct LoadedCheckpoint {
  std::vector<std::string> missing, unexpected;  // As LoadReport's.
  std::vector<NamedTensor> buffers;  // Those that were there and that no module was given.
  int64_t step = 0;                  // The last one that was taken when it was saved.
  int saved_world_size = 0;
  std::vector<ParamGroup> groups;  // The hyper-parameters of that step. The job's own are used.
  // What the trainer of this rank's number saved. If rank >= saved_world_size, what rank 0's saved:
  // take only what is the same on all ranks from it, such as a schedule.
  std::string trainer_state;
};

// Sets parameters, moments, update counts and the step's number, on all ranks or on none, as one
// write. In a job without initial values it provides them, and is strict. The contents of windows
// that stay open meanwhile are undefined until it returns, and after an error that requires
// Recover().
// Errors: NotFound            there is no checkpoint
//         InvalidArgument     it does not fit the model or the optimizer: naming the tensor; for
//                             names as LoadModel; optimizer_only with what does not go with it,
//                             naming the first buffer
//         DataLoss            it is damaged, or not the same one: names file and tensor, or if all
//                             of a file is lost some tensors that it had; nothing is set then
//         FailedPrecondition  the ranks see different checkpoints; or for names as LoadModel;
//                             optimizer_only of a job without values
//         Aborted             as SaveCheckpoint.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(Session* session, const std::string& path,
                                                const LoadCheckpointOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_H_

// The shared-memory protocol of a trainer and its executor: one page range a rank.
//
//   trainer ── Op ──► ring[submitted % kRingOps] ──► executor      submitted wakes the executor
//   trainer ◄── unit words, step result, epoch, error ── executor  events wakes the trainer
//
// One trainer thread at a time submits; one executor thread consumes. Every operation carries the
// epoch it was meant for, and the executor drops those of an older one. The page outlives both
// sides: it belongs to the worker. Everything that the other side wrote is untrusted: units and
// kinds are checked by the executor before use.
//
// Source: the word "unit state" and its windows follow torch/distributed/fsdp/_flat_param.py.
#ifndef TESSERA_SHM_CONTROL_PAGE_H_
#define TESSERA_SHM_CONTROL_PAGE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "job/job_config.h"
#include "shm/device_name.h"
#include "shm/shared_event.h"
#include "shm/wait_word.h"

namespace tessera {

enum class OpKind : uint32_t {
  kUnshard = 1,        // Make the unit's parameters readable.
  kReshard,            // The trainer no longer reads them.
  kReduce,             // The unit's gradient slot is complete: reduce it over the ranks.
  kInitialize,         // The unit's gradient slot holds initial values: take the own slice.
  kFinishInitialize,   // All units were initialised: agree, and be at step 0.
  kStep,               // Vote, decide, update, publish.
  kDropGradients,      // Forget what was reduced since the last step; of a unit, or of all: -1.
  kSave,               // Do what the message that was sent asks for: write files.
  kFail,               // The trainer's own code failed, ControlPage::text says why: end the epoch.
  kRead,               // Gather the unit's parameters, in full, into its gradient slot.
  kReadGradient,       // The same of its reduced gradient.
  kWrite,              // The gradient slot holds parameters to set, in full: stage the own slice.
  kWriteGradient,      // It holds what the reduced gradient shall be: take the own slice.
  kFinishWrite,        // All units were staged: vote, decide, publish a new version of the state.
  kBroadcast,          // What rank 0 has in its gradient slot of the unit into everyone's.
  kExchange,           // Each rank's part of the slot, in place of its shard, into everyone's.
  kReadShard,          // This rank's shard of the unit's parameters, in full, into its place there.
  kReadGradientShard,  // The same of its reduced gradient.
  kTally,  // Vote as a step does, and say the norm and which parameters have a gradient anywhere.
  kAnnounceStep,  // The numbers of the step under way, for units that are updated in backward.
  kUpdate,        // In flight records alone: the executor's update of a unit.
  kFinishTrainersStep,  // As kFinishWrite, of values that the trainers' optimizers made: a step.
  kEndForward,          // A forward ended that no backward follows: the order may be cut here.
  kLoad,  // As the message that was sent says: read values from files, as one write or the first.
  kSend,  // ControlPage::piece holds the next piece of a message for kSave and others.
  kReceive,         // Put the next piece of the last operation's reply there.
  kReadProgress,    // Reply with where training stands.
  kSaveStatus,      // Reply with how the last save in the background goes.
  kCancelSave,      // Cancel that save; the reply is empty.
  kPut,             // In flight records alone: values that others than trainers set.
  kRestoreBuffers,  // Give the trainer, which writes to none, those of the committed version.
};

// "unshard", "reduce", ...; "operation 77" for a number that is none of these.
std::string OpName(OpKind kind);

struct Op {
  OpKind kind = OpKind::kUnshard;
  uint32_t epoch = 0;
  int32_t unit = -1;
  uint32_t num_groups = 0;           // kStep: of ControlPage::step_groups; 0: the job's own.
  double learning_rate_scale = 1.0;  // kStep: multiplies each param group's learning rate.
  // kStep: the mean over the ranks is divided by it; and this rank's weight where the gradient is
  // the sum over the ranks divided by the sum of their weights, else -1.
  double gradient_divisor = 1.0;
  double weight = -1.0;
  int32_t status_code = 0;          // kFail: what every rank's trainer gets.
  uint16_t full_precision = 0;      // kUnshard: 1: in full, whatever the unit's compute dtype.
  uint16_t gradient_on_device = 0;  // kReduce: 1: in the rank's slot on its GPU; 0: the host's.
  uint32_t slot_dtype = 0;          // kReduce: the DType that the gradient slot is in.
  // kRead, kWrite: the StateArray. kReduce, of a gradient on a GPU: 1 + the index of the event that
  // says when it is complete; kReshard, of a unit in a slot: when it was read. 0: it is.
  uint32_t array_or_event = 0;
  uint32_t message_bytes = 0;  // kSend: of the piece.
  uint32_t sets_moments = 0;  // kFinishWrite: 1: moments are staged too; the message says the rest.
};
static_assert(sizeof(Op) == 64, "one operation is one cache line");

enum class UnitState : uint32_t { kSharded = 0, kUnsharding, kUnsharded };

struct UnitWords {
  std::atomic<uint32_t> state;      // UnitState.
  std::atomic<uint32_t> reduced;    // Reductions completed in this epoch.
  std::atomic<uint32_t> unsharded;  // Unshards completed in this epoch.
  // The step in which the parameters may be read without waiting; 0: none. The executor gathers
  // ahead of the trainer, in the recorded order.
  std::atomic<int64_t> gathered_for_step;
  // The same of a unit whose parameters are given back when it is resharded: the unshard of this
  // epoch, 1 is the first, for which they may be read; 0: none.
  std::atomic<uint32_t> gathered_window;
};

inline constexpr uint32_t kControlPageVersion = 17;
inline constexpr uint32_t kRingOps = 256;
inline constexpr uint32_t kGradientEvents = 64;  // More than backwards run ahead of their GPU.
inline constexpr size_t kMaxErrorBytes = 1024;
inline constexpr size_t kMaxTextBytes = 4096;
inline constexpr size_t kPieceBytes = 64 << 10;

// What the last collective operation with a result (step, save, finish-initialize) gave.
struct OpResult {
  std::atomic<uint32_t> count;  // Results given in this epoch.
  int32_t status_code;
  int32_t non_finite;  // Of a step: 1 where some gradient is NaN or infinite.
  double gradient_norm;
  double gradient_scale;    // Of a tally: makes the step's gradient, clipped, of the reduced one.
  double clip_coefficient;  // Of a tally: its clip coefficient.
  int64_t wanted_save;      // Of a step: the request it is saved for (checkpoint.proto); 0: none.
  char message[kMaxErrorBytes];
};

struct ControlPage {
  uint32_t version;
  // The GPU that has the job's parameters and the rank's gradients and shards, by the worker's
  // numbering; -1: they are in host memory. Written once, before the page is shared.
  int32_t device;
  DeviceUuid device_uuid;  // Which that is for a process that sees other GPUs than the worker.
  alignas(64) WaitWord submitted;
  alignas(64) std::atomic<uint32_t> consumed;
  alignas(64) WaitWord events;         // Bumped at every change that a trainer may await.
  std::atomic<uint32_t> epoch;         // Running; 0 before the first.
  std::atomic<uint32_t> failed_epoch;  // The newest that ended in failure_*.
  std::atomic<uint32_t> initialized;   // 1 once the job's parameters have values.
  // The version of the state: optimizer steps and writes of parameters together.
  std::atomic<int64_t> committed_step;
  std::atomic<int64_t> writes;        // How many of these are writes.
  std::atomic<int64_t> trained_step;  // The last step's number as trainers count.
  // What the rank is doing, for status displays.
  // The place in the order. Written in the order sequence, pass, step and read in the other, so
  // that a reader never sees more progress than there is.
  std::atomic<int64_t> progress_step;
  std::atomic<int64_t> progress_pass;
  std::atomic<int64_t> progress_sequence;
  // Not 0: the rank has done a part of the step under way, so that nobody else can continue it.
  std::atomic<uint32_t> within_step;
  std::atomic<uint32_t> progress_kind;  // OpKind, 0: idle.
  std::atomic<int32_t> progress_unit;
  std::atomic<int32_t> executor_pid;
  int32_t failure_code;
  char failure_message[kMaxErrorBytes];
  OpResult result;
  char text[kMaxTextBytes];  // Of kFail: the cause.
  // A piece of a message or reply. Fewer than kPieceBytes end a reply.
  std::atomic<uint32_t> piece_bytes;
  char piece[kPieceBytes];
  // Of a trainer on a GPU: its events, which reductions name; none: it waits by itself.
  SharedEventName gradient_events[kGradientEvents];
  // Of the step that is asked for last: hyper-parameters by param group.
  HyperParameters step_groups[kMaxParamGroups];
  // Of the tally that is asked for last: the p of its norm, 0: as the job's config clips; and what
  // the gradient will be clipped to.
  double tally_norm_p;
  double tally_max_norm;
  alignas(64) Op ring[kRingOps];
  UnitWords units[kMaxUnits];
};

// Waits until `done()` holds, looking again at each event. `done` must be cheap.
// Errors: DeadlineExceeded  naming `what()`, which is only called then.
//         the epoch's failure  once failed_epoch reached `epoch`: Aborted where the step was undone
//                           and may be tried again, else what was wrong. Aborted too when the
//                           page is in a later epoch already.
absl::Status AwaitEvent(ControlPage* page, uint32_t epoch, absl::Time deadline,
                        absl::FunctionRef<std::string()> what, absl::FunctionRef<bool()> done);

// Executor side: records the failure of `epoch` and wakes the trainer.
void PublishFailure(ControlPage* page, uint32_t epoch, const absl::Status& status);

// Copies at most `capacity` - 1 bytes, cutting no UTF-8 character in two, and ends them with 0.
// Reads stop at the capacity; what they return is untrusted, and may not be UTF-8.
void StoreText(absl::string_view text, char* buffer, size_t capacity);
std::string LoadText(const char* buffer, size_t capacity);

}  // namespace tessera

#endif  // TESSERA_SHM_CONTROL_PAGE_H_

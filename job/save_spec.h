// What a save writes, where and how: one value, carried whole from the public calls and the command
// line through coordinator and executor to the code that writes.
//
//   SaveOptions ─┐
//   path ────────┴─► SaveSpec ◄── save_spec_codec.h ──► proto/saves.proto, the coordinator's journal
//
// Only code that acts on an option names it. A new one is named here, in the codec and its two
// schemas, by the command line, and where it acts. Values; thread-compatible.
#ifndef TESSERA_JOB_SAVE_SPEC_H_
#define TESSERA_JOB_SAVE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "layout/dtype.h"

namespace tessera {

struct SaveOptions {
  // Of a checkpoint. Returns at once. The state of this step is written while training continues,
  // spread over at most the next 1.6 steps, and as fast as possible once this rank's trainer asks
  // for its status a second time without a step between, as AwaitSave does. The step after the next
  // waits until everything that is not yet written is copied. That takes as much memory, up to as
  // much again as the rank has, until the save is over. See also AwaitSave and GetSaveStatus.
  // The next save or load waits for it. A process that dies meanwhile ends it: the checkpoint that
  // had the name stays.
  bool in_background = false;
  // Of a checkpoint. Removes the oldest of the job's checkpoints in the same folder, so that with
  // this one so many are left. 0: all stay.
  int32_t keep_newest = 0;
  // Of a checkpoint. If false, a checkpoint that is already at the path, whole or damaged, is
  // refused with AlreadyExists, on all ranks and before anything is written. Rank 0 checks; of parts
  // each rank checks its own. If another job publishes a checkpoint there while this one is written,
  // that one stays too, and this one does not get the name. Unpublished data is not guarded: two
  // saves to one path at the same time remove each other's files. Mostly the first one fails
  // (FailedPrecondition), or a load does (DataLoss); see docs/formats/checkpoint.md. The same on
  // all ranks.
  bool overwrite = true;
  // The model in files of at most so many bytes of tensors and an index; a larger tensor has a file
  // of its own. 0: in one file. Of a model alone the path is that file, or else a folder, which gets
  // its name as a whole and replaces one that holds a model alone.
  int64_t max_file_bytes = 0;
  // Of a checkpoint, for workers that share no file system: each rank writes a part,
  // PATH/rank-00003, on its own; PATH may differ between ranks. `tessera consolidate` combines them
  // into the checkpoint; only that can be loaded. Parts of another step are not replaced, so each
  // save needs a PATH of its own. Not with max_file_bytes or keep_newest.
  bool in_parts = false;
  // Of parts: replicas of no_shard and the hybrid strategies write what other ranks write too, so
  // that a host may be lost.
  bool with_replicas = false;
  // Of a model alone. fp32, bf16 or fp16: what parameters in a larger dtype are rounded to, to
  // nearest, ties to even (fp64 to a half by way of fp32). The files' __metadata__ says so:
  // tessera.save_dtype.
  std::optional<DType> dtype;

  friend bool operator==(const SaveOptions& a, const SaveOptions& b) {
    return a.in_background == b.in_background && a.keep_newest == b.keep_newest &&
           a.overwrite == b.overwrite && a.max_file_bytes == b.max_file_bytes &&
           a.in_parts == b.in_parts && a.with_replicas == b.with_replicas && a.dtype == b.dtype;
  }
};

enum class SaveContent { kCheckpoint, kModel };

struct SaveSpec {
  SaveContent content = SaveContent::kCheckpoint;
  std::string path;  // Absolute.
  SaveOptions options;
  // Of a requested save: the folder that must contain `path`, with links followed; empty: any. It
  // depends on the caller, so equal specs may differ in it.
  std::string root;

  friend bool operator==(const SaveSpec& a, const SaveSpec& b) {
    return a.content == b.content && a.path == b.path && a.options == b.options;
  }
};

// Whether the options can be combined; the path is not looked at. Errors: InvalidArgument.
inline absl::Status CheckSaveSpec(const SaveSpec& spec) {
  const SaveOptions& options = spec.options;
  const bool is_model = spec.content == SaveContent::kModel;
  std::string wrong;
  if (options.keep_newest < 0) {
    wrong = absl::StrCat("keep_newest ", options.keep_newest, ": must not be negative");
  } else if (options.max_file_bytes < 0) {
    wrong = absl::StrCat("max_file_bytes ", options.max_file_bytes, ": must not be negative");
  } else if (options.dtype.has_value() && !is_model) {
    wrong = "a checkpoint is always in full precision";
  } else if (options.dtype.has_value() && options.dtype != DType::kFp32 &&
             !IsHalf(*options.dtype)) {
    wrong = "a model is saved as fp32, bf16 or fp16, or as it is";
  } else if (options.with_replicas && !options.in_parts) {
    wrong = "with_replicas: replicas are only saved in parts";
  } else if (options.in_parts && is_model) {
    wrong = "in_parts: a model alone is not saved in parts";
  } else if (options.in_parts && options.max_file_bytes != 0) {
    wrong = "in_parts: a part is one file";
  } else if (options.in_parts && options.keep_newest != 0) {
    wrong = "in_parts: with keep_newest, but of parts none is removed";
  }
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(wrong);
}

}  // namespace tessera

#endif  // TESSERA_JOB_SAVE_SPEC_H_

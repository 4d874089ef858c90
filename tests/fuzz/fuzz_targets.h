// What is done with bytes of anybody's, one function a format: it reads them as far as they go and
// checks what then must hold. A crash, a report of a sanitizer or a failed check is a bug.
//
//   tools/fuzz             ──► libFuzzer, bytes that it finds   ──► a target
//   :corpus_test           ──► each file of corpus/NAME         ──► the target of that name
#ifndef TESSERA_TESTS_FUZZ_FUZZ_TARGETS_H_
#define TESSERA_TESTS_FUZZ_FUZZ_TARGETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::fuzz {

// A whole safetensors file.
void SafetensorsHeader(absl::string_view bytes);
// An index.json of a model in several files.
void ModelIndex(absl::string_view bytes);
// The shard of a rank's part of a checkpoint, a whole safetensors file.
void CheckpointPart(absl::string_view bytes);
// The manifest of such a part, or of a checkpoint.
void Manifest(absl::string_view bytes);
// A LiveStateQuery: what a client asks a coordinator or a worker for.
void LiveQueries(absl::string_view bytes);

// Of streams of gRPC, as messages that came through protobuf; each after its length (messages.h).
// LiveTensorInfo...: what `tessera get` is told that there is.
void LiveTensors(absl::string_view bytes);
// LiveStateReply...: what it gets of tensors that it knows.
void LiveReplies(absl::string_view bytes);
// PutStage, LivePiece...: what a coordinator sends a worker.
void PutCommands(absl::string_view bytes);
// PutRequest...: what a client sends a coordinator.
void PutRequests(absl::string_view bytes);

// Of a coordinator: what clients and workers say, each after a GetJobRequest whose job_id says
// what it is: "c" CreateJob, "d" DeleteJob, "w" RegisterWorker, "o" Connect, "e" an event of a
// stream, "s" RequestSave, "x" CancelSave; and "t" alone: some time passes.
void CoordinatorEvents(absl::string_view bytes);
// The rows of its journal: VaultPut..., of which `part` is the key and `owner` the value.
void JournalRows(absl::string_view bytes);
// An ExecutorEvent: what a rank's executor tells its worker.
void ExecutorEvents(absl::string_view bytes);
// A SaveRequest and a LoadRequest: what a trainer asks of its executor.
void SaveRequests(absl::string_view bytes);
void LoadRequests(absl::string_view bytes);
// A greeting, a frame's header and an address of the ranks' mesh.
void MeshFrames(absl::string_view bytes);

struct Target {
  absl::string_view name;  // As the folder of its corpus.
  void (*run)(absl::string_view bytes);
};

absl::Span<const Target> Targets();

}  // namespace tessera::fuzz

#endif  // TESSERA_TESTS_FUZZ_FUZZ_TARGETS_H_

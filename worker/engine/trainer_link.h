// What the engine says to its trainer and hears from it, through the control page: results of
// operations, and messages that are longer than an operation.
//
//   trainer ── Send, Send, ... ──► request() ──► the operation that needs it
//   trainer ◄── Receive, Receive, ... ◄── Reply ◄── that operation
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_TRAINER_LINK_H_
#define TESSERA_WORKER_ENGINE_TRAINER_LINK_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "base/ids.h"
#include "shm/control_page.h"

namespace tessera {

class TrainerLink {
 public:
  // `control` outlives this.
  TrainerLink(Rank rank, ControlPage* control) : rank_(rank), control_(*control) {}

  // A piece of the trainer's message has come. Errors: InvalidArgument  it is too long.
  absl::Status Append(const Op& op);
  // The message; there is none then.
  std::string TakeRequest();
  // What the trainer will receive, piece by piece.
  void Reply(std::string reply);
  void SendPiece();

  // The operation is over, with this outcome.
  void PublishResult(const absl::Status& status, double gradient_norm = 0, bool non_finite = false);
  OpResult& result() { return control_.result; }
  // The trainer may use the unit's gradient slot again.
  void ReleaseSlot(int unit);

 private:
  const Rank rank_;
  ControlPage& control_;
  std::string request_;
  std::string reply_;  // Of the last operation that has one, from reply_offset_ on.
  size_t reply_offset_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_TRAINER_LINK_H_

#include "client/session/session_buffers.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_state.h"

namespace tessera {

bool SessionBuffers::any() const { return !session_->state().client.plan().buffers().empty(); }

BufferBank SessionBuffers::Bank() const {
  const RankClient& client = session_->state().client;
  return {&client.plan().buffers(),
          client.memory().gradients.data() + client.plan().staged_buffers_offset_bytes()};
}

absl::Status SessionBuffers::Set(int buffer, absl::string_view values) {
  RETURN_IF_ERROR(session_->state().client.CheckProcess());
  const BufferPlacement& placement = session_->state().client.plan().buffers();
  if (buffer < 0 || buffer >= placement.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no buffer ", buffer, " of ", placement.size()));
  }
  if (static_cast<int64_t>(values.size()) != placement.size_bytes(buffer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer '", session_->layout().buffers[buffer].name, "': ", values.size(),
                     " bytes of ", placement.size_bytes(buffer)));
  }
  // Between epochs an executor may still take what was set before.
  if (session_->state().client.EpochIsOver())
    return absl::AbortedError("the epoch is over: recover first");
  Bank().Write(buffer, values.data());
  return absl::OkStatus();
}

absl::string_view SessionBuffers::Get(int buffer) const {
  const BufferBank bank = Bank();
  return {reinterpret_cast<const char*>(bank.values(buffer)),
          static_cast<size_t>(bank.size_bytes(buffer))};
}

bool SessionBuffers::Has(int buffer, absl::string_view values) const {
  const uint64_t word = sequence(buffer);
  // An odd word is a write in progress, or one whose writer died in it.
  return word != 0 && word % 2 == 0 &&
         (values.empty() || memcmp(Bank().values(buffer), values.data(), values.size()) == 0);
}

// The mark says who wrote the bytes, not which they are.
uint64_t SessionBuffers::sequence(int buffer) const {
  return Bank().sequence(buffer).load(std::memory_order_acquire) & ~kGivenWord;
}

bool SessionBuffers::IsGiven(int buffer) const {
  const uint64_t word = Bank().sequence(buffer).load(std::memory_order_acquire);
  return word % 2 == 0 && (word & kGivenWord) != 0;
}

absl::Status SessionBuffers::Restore() {
  if (!any()) return absl::OkStatus();
  return session_->state().client.SubmitAndAwait(OpOf(OpKind::kRestoreBuffers));
}

void SessionBuffers::SetHooks(BufferHooks hooks) {
  if (!any()) return;
  session_->state().client.SetBufferHooks(std::make_shared<const BufferHooks>(std::move(hooks)));
}

absl::Status SessionBuffers::Resume() {
  const std::shared_ptr<const BufferHooks> hooks = session_->state().client.buffer_hooks();
  if (hooks == nullptr || hooks->restore == nullptr) return absl::OkStatus();
  while (true) {
    const absl::Status status = hooks->restore();
    // Another process may die in each try. The error that is not Aborted is the trainer's.
    if (!absl::IsAborted(status)) return status;
    RETURN_IF_ERROR(session_->Recover());
  }
}

}  // namespace tessera

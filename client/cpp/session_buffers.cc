#include "client/cpp/session_buffers.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {

bool SessionBuffers::publishes() const {
  return session_->rank() == 0 && !session_->plan_.buffers().empty();
}

BufferBank SessionBuffers::Bank() const {
  return {&session_->plan_.buffers(),
          session_->memory_.gradients.data() + session_->plan_.staged_buffers_offset_bytes()};
}

absl::Status SessionBuffers::Set(int buffer, absl::string_view values) {
  const BufferPlacement& placement = session_->plan_.buffers();
  if (buffer < 0 || buffer >= placement.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no buffer ", buffer, " of ", placement.size()));
  }
  if (static_cast<int64_t>(values.size()) != placement.size_bytes(buffer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer '", session_->layout_.buffers[buffer].name, "': ", values.size(),
                     " bytes of ", placement.size_bytes(buffer)));
  }
  if (!publishes()) return absl::OkStatus();
  // Between epochs an executor may still take what was set before.
  if (session_->EpochIsOver()) return absl::AbortedError("the epoch is over: recover first");
  Bank().Write(buffer, values.data());
  return absl::OkStatus();
}

bool SessionBuffers::Has(int buffer, absl::string_view values) const {
  if (!publishes()) return false;
  const BufferBank bank = Bank();
  const uint64_t sequence = bank.sequence(buffer).load(std::memory_order_relaxed);
  return sequence != 0 && sequence % 2 == 0 &&
         (values.empty() || memcmp(bank.values(buffer), values.data(), values.size()) == 0);
}

uint64_t SessionBuffers::sequence(int buffer) const {
  return publishes() ? Bank().sequence(buffer).load(std::memory_order_relaxed) : 0;
}

void SessionBuffers::OnVersion(std::function<absl::Status()> stage) {
  if (publishes()) session_->stage_buffers_ = std::move(stage);
}

}  // namespace tessera

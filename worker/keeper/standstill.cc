#include "worker/keeper/standstill.h"

#include "absl/strings/str_cat.h"

namespace tessera {

std::optional<Standstill::Verdict> Standstill::Judge(const Look& look, absl::Time now) {
  // The first look is no evidence of anything before it.
  if (!look.is_stopped || ran_ == absl::InfinitePast()) ran_ = now;
  // The same operation and the same count: nothing has ended since.
  if (look.kind == 0 || look.kind != kind_ || look.consumed != consumed_) moved_ = now;
  kind_ = look.kind;
  consumed_ = look.consumed;
  // Nobody asked: the difference is negative, as `asked` is in the infinite future.
  if (now - look.asked >= patience_)
    return Verdict{absl::StrCat("did not leave its epoch for ", absl::FormatDuration(patience_))};
  // Of a process that a signal has stopped: it would stand still for ever (docs/adr/0067).
  if (now - ran_ >= patience_)
    return Verdict{absl::StrCat("stands still for ", absl::FormatDuration(patience_))};
  if (now - moved_ < longest_operation_) return std::nullopt;
  moved_ = now;  // Told of once in a while.
  const auto kind = static_cast<OpKind>(look.kind);
  // Files may be as slow as their disk. It is told of, and not killed for that.
  return Verdict{absl::StrCat("is at the operation ", OpName(kind), " for more than ",
                              absl::FormatDuration(longest_operation_)),
                 kind != OpKind::kSave && kind != OpKind::kLoad};
}

}  // namespace tessera

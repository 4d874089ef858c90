// The windows in which a trainer may read its units' parameters.
//
// For this folder; the contracts are those of Session. One thread at a time.
#ifndef TESSERA_CLIENT_SESSION_PARAMETER_WINDOWS_H_
#define TESSERA_CLIENT_SESSION_PARAMETER_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/session/rank_client.h"
#include "client/session/window_guard.h"
#include "tessera/session_options.h"

namespace tessera {

class ParameterWindows {
 public:
  explicit ParameterWindows(RankClient* client) : client_(client) {}  // Not owned.

  void Guard();  // Once memory is mapped: uses outside of windows are errors from now on.
  void Reset();  // An epoch begins.
  // Of windows that an earlier trainer opened in this epoch: closes them.
  absl::Status TakeOver();

  absl::Status Open(int unit, Precision precision);
  absl::Status OpenAsync(int unit, Precision precision);
  absl::Status Close(int unit);
  absl::Status CloseAll();
  absl::Status CloseFull();  // Those in full precision.
  bool is_open(int unit) const { return windows_[unit] == Window::kOpen; }
  bool is_closed(int unit) const { return windows_[unit] == Window::kClosed; }
  bool gathered(int unit) const;
  Precision precision(int unit) const { return precisions_[unit]; }
  const std::byte* parameters(int unit) const;
  const std::byte* parameter(int unit, int parameter) const;
  const std::byte* full_parameter(int unit, int parameter) const;

 private:
  enum class Window { kClosed, kOpening, kOpen };
  WindowGuard* GuardOf(int unit, Precision precision) const;

  RankClient* const client_;
  std::unique_ptr<WindowGuard> guard_, full_guard_;  // Null: none.
  std::vector<Window> windows_;
  std::vector<Precision> precisions_;
  std::vector<uint32_t> unshards_;  // Asked for in this epoch.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_PARAMETER_WINDOWS_H_

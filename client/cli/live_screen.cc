#include "client/cli/live_screen.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "client/cli/text_table.h"

namespace tessera::cli {

// xterm's private modes: 1049 alternate screen, 25 cursor shown, 7 wrapping at the margin.
LiveScreen::LiveScreen(std::ostream* out) : out_(out) {
  *out_ << "\x1b[?1049h\x1b[?25l\x1b[?7l" << std::flush;
}

LiveScreen::~LiveScreen() { *out_ << "\x1b[?7h\x1b[?25h\x1b[?1049l" << std::flush; }

void LiveScreen::Show(const std::string& frame) {
  // Home; every line clears what is left of its old self; then everything below.
  *out_ << "\x1b[H" << absl::StrReplaceAll(frame, {{"\n", "\x1b[K\r\n"}}) << "\x1b[J" << std::flush;
}

absl::Status RunLive(const std::function<absl::StatusOr<std::string>()>& next_frame,
                     const std::function<bool()>& wait, std::ostream* out) {
  // Before the screen is taken, so that a first error is left on the terminal.
  ASSIGN_OR_RETURN(std::string last_good, next_frame());
  LiveScreen screen(out);
  screen.Show(last_good);
  while (wait()) {
    absl::StatusOr<std::string> frame = next_frame();
    if (frame.ok()) {
      last_good = *std::move(frame);
      screen.Show(last_good);
    } else {
      // First, as the frame may fill the screen.
      screen.Show(absl::StrCat(Printable(frame.status().ToString()), "\n", last_good));
    }
    if (!out->good()) return absl::UnavailableError("cannot write the output");
  }
  return absl::OkStatus();
}

}  // namespace tessera::cli

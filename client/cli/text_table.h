// Columns of text for display. Pure; TextTable is thread-compatible.
#ifndef TESSERA_CLIENT_CLI_TEXT_TABLE_H_
#define TESSERA_CLIENT_CLI_TEXT_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera::cli {

// Text from a server, safe for a terminal: control characters become '?', UTF-8 stays.
std::string Printable(absl::string_view text);
// The same for text of several lines: newlines and tabs stay.
std::string PrintableLines(absl::string_view text);

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  // Requires as many cells as the header has.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Every line starts with `indent` and ends in a newline; columns are two spaces apart, those of
  // numbers only (below the header) are set to the right.
  std::string Render(absl::string_view indent) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TEXT_TABLE_H_

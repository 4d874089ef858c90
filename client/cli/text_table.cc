#include "client/cli/text_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tessera::cli {
namespace {

bool IsContinuationByte(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Characters, not bytes, so that UTF-8 names do not shift their row.
size_t Width(absl::string_view text) {
  return text.size() - std::count_if(text.begin(), text.end(), IsContinuationByte);
}

// U+0080 to U+009F are control characters too; in UTF-8 they are 0xc2 and one of 0x80..0x9f.
bool IsC1Control(absl::string_view text, size_t i) {
  return static_cast<unsigned char>(text[i]) == 0xc2 && i + 1 < text.size() &&
         static_cast<unsigned char>(text[i + 1]) < 0xa0;
}

std::string Filter(absl::string_view text, absl::string_view kept_controls) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsC1Control(text, i)) {
      printable += '?';
      ++i;
    } else if (absl::ascii_iscntrl(text[i]) &&
               kept_controls.find(text[i]) == absl::string_view::npos) {
      printable += '?';
    } else {
      printable += text[i];
    }
  }
  return printable;
}

bool StartsAsNumber(absl::string_view cell) {
  return cell.empty() || cell == "-" || absl::ascii_isdigit(cell[0]);
}

}  // namespace

std::string Printable(absl::string_view text) { return Filter(text, ""); }

std::string PrintableLines(absl::string_view text) { return Filter(text, "\n\t"); }

std::string TextTable::Render(absl::string_view indent) const {
  const size_t num_columns = rows_.front().size();
  std::vector<size_t> widths(num_columns, 0);
  std::vector<bool> is_number(num_columns, true);
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t column = 0; column < num_columns; ++column) {
      const std::string& cell = rows_[row][column];
      widths[column] = std::max(widths[column], Width(cell));
      // Not the header: a column of numbers has a name too.
      if (row > 0 && !StartsAsNumber(cell)) is_number[column] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line(indent);
    for (size_t column = 0; column < num_columns; ++column) {
      const std::string filler(widths[column] - Width(row[column]), ' ');
      absl::StrAppend(&line, column == 0 ? "" : "  ", is_number[column] ? filler : "", row[column],
                      is_number[column] ? "" : filler);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace tessera::cli

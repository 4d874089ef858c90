// Which parameters of a model are loaded, and what they are called in the file. Plain values and
// pure functions; thread-safe.
//
//   NameSelection names;
//   names.renames = {{"model.", ""}, {"lm_head.weight", "head.weight"}};
//   names.exclude = {"head.*", "optimizer.*"};
//
//   in the file                 in the model        what becomes of it
//   model.encoder.weight        encoder.weight      is loaded
//   lm_head.weight              head.weight         left out: the parameter stays as it is
//   optimizer.state             optimizer.state     left out: it is not unexpected either
#ifndef TESSERA_LAYOUT_NAME_SELECTION_H_
#define TESSERA_LAYOUT_NAME_SELECTION_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

struct NameSelection {
  struct Rename {
    // With a "." or "/" as its last character, or empty: what a name begins with, which `to`
    // replaces. Else a whole name.
    std::string from;
    std::string to;
  };
  // Of a name in the file; the first that applies is used, and no other after it.
  std::vector<Rename> renames;
  // Patterns of names in the model, whole ones: "*" is any bytes, dots too, or none; "?" is any one
  // byte; all else is itself. Without `include` all are wanted, but those that `exclude` has. A
  // parameter with tied weights has several names, and each counts for all of it.
  std::vector<std::string> include, exclude;
};

bool MatchesPattern(absl::string_view pattern, absl::string_view name);

// Whether what has these names in the model is wanted.
bool IsWanted(const NameSelection& selection, absl::Span<const std::string> names);

// What a tensor of the file is called in the model.
std::string NameInModel(const std::vector<NameSelection::Rename>& renames,
                        const std::string& in_file);

// By name in the model: the name in the file.
// Errors: InvalidArgument  two tensors get one name: naming all three.
absl::StatusOr<std::map<std::string, std::string>> NamesInModel(
    const std::vector<std::string>& in_file, const std::vector<NameSelection::Rename>& renames);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_NAME_SELECTION_H_

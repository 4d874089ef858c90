#include "client/cli/fake_note.h"

#include "absl/strings/str_cat.h"
#include "job/job_config.h"

namespace tessera::cli {

std::string FakeNote(bool fake_all_gather, bool fake_reduce_scatter) {
  const std::string fake = FakeText(fake_all_gather, fake_reduce_scatter);
  return fake.empty() ? "" : absl::StrCat(", TRAINS NOTHING: ", fake);
}

}  // namespace tessera::cli

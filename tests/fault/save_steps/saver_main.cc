// Saves versions (saved_version.h), each in a process of its own that is forked for it: what the
// test that started this arms, ends that process and not this one.
//
//   a line in:   "save KIND VERSION ROOT" or "prepare KIND VERSION ROOT"
//   a line out:  the status' code, ' ', its message
#include <stdio.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/fault/save_steps/save_kinds.h"
#include "worker/comm/shm/shm_test_group.h"

int main() {
  // What saves log must not be taken for an answer.
  FILE* const answers = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb, root;
    int kind = 0, version = 0;
    words >> verb >> kind >> version >> root;
    tessera::RankProcess process([&] {
      const auto of = static_cast<tessera::SaveKind>(kind);
      return verb == "save" ? tessera::SaveVersion(of, root, version)
                            : tessera::PrepareVersion(of, root, version);
    });
    const absl::Status status = process.Join();
    const std::string answer = absl::StrCat(static_cast<int>(status.code()), " ",
                                            absl::StrReplaceAll(status.message(), {{"\n", " "}}));
    fprintf(answers, "%s\n", answer.c_str());
    fflush(answers);
  }
  return 0;
}

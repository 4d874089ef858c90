// What is said of a job whose collectives are fake wherever it is shown. Pure; thread-safe.
#ifndef TESSERA_CLIENT_CLI_FAKE_NOTE_H_
#define TESSERA_CLIENT_CLI_FAKE_NOTE_H_

#include <string>

namespace tessera::cli {

// ", TRAINS NOTHING: fake all-gather, fake reduce-scatter", to be appended; empty: nothing is fake.
std::string FakeNote(bool fake_all_gather, bool fake_reduce_scatter);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_FAKE_NOTE_H_

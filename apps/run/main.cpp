// main.cpp - tarn-run: starts a program once per rank; flags as torchrun's.
//
// Read on: settings (the flags), launcher (processes and their end), report (what is said of it).
#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/run/launcher.h"

namespace {

using namespace tarn::apps;

int run(int argc, char** argv) {
  RunSettings settings;
  Options options("tarn-run",
                  "Starts PROGRAM once per rank: tarn-run [flags] PROGRAM [arguments].");
  declare_run_flags(options, settings);
  const SplitArguments split = split_arguments({argv + 1, argv + argc});
  std::vector<std::string> arguments = split.own;
  if (!split.command.empty()) arguments.push_back("--");
  arguments.insert(arguments.end(), split.command.begin(), split.command.end());
  if (!options.parse(arguments)) return 0;
  check_run_settings(settings);
  return Launcher(settings).run();
}

}  // namespace

int main(int argc, char** argv) {
  return main_guard("tarn-run", [&] { return run(argc, argv); });
}

// main_guard.h - runs the body of a program and turns what it throws into a message and exit code.
#pragma once

#include <functional>

namespace tarn::apps {

/// The exit code of a command line that cannot be run.
inline constexpr int kUsageExitCode = 2;

/// Runs body and returns its result as the exit code. An exception becomes one message on standard
/// error, "tarn-resnet: error: ...", and exit code kUsageExitCode for a UsageError, 1 for anything
/// else. So does standard output that could not be written (a full disk, or it was closed). Under
/// torchrun the message is left in TORCHELASTIC_ERROR_FILE as well.
///   int main(int argc, char** argv) { return main_guard("tarn-resnet", [&] { return run(...); });
///   }
int main_guard(const char* program, const std::function<int()>& body);

}  // namespace tarn::apps

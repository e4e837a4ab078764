// error.h - what goes wrong between ranks, and the time types of every wait.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tarn/core/error.h"

namespace tarn::dist {

using Millis = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Base of all errors between ranks.
class DistError : public Error {
 public:
  using Error::Error;
};
/// A wait that reached its limit. Says what was waited for and who is missing.
class TimeoutError : public DistError {
 public:
  using DistError::DistError;
};
/// Another rank ended, closed its connection or called something else.
class PeerError : public DistError {
 public:
  PeerError(int peer, const std::string& text) : DistError(text), peer_(peer) {}
  /// The rank within the group whose fault it is, as far as this rank can see.
  int peer() const { return peer_; }

 private:
  int peer_;
};

/// In a handler: throws the exception at hand again with `where` in front of its text, as the same
/// kind of DistError.
[[noreturn]] void rethrow_with(const std::string& where);

/// What calls on a dead group say.
std::string ended_earlier(const std::string& reason);

/// "fc.weight, fc.bias": the first few, and how many more.
std::string list_text(const std::vector<std::string>& names);
/// "250 ms", "30 s".
std::string duration_text(Millis time);
/// What is left until a deadline, rounded up; 0 if it has passed.
Millis time_left(Clock::time_point deadline);

}  // namespace tarn::dist

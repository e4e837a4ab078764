// fault.cpp - faults on demand.
#include "tarn/dist/fault.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include <signal.h>
#include <unistd.h>

#include "tarn/core/error.h"
#include "tarn/dist/environment.h"

namespace tarn::dist {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  tarn::detail::fail<ValueError>(
      "TARN_FAULT must be like \"rank=1 at=20 do=kill\" (or every=N; exit, "
      "hang, drop, delay:MS); got \"",
      text, "\"");
}

}  // namespace

Fault parse_fault(const std::string& text) {
  Fault fault{.rank = -1};
  bool acts = false;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equal = word.find('=');
    if (equal == std::string::npos) refuse(text);
    const std::string key = word.substr(0, equal), value = word.substr(equal + 1);
    const auto number = [&](const std::string& digits) {
      int64_t n = 0;
      const char* end = digits.data() + digits.size();
      const auto [stop, error] = std::from_chars(digits.data(), end, n);
      if (error != std::errc() || stop != end || n < 0) refuse(text);
      return n;
    };
    if (key == "rank") {
      fault.rank = static_cast<int>(number(value));
    } else if (key == "at") {
      fault.at = number(value);
    } else if (key == "every") {
      fault.every = number(value);
    } else if (key == "do") {
      acts = true;
      if (value == "kill") {
        fault.kind = Fault::Kind::kKill;
      } else if (value == "exit") {
        fault.kind = Fault::Kind::kExit;
      } else if (value == "hang") {
        fault.kind = Fault::Kind::kHang;
      } else if (value == "drop") {
        fault.kind = Fault::Kind::kDrop;
      } else if (value.starts_with("delay:")) {
        fault.kind = Fault::Kind::kDelay;
        fault.delay_ms = number(value.substr(6));
      } else {
        refuse(text);
      }
    } else {
      refuse(text);
    }
  }
  if (!acts || fault.rank < 0 || (fault.at > 0) == (fault.every > 0)) refuse(text);
  return fault;
}

bool maybe_fail(int rank) {
  static const std::optional<Fault> fault = [] {
    const char* text = std::getenv("TARN_FAULT");
    return text && *text ? std::optional<Fault>(parse_fault(text)) : std::nullopt;
  }();
  if (!fault || fault->rank != launched_rank(rank)) return false;
  static std::atomic<int64_t> count{0};
  const int64_t number = ++count;
  if (fault->at > 0 ? number != fault->at : number % fault->every != 0) return false;
  switch (fault->kind) {
    case Fault::Kind::kKill:
      ::raise(SIGKILL);
      break;
    case Fault::Kind::kExit:
      ::_exit(3);
    case Fault::Kind::kHang:
      ::raise(SIGSTOP);
      break;
    case Fault::Kind::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault->delay_ms));
      break;
    case Fault::Kind::kDrop:
      return true;
  }
  return false;
}

}  // namespace tarn::dist

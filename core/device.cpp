// device.cpp - parsing devices, current streams, events.
#include "tarn/core/device.h"

#include <charconv>
#include <utility>

#include "tarn/core/backend.h"
#include "tarn/core/error.h"

namespace tarn {

Device::Device(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  int i = 0;
  bool ok = name == "cpu" || name == "cuda";
  if (ok && name.size() < text.size()) {
    const char* begin = text.data() + name.size() + 1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, i);
    ok = error == std::errc() && stop == end && i >= 0 && i < 128 && (name == "cuda" || i == 0);
  }
  TARN_CHECK_AS(ValueError, ok, "device: expected cpu, cuda or cuda:<index>; got '", text, "'");
  type = name == "cuda" ? DeviceType::kCUDA : DeviceType::kCPU;
  index = static_cast<int8_t>(i);
}

std::string Device::str() const {
  return is_cpu() ? "cpu" : "cuda:" + std::to_string(static_cast<int>(index));
}

std::ostream& operator<<(std::ostream& out, Device device) {
  return out << device.str();
}

namespace {
constexpr int kMaxDevices = 64;
// Streams this thread made current, by CUDA device; a null device means the default stream.
thread_local Stream current_streams[kMaxDevices];
thread_local bool stream_set[kMaxDevices];
}  // namespace

Stream detail::current_cuda_stream(Device device) {
  const int i = device.index;
  TARN_CHECK_AS(DeviceError, i >= 0 && i < kMaxDevices, "device: at most ", kMaxDevices,
                " devices are supported; got ", device);
  if (stream_set[i]) return current_streams[i];
  return backend(device.type).default_stream(i);
}

StreamGuard::StreamGuard(Stream stream) : previous_(current_stream(stream.device)) {
  if (stream.device.is_cpu()) return;
  current_streams[stream.device.index] = stream;
  stream_set[stream.device.index] = true;
}

StreamGuard::~StreamGuard() {
  if (previous_.device.is_cuda()) current_streams[previous_.device.index] = previous_;
}

Event::Event(Device device, bool timing)
    : device_(device), handle_(backend(device.type).create_event(device.index, timing)) {}
Event::~Event() {
  if (handle_) backend(device_.type).destroy_event(handle_);
}
Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}
void Event::record(Stream stream) {
  backend(device_.type).record_event(handle_, stream);
}
void Event::wait(Stream stream) const {
  backend(device_.type).wait_event(handle_, stream);
}
bool Event::query() const {
  return backend(device_.type).query_event(handle_);
}
void Event::synchronize() const {
  Backend& system = backend(device_.type);
  system.synchronize_event(handle_);
  system.throw_late_error(device_.index);
}
double Event::elapsed_ms_since(const Event& start) const {
  return backend(device_.type).elapsed_ms(start.handle_, handle_);
}

void synchronize(Device device) {
  backend(device.type).synchronize_device(device.index);
}

}  // namespace tarn

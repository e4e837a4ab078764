// device.h - which processor a tensor lives on, and which stream work is queued on.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace tarn {

enum class DeviceType : uint8_t { kCPU, kCUDA };
inline constexpr int kNumDeviceTypes = 2;

struct Device {
  DeviceType type = DeviceType::kCPU;
  int8_t index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType t, int i = 0) : type(t), index(static_cast<int8_t>(i)) {}
  /// "cpu", "cuda", "cuda:1". Throws ValueError on anything else.
  explicit Device(std::string_view text);

  bool is_cpu() const { return type == DeviceType::kCPU; }
  bool is_cuda() const { return type == DeviceType::kCUDA; }
  std::string str() const;
  constexpr bool operator==(const Device& other) const {
    return type == other.type && index == other.index;
  }
};

inline constexpr Device kCPU{DeviceType::kCPU, 0};

std::ostream& operator<<(std::ostream& out, Device device);

/// A queue of work on one device. handle is the backend's own (a cudaStream_t); the default stream
/// has handle nullptr. The CPU has one stream, and its work is done when a call returns.
struct Stream {
  Device device;
  void* handle = nullptr;
  bool operator==(const Stream& other) const {
    return device == other.device && handle == other.handle;
  }
};

namespace detail {
Stream current_cuda_stream(Device device);
}
/// The stream that operations of this thread use on a device.
inline Stream current_stream(Device device) {
  return device.is_cpu() ? Stream{device, nullptr} : detail::current_cuda_stream(device);
}

/// Makes `stream` current on its device for this thread, until the guard ends.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

/// The devices this build and machine can use: the CPU first, then every GPU.
std::vector<Device> available_devices();

}  // namespace tarn

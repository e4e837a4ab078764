// device_choice.cpp - what --device means in every program.
#include "tarn/apps/common/device_choice.h"

#include "tarn/apps/common/options.h"
#include "tarn/core/error.h"

namespace tarn::apps {

bool is_emulated(const DeviceInfo& info) {
  return info.name.find("emulated") != std::string::npos;
}

bool has_real_gpu() {
  return has_backend(DeviceType::kCUDA) && !is_emulated(backend(DeviceType::kCUDA).info(0));
}

namespace {

Device parse_device(const std::string& text) {
  try {
    return Device(text);
  } catch (const ValueError&) {
    throw UsageError("--device: expected auto, cpu, cuda or cuda:<index>; got '" + text + "'");
  }
}

}  // namespace

Device choose_device(const std::string& text, std::ostream& say) {
  if (text != "auto") {
    const Device device = parse_device(text);
    const int count = backend(device.type).device_count();  // throws if there is none at all
    TARN_CHECK_AS(DeviceError, device.index < count, "--device: this machine has ", count, " GPU",
                  count == 1 ? "" : "s", ", numbered from cuda:0; got ", device);
    return device;
  }
  if (has_backend(DeviceType::kCUDA)) {
    return has_real_gpu() ? Device(DeviceType::kCUDA) : kCPU;
  }
  const std::string why = why_no_backend(DeviceType::kCUDA);
  if (why.rfind("cuda:", 0) == 0) say << why << "; going on with the cpu\n";
  return kCPU;
}

std::string device_title(Device device) {
  return device.str() + " (" + backend(device.type).info(device.index).name + ")";
}

}  // namespace tarn::apps

// device_choice.h - what --device means in every program.
#pragma once

#include <ostream>
#include <string>

#include "tarn/core/backend.h"

namespace tarn::apps {

/// "cpu", "cuda" or "cuda:<i>" as they are (DeviceError if there is none). "auto": the first GPU,
/// or the CPU, after a line on `say` with the reason if this build is made for GPUs. An emulated
/// GPU is chosen by name only.
Device choose_device(const std::string& text, std::ostream& say);

/// True for a GPU of cuda/emu.
bool is_emulated(const DeviceInfo& info);

/// True if there is a GPU that is not emulated: what "auto" takes.
bool has_real_gpu();

/// "cpu (Intel ...)", "cuda:0 (NVIDIA H200)", for the line a program starts with.
std::string device_title(Device device);

}  // namespace tarn::apps
